"""Loads batches from SeqIO tasks onto the devices.

`TrainIterator` reads batches ahead in a thread, trims padding and moves the batches to the devices.
A run can save the iterator's state. If the run is later restarted with the same number of
processes, it sees the same batches as an uninterrupted run.
"""

import collections
import dataclasses
import itertools
import json
import queue
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Annotated, Any

import jax
import msgspec
import numpy as np
from absl import logging
from jax.experimental import multihost_utils

from vmsst import storage
from vmsst.errors import InputError
from vmsst.train import partitioning

Batch = Mapping[str, np.ndarray]

_LENGTH_SIXTEENTHS = (1, 2, 3, 4, 6, 8, 12, 16)  # fractions of the padded length to keep
_LENGTH_MULTIPLE = 4
_AHEAD = 2  # Number of batches to prefetch.
_TOGETHER = 16  # The processes agree on the trimmed lengths of this many batches at a time.


Length = Annotated[int, msgspec.Meta(ge=1)]
Seed = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]


@dataclasses.dataclass
class DatasetConfig:
  """A SeqIO task or mixture, and batching options (`t5x.utils.DatasetConfig`).

  Attributes:
    mixture_or_task_name: Name, or the Task or Mixture itself.
    task_feature_lengths: Maximum length of each feature. If None in an evaluation, the length of
      the longest example is used.
    split: Data split, such as "train".
    batch_size: Examples in the global batch.
    shuffle: Whether to shuffle.
    seed: Random seed for shuffling. If None, the seed is the current time, so every start of a run
      uses a new order.
    use_cached: Whether to read the task from SeqIO's offline cache.
    pack: Whether to pack several examples into one row; the feature converter must support it.
    use_custom_packing_ops: Passed to the feature converter.
    module: Module that registers the task; it is imported first.
    use_memory_cache: Whether SeqIO's evaluator keeps batches in memory.
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


def get_training_eval_datasets(
  cfg: DatasetConfig,
  shard_id: int,
  num_shards: int,
  eval_steps: int,
  feature_converter_cls: Callable[..., Any],
) -> dict[str, Any]:
  """Returns `eval_steps` batches for the mixture and for each of its tasks that has `cfg.split`.

  As in upstream T5X, the examples of a small task are repeated until there are `eval_steps` full
  batches. Each dataset's `as_numpy_iterator()` yields this shard's rows of each batch.
  """
  import seqio

  from vmsst.data import loader

  provider = loader.get_mixture_or_task(cfg)
  tasks = [task for task in seqio.get_subtasks(provider) if cfg.split in task.splits]
  providers = [*tasks, *([provider] if isinstance(provider, seqio.Mixture) and tasks else [])]
  share = cfg.batch_size // num_shards
  rows = slice(shard_id * share, (shard_id + 1) * share)

  def load(provider: Any) -> EvalBatches:
    batches = loader.get_batches(
      dataclasses.replace(cfg, mixture_or_task_name=provider),
      shard_id=0,
      num_shards=1,
      feature_converter_cls=feature_converter_cls,
      num_epochs=eval_steps * cfg.batch_size,  # A finite number avoids a hang on empty tasks.
    )
    return EvalBatches(batches, eval_steps, rows if num_shards > 1 else None)

  return {provider.name: load(provider) for provider in providers}


@dataclasses.dataclass
class EvalBatches:
  """The first batches of a dataset, optionally restricted to some rows of each batch.

  Each process selects its own rows of a batch. Padding is trimmed before that, so that batches have
  the same length in all processes.

  Attributes:
    batches: An iterator with a method `reset` to start over.
    count: Number of batches.
    rows: The rows of each batch (default: all).
  """

  batches: Any
  count: int
  rows: slice | None = None

  def as_numpy_iterator(self) -> Iterator[Batch]:
    """Returns an iterator that starts at the first batch."""
    self.batches.reset()
    batches: Iterator[Batch] = itertools.islice(self.batches, self.count)
    if self.rows is not None:
      batches = (take_rows(trim_padding(batch), self.rows) for batch in batches)
    return batches


def take_rows(batch: Batch, rows: slice | np.ndarray) -> dict[str, np.ndarray]:
  """Returns the selected rows of every feature in `batch`."""
  return {name: value[rows] for name, value in batch.items()}


def used_sixteenths(batch: Batch) -> int:
  """Returns the smallest fraction of the padded length that keeps all tokens, in sixteenths.

  The returned number is 1, 2, 3, 4, 6, 8, 12 or 16. Integer features [B, ..., T] with T > 1
  are texts, padded to T tokens.
  """
  return next(
    sixteenths
    for sixteenths in _LENGTH_SIXTEENTHS
    if not any(value[..., cut:].any() for value, cut in _cuts(batch, sixteenths).values())
  )


def trim_padding(batch: Batch, sixteenths: int | None = None) -> dict[str, np.ndarray]:
  """Cuts off padding on the right of every text feature.

  Every text feature is cut to the same fraction of its padded length, rounded up to a multiple of 4
  tokens. With only eight possible fractions, batches have few different shapes. This saves time,
  because JAX compiles a separate step for each shape.

  Args:
    batch: The batch.
    sixteenths: The fraction to keep, in sixteenths (default: the smallest fraction that keeps all
      tokens, `used_sixteenths(batch)`).
  """
  cuts = _cuts(batch, used_sixteenths(batch) if sixteenths is None else sixteenths)
  return {**batch, **{name: value[..., :cut] for name, (value, cut) in cuts.items()}}


def _cuts(batch: Batch, sixteenths: int) -> dict[str, tuple[np.ndarray, int]]:
  """Returns the text features of a batch, and their trimmed lengths."""
  unit = 16 * _LENGTH_MULTIPLE
  return {
    name: (value, min(value.shape[-1], -(-value.shape[-1] * sixteenths // unit) * _LENGTH_MULTIPLE))
    for name, value in batch.items()
    if value.ndim > 1 and value.shape[-1] > 1 and np.issubdtype(value.dtype, np.integer)
  }


def can_trim() -> bool:
  """Returns whether this process may trim batches independently of other processes."""
  return jax.process_count() == 1


@dataclasses.dataclass
class DataState:
  """State of the data iterator before it reads the batch for a step.

  Attributes:
    position: The step number.
    dataset: Dataset state, or None at the start of the data.
  """

  position: int
  dataset: Any

  def copy_to(self, folder: storage.Path, process: int, processes: int) -> None:
    """Writes the state below `folder`, at the path that upstream T5X expects."""
    path = _state_path(folder, process, processes)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"batches": self.position, "dataset": self.dataset}))

  @classmethod
  def read_from(cls, folder: storage.Path, process: int, processes: int) -> "DataState | None":
    """Returns the state in `folder`, or None if `folder` has no state for this process.

    If the run that wrote `folder` had a different number of processes, its states cannot be used,
    because its processes read other rows. In this case, logs a warning and returns None.
    """
    path = _state_path(folder, process, processes)
    if path.is_file():
      record = json.loads(path.read_text())
      return cls(record["batches"], record["dataset"])
    names = storage.names(folder)
    # State files are directly in `folder`, or in one subfolder per process.
    if any(name.startswith("train_ds-") or storage.names(folder / name) for name in names):
      logging.warning(
        "The data iterator state in %s is not from a run with %d processes, so the order of the "
        "data changes. The run skips as many batches as it has trained on; some rows may repeat.",
        folder,
        processes,
      )
    return None


def _state_path(folder: storage.Path, process: int, processes: int) -> storage.Path:
  """Returns the path of a process's state below the `dataset` folder in a checkpoint."""
  if processes > 1:
    folder = folder / f"process_{process}-of-{processes}"
  return folder / f"train_ds-{process:03d}-of-{processes:03d}"


class TrainIterator:
  """Yields batches on the devices. A thread reads the batches ahead.

  Args:
    batches: This process's rows of each batch, starting at step 0. Either an iterator with the
      methods of `vmsst.data.loader.BatchIterator`, or a tf.data dataset.
    partitioner: Provides the device mesh.
    save_state: Whether `state` returns the current state. If false, `state` always returns the
      state at the start of the run, so a restarted run reads the same batches again and drops them.

  Attributes:
    element_spec: Shape and dtype of each column of a batch.
  """

  def __init__(
    self, batches: Any, partitioner: partitioning.PjitPartitioner, *, save_state: bool = True
  ):
    if hasattr(batches, "as_numpy_iterator"):
      from vmsst.data import loader

      batches = loader.from_tensorflow(batches)
    self.element_spec = batches.element_spec
    self._batches = batches
    self._partitioner = partitioner
    self._save_state = save_state
    self._first = DataState(0, None)
    self._state: DataState | None = None  # None before the first batch
    # The processes agree on the shapes of this many batches at a time.
    self._together = 1 if can_trim() else _TOGETHER
    self._trimmed: collections.deque[tuple[DataState, dict[str, jax.Array]]] = collections.deque()
    self._queue: queue.Queue[Any] = queue.Queue(maxsize=max(_AHEAD, self._together))
    self._closed = threading.Event()
    self._thread: threading.Thread | None = None

  def start(self, step: int, saved: DataState | None = None) -> None:
    """Starts prefetching with the batch for `step`.

    Args:
      step: First step of the run.
      saved: State to resume from (default: the state at step 0). Batches between this state and
        `step` are read and dropped.
    """
    if saved is not None and saved.position <= step:
      try:
        if saved.dataset is not None:
          self._batches.set_state({"batches": saved.position, "dataset": saved.dataset})
        self._first = saved
      except (KeyError, TypeError, ValueError, IndexError) as error:
        logging.warning(
          "Cannot use the data iterator state of step %d (%r); the data is read from the start.",
          saved.position,
          error,
        )
        self._batches.reset()
    self._thread = threading.Thread(target=self._read, args=(step,), daemon=True, name="data")
    self._thread.start()

  def _read(self, step: int) -> None:
    """Queues the state before the batch for `step`, then each batch and the state after it."""
    position = self._first.position
    batch: Any = None
    try:
      if step > position:
        logging.info("Skipping %d batches that the run has trained on.", step - position)
      while not self._closed.is_set():
        if position >= step:
          self._put((DataState(position, self._batches.state()["dataset"]), batch))
        batch = {name: np.asarray(value) for name, value in next(self._batches).items()}
        position += 1
        if position > step and self._together == 1:
          batch = self._partitioner.to_devices(trim_padding(batch))
    except StopIteration:
      self._put(InputError("the training data ended because it does not repeat; add .repeat()"))
    except BaseException as error:  # The training thread raises this error.
      self._put(error)

  def _put(self, item: Any) -> None:
    while not self._closed.is_set():
      try:
        return self._queue.put(item, timeout=0.2)
      except queue.Full:
        continue

  def state(self) -> DataState:
    """Returns the state before the next batch."""
    if self._state is None:
      self._state, _ = self._take()
    return self._state if self._save_state else self._first

  def __iter__(self) -> Iterator[dict[str, jax.Array]]:
    return self

  def __next__(self) -> dict[str, jax.Array]:
    self.state()
    if self._together == 1:
      self._state, batch = self._take()
      return batch
    if not self._trimmed:
      items = [self._take() for _ in range(self._together)]
      local_sixteenths = np.array([used_sixteenths(batch) for _, batch in items])
      gathered = np.asarray(multihost_utils.process_allgather(local_sixteenths))
      largest = gathered.reshape(-1, self._together).max(axis=0).tolist()
      for (state, batch), sixteenths in zip(items, largest, strict=True):
        self._trimmed.append((state, self._partitioner.to_devices(trim_padding(batch, sixteenths))))
    self._state, batch = self._trimmed.popleft()
    return batch

  def _take(self) -> Any:
    item = self._queue.get()
    if isinstance(item, BaseException):
      raise item
    return item

  def close(self) -> None:
    """Stops the prefetching thread."""
    self._closed.set()
    if self._thread is not None:
      self._thread.join(timeout=10)
