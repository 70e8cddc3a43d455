"""From SeqIO tasks to batches on the devices.

`TrainIterator` reads ahead in a thread, cuts padding off, puts batches on the devices and can say
where it stands, so that a restarted run sees the batches it would have seen.
"""

import dataclasses
import importlib
import json
import pathlib
import queue
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import jax
import numpy as np
from absl import logging
from jax.experimental import multihost_utils

from vmsst.errors import InputError
from vmsst.launch.runtime import partitioning

Batch = Mapping[str, np.ndarray]

_LENGTH_EIGHTHS = (2, 3, 4, 6, 8)  # batches are cut to one of these parts of their length
_LENGTH_MULTIPLE = 4


@dataclasses.dataclass
class DatasetConfig:
  """A SeqIO task or mixture, and how to batch it (`t5x.utils.DatasetConfig`).

  Attributes:
    mixture_or_task_name: name, or the Task or Mixture itself.
    task_feature_lengths: maximum length of each feature, or None (evaluation: measured).
    split: split of the task.
    batch_size: examples in the global batch.
    shuffle: whether to shuffle.
    seed: seed of the shuffling; None takes the time, so that every start sees another order.
    use_cached: read the task from SeqIO's offline cache.
    pack: pack several examples into one row; needs a feature converter that can.
    use_custom_packing_ops: passed to the feature converter.
    module: module to import first, which registers the task.
    use_memory_cache: keep evaluation batches in memory.
    trim_output_features: cut features to their length.
  """

  mixture_or_task_name: Any
  task_feature_lengths: Mapping[str, int] | None
  split: str
  batch_size: int
  shuffle: bool
  seed: int | None
  use_cached: bool = False
  pack: bool = False
  use_custom_packing_ops: bool = False
  module: str | None = None
  use_memory_cache: bool = True
  trim_output_features: bool = True


def get_mixture_or_task(cfg: DatasetConfig) -> Any:
  """The SeqIO Task or Mixture that `cfg` names.

  Raises:
    InputError: nothing of that name is registered.
  """
  import seqio

  if cfg.module:
    importlib.import_module(cfg.module)
  provider = cfg.mixture_or_task_name
  if isinstance(provider, seqio.DatasetProviderBase):
    return provider
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
  continue_from_last_checkpoint: bool = False,
) -> Any:
  """A tf.data dataset of batches of model features, [batch / num_shards, ...] each.

  Raises:
    InputError: the task is unknown or the batch does not divide over the shards.
  """
  import seqio

  if continue_from_last_checkpoint:
    raise InputError("continue_from_last_checkpoint needs upstream T5X (--runtime=upstream)")
  provider = get_mixture_or_task(cfg)
  if cfg.batch_size % num_shards:
    raise InputError(f"batch size {cfg.batch_size} is not divisible by {num_shards} data shards")
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
  """`eval_steps` batches of every task of the mixture that has the split, and of the mixture.

  Small tasks are repeated to fill the batches, as upstream does. Each has `as_numpy_iterator()`,
  which gives the rows of this shard; with several, without the columns that are padding in all rows
  of the global batch.
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
      num_epochs=eval_steps * cfg.batch_size,  # finite: filtered-out shards must not hang
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
  """Some rows of every batch of a dataset, cut to the length that the whole batch needs."""

  batches: Any
  rows: slice

  def as_numpy_iterator(self) -> Iterator[Batch]:
    for batch in self.batches.as_numpy_iterator():
      yield take_rows(trim_padding(batch), self.rows)


def take_rows(batch: Batch, rows: slice | np.ndarray) -> dict[str, np.ndarray]:
  """`batch` with these rows alone."""
  return {name: value[rows] for name, value in batch.items()}


def trim_padding(batch: Batch) -> dict[str, np.ndarray]:
  """`batch` without the columns that are padding in every row.

  Rank-2 integer features [B, T] all keep the same part of their length: 2, 3, 4, 6 or 8 eighths,
  rounded up to a multiple of 4, so that few shapes are compiled.
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
  """Whether a process may trim what it reads: all must have the same shapes."""
  return jax.process_count() == 1


@dataclasses.dataclass
class DataState:
  """Where the data stands: the iterator's saved state when the next batch is that of `position`.

  Attributes:
    position: step that the next batch belongs to.
    prefix: path prefix of the files that tf.train.Checkpoint wrote; None: a fresh iterator
      stands at `position`.
    whole: whether it is a state of whole batches, which every process of a run reads: then it is
      good for any number of processes. Else it is a state of what this process reads of them.
  """

  position: int
  prefix: pathlib.Path | None
  whole: bool = False

  def copy_to(self, folder: pathlib.Path, process: int, processes: int) -> None:
    """Writes the state below `folder`, under the names upstream T5X uses, and a JSON file beside.

    Upstream takes the state to be that of the checkpoint's step, and has no use for the JSON file.
    A state of whole batches is written by the first process alone, as if there were no other.
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
          shutil.copyfile(path, folder / (name + path.name[len(self.prefix.name) :]))
    description = {"batches": self.position, "saved": self.prefix is not None}
    if self.whole:
      description["whole_batches"] = True
    (folder / (name + ".json")).write_text(json.dumps(description))

  @classmethod
  def read_from(cls, folder: pathlib.Path, process: int, processes: int) -> "DataState | None":
    """The state in `folder`, or None where it holds none for this process.

    A state of whole batches is for every process. Any other is for that number of processes that
    saved it: another number reads other rows, so that there is None to go on from, with a warning.

    A state that upstream T5X saved has no JSON file and is that of the checkpoint's step, which
    ends the name of the folder around `folder`; but at step 0 it is one batch ahead, and None.
    """
    state = cls._read(folder, process, processes)
    if state is None and processes > 1:
      alone = cls._read(folder, 0, 1)
      state = alone if alone is not None and alone.whole else None
    mine = _state_path(folder, process, processes)[1]
    if state is None and any(not p.name.startswith(mine) for p in folder.glob("**/train_ds-*")):
      logging.warning(
        "The data's state in %s is not of %d processes: the data is read from the beginning, and "
        "rows that were trained on may come again before others.",
        folder,
        processes,
      )
    return state

  @classmethod
  def _read(cls, folder: pathlib.Path, process: int, processes: int) -> "DataState | None":
    """The state that this one of so many processes saved."""
    checkpoint = folder.parent.name
    folder, name = _state_path(folder, process, processes)
    prefix = folder / name if (folder / (name + ".index")).is_file() else None
    description = folder / (name + ".json")
    if not description.is_file():
      step = int(checkpoint.rpartition("_")[2]) if prefix else 0
      return cls(step, prefix) if step else None
    try:
      record = json.loads(description.read_text())
      position, saved = int(record["batches"]), bool(record["saved"])
      if saved and prefix is None:
        raise ValueError("files are missing")
    except (ValueError, KeyError, TypeError) as error:
      raise InputError(
        f"{description} is damaged: delete the folder {folder} to replay the data instead"
      ) from error
    return cls(position, prefix, bool(record.get("whole_batches")))


def _state_path(folder: pathlib.Path, process: int, processes: int) -> tuple[pathlib.Path, str]:
  """Folder and name of a process's state below a checkpoint's folder `dataset`."""
  if processes > 1:
    folder = folder / f"process_{process}-of-{processes}"
  return folder, f"train_ds-{process:03d}-of-{processes:03d}"


class TrainIterator:
  """Batches on the devices, read ahead by a thread.

  Args:
    dataset: tf.data dataset of this process's rows of batches; the first batch is that of step 0.
      Where it has the attributes `whole_batches` and `rows_of_whole` (see
      `tasks.datasets.get_length_grouped_dataset`), whole batches are read, trimmed and then cut.
    partitioner: places the batches.
    snapshot_period: save the state of the iterator every so many steps, for `state`; None: never
      (a restart then reads the data again from the beginning, without training on it).
    ahead: batches held ready on the devices.

  Attributes:
    element_spec: the dataset's.
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
    self._partitioner = partitioner
    if self._whole and jax.process_index() > 0:
      snapshot_period = None  # the first process has the same state, and writes it
    self._snapshot_period = snapshot_period
    self._position = 0  # step of the dataset's next batch, in whichever thread reads it
    self._snapshots = [DataState(0, None, self._whole)]
    self._snapshot_steps: frozenset[int] = frozenset()
    self._folder = tempfile.TemporaryDirectory(prefix="vmsst_data_")
    self._queue: queue.Queue[Any] = queue.Queue(maxsize=ahead)
    self._closed = threading.Event()
    self._thread: threading.Thread | None = None

  def start(
    self, step: int, saved: DataState | None = None, *, snapshot_steps: Collection[int] = ()
  ) -> None:
    """Begins reading ahead, from the batch of `step`.

    Args:
      step: step that the run starts from.
      saved: state to continue from; the batches between it and `step` are read and dropped. None:
        the dataset begins with the batch of step 0.
      snapshot_steps: further steps to save the state of the iterator at.
    """
    self._snapshot_steps = frozenset(snapshot_steps)
    if saved is not None and saved.position <= step:
      self._restore(saved)
    if self._snapshot_period and self._position == step:
      self._snapshot()  # here, so that a checkpoint before the first step has it
    if step > self._position:
      logging.info("Skipping %d batches that were trained on before.", step - self._position)
    self._thread = threading.Thread(target=self._read, args=(step,), daemon=True, name="data")
    self._thread.start()

  def _restore(self, saved: DataState) -> None:
    import tensorflow as tf

    if saved.prefix is not None:
      try:
        tf.train.Checkpoint(ds=self._iterator).read(str(saved.prefix)).assert_consumed()
      except (tf.errors.OpError, AssertionError, ValueError) as error:
        logging.warning("Cannot use the saved data state %s (%s).", saved.prefix, error)
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
        batch = {name: value.numpy() for name, value in next(self._iterator).items()}
        self._position += 1
        if self._whole or can_trim():
          batch = trim_padding(batch)
        if self._rows is not None:
          batch = take_rows(batch, self._rows)
        self._put(self._partitioner.to_devices(batch))
    except StopIteration:
      self._put(InputError("the training data ended: the dataset does not repeat"))
    except BaseException as error:  # handed to the training thread, which raises it
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
        "This dataset's state cannot be saved (%s): a restart will read it from the beginning.",
        str(error).splitlines()[0],
      )
      self._snapshot_period = None
      return
    self._snapshots.append(DataState(self._position, prefix, self._whole))

  def state(self, step: int) -> DataState:
    """The latest saved state at or before `step`; older ones are forgotten."""
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
    self._folder.cleanup()
