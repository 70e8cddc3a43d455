"""Loads batches of SeqIO tasks onto the devices.

`TrainIterator` prefetches in a thread, trims padding and moves batches to the devices. Its state
can be saved, so that a run restarted on as many processes sees the same batches as an uninterrupted
one.
"""

import collections
import dataclasses
import json
import pathlib
import queue
import re
import tempfile
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Annotated, Any

import jax
import msgspec
import numpy as np
from absl import logging
from jax.experimental import multihost_utils

from vmsst.data import datasets
from vmsst.errors import InputError
from vmsst.io import storage
from vmsst.train import partitioning

Batch = Mapping[str, np.ndarray]

_LENGTH_EIGHTHS = (2, 3, 4, 6, 8)  # the lengths to trim batches to
_LENGTH_MULTIPLE = 4
_TOGETHER = 16  # Processes wait for each other once in as many batches, to agree on their lengths.


Length = Annotated[int, msgspec.Meta(ge=1)]
Seed = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]


@dataclasses.dataclass
class DatasetConfig:
  """A SeqIO task or mixture, and how to batch it (`t5x.utils.DatasetConfig`).

  Attributes:
    mixture_or_task_name: Name, or the Task or Mixture itself.
    task_feature_lengths: Maximum length of each feature, or None (evaluation: measured).
    split: Split of the task.
    batch_size: Examples in the global batch.
    shuffle: Whether to shuffle.
    seed: Seed of the shuffling; None takes the time, so that every start has another order.
    use_cached: Whether to read the task from SeqIO's offline cache.
    pack: Whether to pack several examples into one row; the feature converter must support it.
    use_custom_packing_ops: Passed to the feature converter.
    module: Module to import first, which registers the task.
    use_memory_cache: Whether to keep evaluation batches in memory.
    trim_output_features: Whether to trim features to their maximum length.
  """

  mixture_or_task_name: Any
  task_feature_lengths: Mapping[str, Length | Sequence[Length] | None] | None
  split: str
  batch_size: Annotated[int, msgspec.Meta(ge=1)]
  shuffle: bool
  seed: Seed | None
  use_cached: bool = False
  pack: bool = False
  use_custom_packing_ops: bool = False
  module: str | None = None
  use_memory_cache: bool = True
  trim_output_features: bool = True


def check_split(cfg: DatasetConfig) -> None:
  """Raises InputError if the task of `cfg` lacks its split."""
  split = re.match(r"\w*", cfg.split)  # of a TFDS task, perhaps a slice or a sum of splits
  splits = sorted(datasets.get_mixture_or_task(cfg).splits)
  if split and split[0] not in splits:
    raise InputError(
      f"{cfg.mixture_or_task_name!r} has no split {cfg.split!r}; set one of {', '.join(splits)}"
    )


def get_dataset(
  cfg: DatasetConfig,
  shard_id: int,
  num_shards: int,
  feature_converter_cls: Callable[..., Any],
  num_epochs: int | None = None,
) -> Any:
  """Returns batches of model features, [batch / num_shards, ...]; see `tasks.datasets`."""
  return datasets.get_batches(cfg, shard_id, num_shards, feature_converter_cls, num_epochs)


def get_training_eval_datasets(
  cfg: DatasetConfig,
  shard_id: int,
  num_shards: int,
  eval_steps: int,
  feature_converter_cls: Callable[..., Any],
) -> dict[str, Any]:
  """Returns `eval_steps` batches of each of the mixture's tasks with the split, and of the mixture.

  As upstream does, repeats small tasks to fill the batches. Each dataset has `as_numpy_iterator()`,
  which yields the rows of this shard. With several shards, batches lack the columns that are
  padding in all rows of the global batch.
  """
  import seqio

  provider = datasets.get_mixture_or_task(cfg)
  tasks = [task for task in seqio.get_subtasks(provider) if cfg.split in task.splits]
  providers = [*tasks, *([provider] if isinstance(provider, seqio.Mixture) and tasks else [])]

  share = cfg.batch_size // num_shards
  rows = slice(shard_id * share, (shard_id + 1) * share)

  def load(provider: Any) -> Any:
    examples = get_dataset(
      dataclasses.replace(cfg, mixture_or_task_name=provider, batch_size=1),
      shard_id=0,
      num_shards=1,
      feature_converter_cls=feature_converter_cls,
      num_epochs=eval_steps * cfg.batch_size,  # finite, so that shards without examples do not hang
    )
    batches = (
      examples.unbatch().repeat().batch(cfg.batch_size, drop_remainder=True).take(eval_steps)
    )
    if cfg.use_memory_cache:
      batches = batches.cache()
    return batches if num_shards == 1 else _TrimmedRows(batches, rows)

  return {provider.name: load(provider) for provider in providers}


@dataclasses.dataclass(frozen=True)
class _TrimmedRows:
  """Some rows of every batch of a dataset, trimmed to the length of the whole batch."""

  batches: Any
  rows: slice

  def as_numpy_iterator(self) -> Iterator[Batch]:
    for batch in self.batches.as_numpy_iterator():
      yield take_rows(trim_padding(batch), self.rows)


def take_rows(batch: Batch, rows: slice | np.ndarray) -> dict[str, np.ndarray]:
  """Returns some rows of `batch`."""
  return {name: value[rows] for name, value in batch.items()}


def used_eighths(batch: Batch) -> int:
  """Returns how many eighths of their lengths the texts of a batch need: 2, 3, 4, 6 or 8.

  Texts are the rank-2 integer features [B, T].
  """
  return next(
    eighths
    for eighths in _LENGTH_EIGHTHS
    if not any(value[:, cut:].any() for value, cut in _cuts(batch, eighths).values())
  )


def trim_padding(batch: Batch, eighths: int | None = None) -> dict[str, np.ndarray]:
  """Returns `batch` without columns that are padding in every row.

  All texts keep the same fraction of their length, rounded up to a multiple of 4, so that few
  shapes are compiled.

  Args:
    batch: The batch.
    eighths: The fraction, at least `used_eighths(batch)`; None: that.
  """
  cuts = _cuts(batch, used_eighths(batch) if eighths is None else eighths)
  return {**batch, **{name: value[:, :cut] for name, (value, cut) in cuts.items()}}


def _cuts(batch: Batch, eighths: int) -> dict[str, tuple[np.ndarray, int]]:
  """Returns the texts of a batch, and the lengths to cut them to."""
  unit = 8 * _LENGTH_MULTIPLE
  return {
    name: (value, min(value.shape[1], -(-value.shape[1] * eighths // unit) * _LENGTH_MULTIPLE))
    for name, value in batch.items()
    if value.ndim == 2 and value.shape[1] > 1 and np.issubdtype(value.dtype, np.integer)
  }


def can_trim() -> bool:
  """Returns whether this process may trim batches alone: all processes need the same shapes."""
  return jax.process_count() == 1


@dataclasses.dataclass
class DataState:
  """Data iterator state: the iterator's saved state before the batch of step `position`.

  Attributes:
    position: Step of the next batch.
    prefix: Path prefix of the files of tf.train.Checkpoint; None if a fresh iterator is at
      `position`.
  """

  position: int
  prefix: storage.Path | None

  def copy_to(self, folder: storage.Path, process: int, processes: int) -> None:
    """Writes the state below `folder`, under upstream T5X's names, and a JSON file next to it.

    Upstream assumes that the state is that of the checkpoint's step and ignores the JSON file.
    """
    folder, name = _state_path(folder, process, processes)
    folder.mkdir(parents=True, exist_ok=True)
    if self.prefix is not None:
      for path in self.prefix.parent.glob(self.prefix.name + ".*"):
        if path.suffix != ".json":
          target = folder / (name + path.name[len(self.prefix.name) :])
          target.write_bytes(path.read_bytes())
    description = {"batches": self.position, "saved": self.prefix is not None}
    (folder / (name + ".json")).write_text(json.dumps(description))

  @classmethod
  def read_from(cls, folder: storage.Path, process: int, processes: int) -> "DataState | None":
    """Returns the state in `folder`, or None if there is none for this process.

    A state is only for the number of processes that saved it, since another number reads other
    rows: returns None then, with a warning.

    A state saved by upstream T5X has no JSON file. It is that of the checkpoint's step, which ends
    the name of the parent of `folder`. At step 0 it is one batch ahead; returns None then.
    """
    process_folder, name = _state_path(folder, process, processes)
    prefix = process_folder / name if (process_folder / (name + ".index")).is_file() else None
    description = process_folder / (name + ".json")
    if description.is_file():
      try:
        record = json.loads(description.read_text())
        position, saved = int(record["batches"]), bool(record["saved"])
        if saved and prefix is None:
          raise ValueError("files are missing")
      except (ValueError, KeyError, TypeError) as error:
        raise InputError(
          f"{description} is damaged; delete the folder {description.parent} to replay the data "
          "instead"
        ) from error
      return cls(position, prefix)
    if prefix is not None:
      step = int(folder.parent.name.rpartition("_")[2])
      return cls(step, prefix) if step else None
    names = storage.names(folder)
    # Files of a state are in `folder`, or in folders there.
    if any(name.startswith("train_ds-") or storage.names(folder / name) for name in names):
      logging.warning(
        "The data iterator state in %s is not of %d processes; the data starts over, so rows may "
        "repeat before all others are seen.",
        folder,
        processes,
      )
    return None


def _state_path(folder: storage.Path, process: int, processes: int) -> tuple[storage.Path, str]:
  """Returns folder and name of a process's state below a checkpoint's folder `dataset`."""
  if processes > 1:
    folder = folder / f"process_{process}-of-{processes}"
  return folder, f"train_ds-{process:03d}-of-{processes:03d}"


class TrainIterator:
  """Iterates over batches on the devices, prefetched by a thread.

  Args:
    dataset: tf.data dataset of this process's rows of batches, starting with the batch of step 0.
    partitioner: The mesh.
    snapshot_period: Steps between saved iterator states, for `state`; None saves none, so that a
      restart rereads the data from the start, without training on it.
    ahead: Number of batches to prefetch.

  Attributes:
    element_spec: Spec of the dataset.
  """

  def __init__(
    self,
    dataset: Any,
    partitioner: partitioning.PjitPartitioner,
    *,
    snapshot_period: int | None = None,
    ahead: int = 2,
  ):
    self.element_spec = dataset.element_spec
    self._iterator = iter(dataset)
    self._partitioner = partitioner
    self._snapshot_period = snapshot_period
    self._position = 0  # step of the dataset's next batch, in the thread that reads
    self._snapshots = [DataState(0, None)]
    self._snapshot_steps: frozenset[int] = frozenset()
    self._folder = tempfile.TemporaryDirectory(prefix="vmsst_data_")
    # Batches that processes trim together, so that all of them have the same shapes.
    self._together = 1 if can_trim() else _TOGETHER
    self._trimmed: collections.deque[dict[str, jax.Array]] = collections.deque()
    self._queue: queue.Queue[Any] = queue.Queue(maxsize=max(ahead, self._together))
    self._closed = threading.Event()
    self._thread: threading.Thread | None = None

  def start(
    self, step: int, saved: DataState | None = None, *, snapshot_steps: Collection[int] = ()
  ) -> None:
    """Starts prefetching, from the batch of `step`.

    Args:
      step: First step of the run.
      saved: State to resume from; batches between it and `step` are read and dropped. None starts
        with the batch of step 0.
      snapshot_steps: Further steps to save the iterator state at.
    """
    self._snapshot_steps = frozenset(snapshot_steps)
    if saved is not None and saved.position <= step:
      self._restore(saved)
    if self._snapshot_period and self._position == step:
      self._snapshot()  # now, for a checkpoint before the first step
    if step > self._position:
      logging.info("Skipping %d batches that the run has trained on.", step - self._position)
    self._thread = threading.Thread(target=self._read, args=(step,), daemon=True, name="data")
    self._thread.start()

  def _restore(self, saved: DataState) -> None:
    import tensorflow as tf

    if saved.prefix is not None:
      try:
        with storage.local_copy(saved.prefix.parent) as folder:  # TensorFlow reads no s3://
          state = tf.train.Checkpoint(ds=self._iterator).read(str(folder / saved.prefix.name))
        state.assert_consumed()
      except (tf.errors.OpError, AssertionError, ValueError) as error:
        logging.warning("Cannot use the data iterator state %s (%s).", saved.prefix, error)
        return
    self._position = saved.position
    self._snapshots = [saved]

  def _read(self, step: int) -> None:
    try:
      while self._position < step and not self._closed.is_set():
        next(self._iterator)
        self._position += 1
      while not self._closed.is_set():
        if self._snapshot_period and (
          self._position % self._snapshot_period == 0 or self._position in self._snapshot_steps
        ):
          self._snapshot()
        batch = {name: np.asarray(value) for name, value in next(self._iterator).items()}
        self._position += 1
        alone = self._together == 1
        self._put(self._partitioner.to_devices(trim_padding(batch)) if alone else batch)
    except StopIteration:
      self._put(InputError("the training data ended: the dataset does not repeat; add .repeat()"))
    except BaseException as error:  # raised in the training thread
      self._put(error)

  def _put(self, item: Any) -> None:
    while not self._closed.is_set():
      try:
        return self._queue.put(item, timeout=0.2)
      except queue.Full:
        continue

  def _snapshot(self) -> None:
    import tensorflow as tf

    newest = self._snapshots[-1]
    if newest.position == self._position and newest.prefix is not None:
      return
    prefix = pathlib.Path(self._folder.name) / str(self._position)
    try:
      tf.train.Checkpoint(ds=self._iterator).write(str(prefix))
    except tf.errors.OpError as error:
      logging.warning(
        "The iterator state of this dataset cannot be saved (%s); a restart will reread the data.",
        str(error).splitlines()[0],
      )
      self._snapshot_period = None
      return
    self._snapshots.append(DataState(self._position, prefix))

  def state(self, step: int) -> DataState:
    """Returns the latest saved state at or before `step`; deletes older ones."""
    while len(self._snapshots) > 1 and self._snapshots[1].position <= step:
      old = self._snapshots.pop(0)
      if old.prefix is not None and old.prefix.parent == pathlib.Path(self._folder.name):
        for path in old.prefix.parent.glob(old.prefix.name + ".*"):
          path.unlink()
    return self._snapshots[0]

  def __iter__(self) -> Iterator[dict[str, jax.Array]]:
    return self

  def __next__(self) -> dict[str, jax.Array]:
    if self._together == 1:
      return self._take()
    if not self._trimmed:
      batches = [self._take() for _ in range(self._together)]
      eighths_here = np.array([used_eighths(batch) for batch in batches])
      all_processes = np.reshape(
        multihost_utils.process_allgather(eighths_here), [-1, self._together]
      )
      eighths = all_processes.max(axis=0)
      for batch, part in zip(batches, eighths.tolist(), strict=True):
        self._trimmed.append(self._partitioner.to_devices(trim_padding(batch, part)))
    return self._trimmed.popleft()

  def _take(self) -> Any:
    item = self._queue.get()
    if isinstance(item, BaseException):
      raise item
    return item

  def close(self) -> None:
    """Stops reading."""
    self._closed.set()
    if self._thread is not None:
      self._thread.join(timeout=10)
    self._folder.cleanup()
