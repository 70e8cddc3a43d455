"""Training batches of which each host reads and tokenizes only its own rows.

A replacement of `datasets.get_global_batches` for datasets of ArrayRecord files, which can be read
in any order. Row r of every batch is lane r: see `lanes`. A host reads the lanes of its rows, so
that batches do not depend on the number of hosts, and a saved place of every lane is where to
resume, on any number of hosts.
"""

import collections
import concurrent.futures
import dataclasses
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import seqio
import tensorflow as tf

from vmsst import errors
from vmsst.tasks import datasets, global_order, lanes, random_access

READ_AHEAD = 8192
"""Rows that a host reads ahead, at least; or those of two batches, if that is more."""
_CHUNK = 1024  # Rows that are read together: fewer take more time each.
_WORKERS = 4
_DROPPED = 10_000  # Rows of a lane that may be left out in sequence.


def get_sharded_batches(
  cfg: Any,
  shard_id: int,
  num_shards: int,
  feature_converter_cls: Callable[..., seqio.FeatureConverter],
  *,
  group_by_length: bool = False,
  one_language_pair: bool = False,
) -> "ShardedBatches":
  """Returns this host's rows of training batches; bind to `train_script.train.get_dataset_fn`.

  The sequence of batches depends on the seed and the batch size. Tasks of a mixture are read at
  their rates; rows that do not fit are left out afterward.

  Args:
    cfg: A `DatasetConfig` of T5X, or an object with its fields. All tasks must be of datasets of
      `vmsst data build --format array_record`.
    shard_id: Number of this host's share.
    num_shards: Number of shares.
    feature_converter_cls: The model's feature converter.
    group_by_length: Must be False: rows of other hosts would be needed.
    one_language_pair: Must be False, for the same reason.

  Raises:
    InputError: the batch size is not a multiple of `num_shards`, or another value is wrong; files
      are missing, damaged or of another format.
  """
  for name, value in (
    ("group_by_length", group_by_length),
    ("one_language_pair", one_language_pair),
  ):
    if value:
      raise errors.InputError(
        f"{name} needs the rows of all hosts; set it to False, or bind "
        "train_script.train.get_dataset_fn = @datasets.get_global_batches"
      )
  for name in ("pack", "use_cached"):
    if getattr(cfg, name):
      raise errors.InputError(
        f"DatasetConfig.{name} is not supported by get_sharded_batches; do not set it"
      )
  if not cfg.task_feature_lengths:
    raise errors.InputError("get_sharded_batches needs DatasetConfig.task_feature_lengths; set it")
  datasets.check_batch_size(cfg.batch_size, num_shards)
  provider = datasets.mixture_or_task(cfg)
  tasks = [task for task in seqio.get_subtasks(provider) if cfg.split in task.splits]
  rates = [float(provider.get_rate(x)) if isinstance(provider, seqio.Mixture) else 1 for x in tasks]
  seed = datasets.shared_seed() if cfg.seed is None else int(cfg.seed)
  converter = feature_converter_cls(pack=False, use_custom_packing_ops=cfg.use_custom_packing_ops)
  size = cfg.batch_size // num_shards
  examples = random_access.Examples(
    tasks,
    cfg.split,
    cfg.task_feature_lengths,
    lambda rows: converter(rows, cfg.task_feature_lengths),
    trim=cfg.trim_output_features,
  )
  described = [cfg.split, bool(cfg.shuffle), examples.counts, rates]
  start = lanes.Lanes(
    order=hashlib.blake2b(json.dumps(described).encode(), digest_size=16).hexdigest(),
    seed=seed,
    batch_size=cfg.batch_size,
    first=shard_id * size,
    passed=(0,) * size,
  )
  return ShardedBatches(
    examples=examples,
    rates=rates,
    start=start,
    shuffle=cfg.shuffle,
    seed_is_given=cfg.seed is not None,
  )


@dataclasses.dataclass(frozen=True, kw_only=True)
class ShardedBatches:
  """Some rows of endless batches; see `get_sharded_batches`.

  Attributes:
    examples: Makes the examples of all tasks.
    rates: Rates of the tasks.
    start: State before the first batch.
    shuffle: Whether to shuffle.
    seed_is_given: Whether a state of another seed is refused; otherwise its seed is used.
  """

  examples: random_access.Examples
  rates: Sequence[float]
  start: lanes.Lanes
  shuffle: bool
  seed_is_given: bool

  @property
  def element_spec(self) -> dict[str, tf.TensorSpec]:
    """Spec of these rows of a batch."""
    size = len(self.start.passed)
    specs = self.examples.element_spec.items()
    return {name: tf.TensorSpec([size, *spec.shape], spec.dtype) for name, spec in specs}

  def __iter__(self) -> "ShardedIterator":
    return ShardedIterator(self)


class ShardedIterator:
  """Iterates over batches; reads ahead in threads.

  Its state, of `get_state` and `set_state` as in Grain, is that of its lanes; `lanes.joined` makes
  the state of all lanes out of those of all hosts. Each host can be given that.

  Attributes:
    rows_read: Number of rows read so far.
  """

  def __init__(self, batches: ShardedBatches):
    self._batches = batches
    self._spec = batches.element_spec
    self.rows_read = 0
    self._pool: concurrent.futures.ThreadPoolExecutor | None = None
    self._start(batches.start)

  def _start(self, state: lanes.Lanes) -> None:
    self.close()
    self._state = state
    self._order = global_order.GlobalOrder(
      self._batches.examples.counts,
      self._batches.rates,
      state.seed if self._batches.shuffle else None,
    )
    size = len(state.passed)
    self._ahead = max(-(-READ_AHEAD // size), 2)
    self._passed_B = np.array(state.passed, np.int64)  # before the next row of the next batch
    self._asked_B = self._passed_B.copy()  # before the next row to read
    self._dropped_B = np.zeros(size, np.int64)  # since the last row that fits
    # A ring of rows that are ready, in each lane, and the number of places passed after each.
    self._count_B = np.zeros(size, np.int64)
    self._head_B = np.zeros(size, np.int64)
    self._place_BA = np.zeros([size, self._ahead], np.int64)
    self._ready: dict[str, np.ndarray] = {
      name: np.zeros([size, self._ahead, *spec.shape[1:]], spec.dtype.as_numpy_dtype)
      for name, spec in self._spec.items()
    }
    self._pending_B = np.zeros(size, np.int64)  # rows that are being read
    self._chunks: collections.deque[tuple[np.ndarray, np.ndarray, Any]] = collections.deque()

  def __iter__(self) -> "ShardedIterator":
    return self

  def __next__(self) -> dict[str, np.ndarray]:
    self._read_ahead()
    while not self._count_B.all():
      if not self._chunks:
        self._submit()
      self._receive()
      self._read_ahead()
    lane_B = np.arange(len(self._count_B))
    batch = {name: rows[lane_B, self._head_B] for name, rows in self._ready.items()}
    self._passed_B = self._place_BA[lane_B, self._head_B]
    self._head_B = (self._head_B + 1) % self._ahead
    self._count_B -= 1
    return batch

  def _read_ahead(self) -> None:
    missing = self._ahead * len(self._count_B) - int((self._count_B + self._pending_B).sum())
    for _ in range(missing // _CHUNK):
      self._submit()

  def _submit(self) -> None:
    """Starts reading a chunk of rows: those of the lanes with the fewest."""
    have_B = self._count_B + self._pending_B
    found: list[np.ndarray] = []
    wanted = _CHUNK
    while wanted and have_B.min() < self._ahead:
      lane_K = np.flatnonzero(have_B == have_B.min())[:wanted]
      have_B[lane_K] += 1
      found.append(lane_K)
      wanted -= len(lane_K)
    lane_N = np.sort(np.concatenate(found))
    place_N = self._asked_B[lane_N] + _number_in_group(lane_N)
    np.add.at(self._asked_B, lane_N, 1)
    np.add.at(self._pending_B, lane_N, 1)
    self.rows_read += len(lane_N)
    if self._pool is None:
      self._pool = concurrent.futures.ThreadPoolExecutor(_WORKERS, "rows")
    self._chunks.append((lane_N, place_N, self._pool.submit(self._read, lane_N, place_N)))

  def _read(
    self, lane_N: np.ndarray, place_N: np.ndarray
  ) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Returns which of the rows at places of lanes are examples, and their features."""
    global_N = place_N * self._state.batch_size + self._state.first + lane_N
    task_N, row_N = self._order.locate(global_N)
    return self._batches.examples.read(task_N, row_N)

  def _receive(self) -> None:
    """Waits for the first chunk, and puts its rows into the rings."""
    lane_N, place_N, chunk = self._chunks.popleft()
    index_M, found = chunk.result()
    np.subtract.at(self._pending_B, lane_N, 1)
    self._count_dropped(lane_N, index_M)
    lane_M = lane_N[index_M]
    number_M = self._count_B[lane_M] + _number_in_group(lane_M)
    slot_M = (self._head_B[lane_M] + number_M) % self._ahead
    self._place_BA[lane_M, slot_M] = place_N[index_M] + 1
    for name, rows in found.items():
      self._ready[name][lane_M, slot_M] = rows
    np.add.at(self._count_B, lane_M, 1)

  def _count_dropped(self, lane_N: np.ndarray, index_M: np.ndarray) -> None:
    np.add.at(self._dropped_B, lane_N, 1)
    self._dropped_B[lane_N[index_M]] = 0
    if self._dropped_B.max() > _DROPPED:
      raise errors.InputError(
        f"the last {_DROPPED} rows read for one row of the batches do not fit; check the length "
        "limit of the task (MAX_PAIR_LENGTH)"
      )

  def get_state(self) -> dict[str, Any]:
    """Returns the state before the next batch, as JSON."""
    return dataclasses.replace(self._state, passed=tuple(self._passed_B.tolist())).to_json()

  def set_state(self, state: Mapping[str, Any]) -> None:
    """Goes to a state of at least these lanes; reads no row before it.

    Raises:
      ValueError: it is not such a state, or one of other data, batch size or seed.
    """
    given, own = lanes.Lanes.from_json(state), self._state
    for name in ("order", "batch_size", *(["seed"] if self._batches.seed_is_given else [])):
      if getattr(given, name) != getattr(own, name):
        what = "data" if name == "order" else name.replace("_", " ")
        raise ValueError(f"it is of another {what}")
    self._start(given.take(own.first, len(own.passed)))

  def close(self) -> None:
    """Stops reading."""
    if self._pool is not None:
      self._pool.shutdown(cancel_futures=True)
      self._pool = None


def _number_in_group(group_N: np.ndarray) -> np.ndarray:
  """Returns the number of earlier equal values, of values in ascending order, int64 [N]."""
  return np.arange(len(group_N)) - np.searchsorted(group_N, group_N)
