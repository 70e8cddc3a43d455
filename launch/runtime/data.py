"""Loads batches of SeqIO tasks onto the devices.

`TrainIterator` prefetches in a thread, trims padding and moves batches to the devices. Its state
can be saved, so that a restarted run sees the same batches as an uninterrupted one.
"""

import dataclasses
import importlib
import json
import pathlib
import queue
import re
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Annotated, Any

import jax
import numpy as np
from absl import logging
from jax.experimental import multihost_utils

from vmsst import errors
from vmsst.errors import InputError, Range, Seed
from vmsst.files import storage
from vmsst.launch.runtime import partitioning
from vmsst.tasks import lanes

Batch = Mapping[str, np.ndarray]

_LENGTH_EIGHTHS = (2, 3, 4, 6, 8)  # the lengths to trim batches to
_LENGTH_MULTIPLE = 4


Length = Annotated[int, Range(1)]


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
  batch_size: Annotated[int, Range(1)]
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
  splits = sorted(get_mixture_or_task(cfg).splits)
  if split and split[0] not in splits:
    raise InputError(
      f"{cfg.mixture_or_task_name!r} has no split {cfg.split!r}; set one of {', '.join(splits)}"
    )


def get_mixture_or_task(cfg: DatasetConfig) -> Any:
  """Returns the SeqIO Task or Mixture that `cfg` names.

  Raises:
    InputError: No such task or mixture is registered.
  """
  import seqio

  if cfg.module:
    importlib.import_module(cfg.module)
  provider = cfg.mixture_or_task_name
  if isinstance(provider, seqio.DatasetProviderBase):
    return provider
  label = "utils.DatasetConfig.mixture_or_task_name"
  errors.check(isinstance(provider, str), label, provider, "the name of a task or mixture")
  try:
    return seqio.get_mixture_or_task(provider)
  except ValueError as error:
    known = sorted({*seqio.TaskRegistry.names(), *seqio.MixtureRegistry.names()})
    raise InputError(
      f"no task or mixture {provider!r} is registered; known: {', '.join(known) or 'none'}. Import "
      "the module that registers it in the gin file, or check MIXTURE_OR_TASK_NAME"
    ) from error


def time_seed() -> int:
  """Returns the time as a seed, the same one in all processes."""
  return int(multihost_utils.broadcast_one_to_all(np.int32(time.time())))


def get_dataset(
  cfg: DatasetConfig,
  shard_id: int,
  num_shards: int,
  feature_converter_cls: Callable[..., Any],
  num_epochs: int | None = None,
) -> Any:
  """Returns a tf.data dataset of batches of model features, [batch / num_shards, ...] each.

  Raises:
    InputError: The task is unknown, or the batch size is not divisible by the number of shards.
  """
  import seqio

  provider = get_mixture_or_task(cfg)
  if cfg.batch_size % num_shards:
    raise InputError(
      f"BATCH_SIZE={cfg.batch_size} is not divisible by {num_shards} data shards; choose a multiple"
    )
  return seqio.get_dataset(
    mixture_or_task_name=provider,
    task_feature_lengths=cfg.task_feature_lengths,
    dataset_split=cfg.split,
    shuffle=cfg.shuffle,
    num_epochs=num_epochs,
    feature_converter=feature_converter_cls(
      pack=cfg.pack, use_custom_packing_ops=cfg.use_custom_packing_ops
    ),
    shard_info=seqio.ShardInfo(index=shard_id, num_shards=num_shards),
    use_cached=cfg.use_cached,
    seed=time_seed() if cfg.seed is None else cfg.seed,
    trim_output_features=cfg.trim_output_features,
    batch_size=cfg.batch_size // num_shards,
  )


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

  provider = get_mixture_or_task(cfg)
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


def trim_padding(batch: Batch) -> dict[str, np.ndarray]:
  """Returns `batch` without columns that are padding in every row.

  All rank-2 integer features [B, T] keep the same fraction of their length: 2, 3, 4, 6 or 8
  eighths, rounded up to a multiple of 4, so that few shapes are compiled.
  """
  sequences = {
    name: value
    for name, value in batch.items()
    if value.ndim == 2 and value.shape[1] > 1 and np.issubdtype(value.dtype, np.integer)
  }

  def cut_length(length: int, eighths: int) -> int:
    return min(length, -(-length * eighths // (8 * _LENGTH_MULTIPLE)) * _LENGTH_MULTIPLE)

  def fits(eighths: int) -> bool:
    return not any(v[:, cut_length(v.shape[1], eighths) :].any() for v in sequences.values())

  eighths = next(part for part in _LENGTH_EIGHTHS if fits(part))
  return {
    name: value[:, : cut_length(value.shape[1], eighths)] if name in sequences else value
    for name, value in batch.items()
  }


def can_trim() -> bool:
  """Returns whether this process may trim its batches: all processes need the same shapes."""
  return jax.process_count() == 1


@dataclasses.dataclass
class DataState:
  """Data iterator state: the iterator's saved state before the batch of step `position`.

  Attributes:
    position: Step of the next batch.
    prefix: Path prefix of the files of tf.train.Checkpoint; None if a fresh iterator is at
      `position`, or if there are `lanes`.
    whole: Whether every process reads whole batches, so that the state fits any number of
      processes. Otherwise it is the state of this process's part of the batches.
    lanes: State of the lanes that this process reads, or of all; see `tasks.sharded_batches`.
  """

  position: int
  prefix: storage.Path | None
  whole: bool = False
  lanes: Mapping[str, Any] | None = None

  def copy_to(self, folder: storage.Path, process: int, processes: int) -> None:
    """Writes the state below `folder`, under upstream T5X's names, and a JSON file next to it.

    Upstream assumes that the state is that of the checkpoint's step and ignores the JSON file. Only
    the first process writes a state of whole batches, as in a single-process run. The parts of the
    state of lanes are for `join_lanes`.
    """
    if self.whole:
      if process:
        return
      processes = 1
    folder, name = _state_path(folder, process, processes)
    folder.mkdir(parents=True, exist_ok=True)
    if self.prefix is not None:
      for path in self.prefix.parent.glob(self.prefix.name + ".*"):
        if path.suffix != ".json":
          target = folder / (name + path.name[len(self.prefix.name) :])
          target.write_bytes(path.read_bytes())
    description: dict[str, Any] = {"batches": self.position, "saved": self.prefix is not None}
    if self.whole:
      description["whole_batches"] = True
    if self.lanes is not None:
      description["lanes"] = self.lanes
    (folder / (name + ".json")).write_text(json.dumps(description))

  @classmethod
  def join_lanes(cls, folder: storage.Path) -> None:
    """Joins the states that all processes wrote below `folder`, if they are of lanes.

    The result is the state of a single process that reads whole batches, which any number of
    processes can read.
    """
    parts = sorted(folder.glob("process_*/*.json"))
    states = [cls._parse(part, None) for part in parts]
    if not states or any(state.lanes is None for state in states):
      return
    whole = lanes.joined([state.lanes for state in states if state.lanes is not None])
    cls(states[0].position, None, True, whole).copy_to(folder, 0, 1)
    for part in parts:
      part.unlink()
      if not storage.is_url(part):
        part.parent.rmdir()

  @classmethod
  def read_from(cls, folder: storage.Path, process: int, processes: int) -> "DataState | None":
    """Returns the state in `folder`, or None if there is none for this process.

    A state of whole batches is for all processes. Any other is only for the number of processes
    that saved it, since another number reads other rows: returns None then, with a warning.

    A state saved by upstream T5X has no JSON file. It is that of the checkpoint's step, which ends
    the name of the parent of `folder`. At step 0 it is one batch ahead; returns None then.
    """
    state = cls._read(folder, process, processes)
    if state is None and processes > 1:
      alone = cls._read(folder, 0, 1)
      state = alone if alone is not None and alone.whole else None
    mine = _state_path(folder, process, processes)[1]
    if state is None and any(not name.startswith(mine) for name in _state_names(folder)):
      logging.warning(
        "The data iterator state in %s is not of %d processes; the data starts over, so rows may "
        "repeat before all others are seen.",
        folder,
        processes,
      )
    return state

  @classmethod
  def _read(cls, folder: storage.Path, process: int, processes: int) -> "DataState | None":
    """Returns the state that process `process` of `processes` saved."""
    checkpoint = folder.parent.name
    folder, name = _state_path(folder, process, processes)
    prefix = folder / name if (folder / (name + ".index")).is_file() else None
    description = folder / (name + ".json")
    if not description.is_file():
      step = int(checkpoint.rpartition("_")[2]) if prefix else 0
      return cls(step, prefix) if step else None
    return cls._parse(description, prefix)

  @classmethod
  def _parse(cls, description: storage.Path, prefix: storage.Path | None) -> "DataState":
    """Returns the state that a JSON file describes."""
    try:
      record = json.loads(description.read_text())
      position, saved = int(record["batches"]), bool(record["saved"])
      if saved and prefix is None:
        raise ValueError("files are missing")
      own = record.get("lanes")
      if own is not None:
        lanes.Lanes.from_json(own)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
      raise InputError(
        f"{description} is damaged; delete the folder {description.parent} to replay the data "
        "instead"
      ) from error
    return cls(position, prefix, bool(record.get("whole_batches")), own)


def _state_names(folder: storage.Path) -> Iterator[str]:
  """Yields the names of all files of data iterator states below a checkpoint's folder `dataset`."""
  for name in sorted(storage.names(folder)):
    yield from [name] if name.startswith("train_ds-") else storage.names(folder / name)


def _state_path(folder: storage.Path, process: int, processes: int) -> tuple[storage.Path, str]:
  """Returns folder and name of a process's state below a checkpoint's folder `dataset`."""
  if processes > 1:
    folder = folder / f"process_{process}-of-{processes}"
  return folder, f"train_ds-{process:03d}-of-{processes:03d}"


class TrainIterator:
  """Iterates over batches on the devices, prefetched by a thread.

  Args:
    dataset: tf.data dataset of this process's rows of batches, starting with the batch of step 0.
      If it has the attributes `whole_batches` and `rows_of_whole` (see
      `tasks.datasets.get_global_batches`), reads and trims whole batches, then takes these
      rows. Instead of tf.data, it may be one of `tasks.sharded_batches`, whose iterators have
      `get_state`, `set_state` and `close`.
    partitioner: The mesh.
    snapshot_period: Steps between saved iterator states, for `state`; None saves none, so that a
      restart rereads the data from the start, without training on it. The state of lanes, which is
      small, is saved at every step, unless this is None.
    ahead: Number of batches to prefetch to the devices.

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
    self._rows: slice | None = getattr(dataset, "rows_of_whole", None)
    self._whole = self._rows is not None
    self._iterator = iter(dataset.whole_batches if self._whole else dataset)
    self._has_lanes = hasattr(self._iterator, "set_state")
    self._partitioner = partitioner
    if self._whole and jax.process_index() > 0:
      snapshot_period = None  # the first process writes the same state
    if self._has_lanes and snapshot_period is not None:
      snapshot_period = 1
    self._snapshot_period = snapshot_period
    self._position = 0  # step of the dataset's next batch, in the thread that reads
    self._snapshots = [DataState(0, None, self._whole or self._has_lanes)]
    self._snapshot_steps: frozenset[int] = frozenset()
    self._folder = tempfile.TemporaryDirectory(prefix="vmsst_data_")
    self._queue: queue.Queue[Any] = queue.Queue(maxsize=ahead)
    self._lane_states = ahead + 50  # more than the steps between reading and training
    self._lock = threading.Lock()  # of the saved states
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

    if saved.lanes is not None:
      try:
        if not self._has_lanes:
          raise ValueError("it is of sharded batches; this run reads others")
        self._iterator.set_state(saved.lanes)
      except ValueError as error:
        logging.warning("Cannot use the data iterator state of the checkpoint: %s.", error)
        return
    elif saved.prefix is not None:
      try:
        if self._has_lanes:
          raise ValueError("it is not of sharded batches, which this run reads")
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
        if self._whole or can_trim():
          batch = trim_padding(batch)
        if self._rows is not None:
          batch = take_rows(batch, self._rows)
        self._put(self._partitioner.to_devices(batch))
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
    if newest.position == self._position and (newest.prefix or newest.lanes) is not None:
      return
    if self._has_lanes:
      alone = jax.process_count() == 1
      state = DataState(self._position, None, alone, self._iterator.get_state())
      with self._lock:
        self._snapshots = [*self._snapshots[-self._lane_states :], state]
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
    self._snapshots.append(DataState(self._position, prefix, self._whole))

  def state(self, step: int) -> DataState:
    """Returns the latest saved state at or before `step`; deletes older ones."""
    with self._lock:
      while len(self._snapshots) > 1 and self._snapshots[1].position <= step:
        old = self._snapshots.pop(0)
        if old.prefix is not None and old.prefix.parent == pathlib.Path(self._folder.name):
          for path in old.prefix.parent.glob(old.prefix.name + ".*"):
            path.unlink()
      return self._snapshots[0]

  def __iter__(self) -> Iterator[dict[str, jax.Array]]:
    return self

  def __next__(self) -> dict[str, jax.Array]:
    item = self._queue.get()
    if isinstance(item, BaseException):
      raise item
    return item

  def close(self) -> None:
    """Stops reading."""
    self._closed.set()
    if self._thread is not None:
      self._thread.join(timeout=10)
    if self._has_lanes:
      self._iterator.close()
    self._folder.cleanup()
