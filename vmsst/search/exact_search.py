"""Exact nearest neighbors by cosine, block by block, in NumPy.

Vectors may be on disk: they are read in blocks and never held or normalized as a whole. Results,
and what is stored per vector, are in temporary files if they are large. Among equally near vectors
the one of the lowest row comes first. Large matrix products round the same two vectors differently
from place to place, so that identical vectors would not be equally near; therefore each distinct
vector is compared once, and identical ones share the result.
"""

import collections
import dataclasses
import hashlib
import os
import threading
from collections.abc import Iterable, Iterator
from concurrent import futures
from typing import Any, Protocol

import numpy as np
import threadpoolctl

from vmsst import errors
from vmsst.files import external_sort, large_arrays

_BLOCK_ROWS = 2048  # Rows read at once, and compared with as many tasks of sources as threads.
_HELD_ROWS = 8192  # Rows of one side, held while the other is read.
_PIECE = 1024  # At most so many vectors per task of a thread.
# Scores of a row and of a column that are skipped together if none is high enough.
_SEGMENT, _GROUP = 512, 32
_EXPANDED = 1 << 20  # Rows of identical vectors sorted at once.
_SPAN = 1 << 13  # Rows read at once when only some are selected.
_NUMBERED = 1 << 16  # Rows whose numbers are in memory at once.
_COMPARING = threading.Lock()  # Held by the thread that has set BLAS to one thread.


class Rows(Protocol):
  """Vectors [N, D] that can be read in blocks: an array, in memory or mapped, or its shards."""

  @property
  def shape(self) -> tuple[int, ...]:
    """N and D."""

  def __getitem__(self, rows: slice, /) -> Any:
    """Returns consecutive rows as an array."""


@dataclasses.dataclass(frozen=True)
class Neighbors:
  """The K nearest vectors of each of N, nearest first.

  Attributes:
    index_NK: Row numbers, int64.
    score_NK: Cosines, float32.
  """

  index_NK: np.ndarray
  score_NK: np.ndarray

  def __len__(self) -> int:
    return len(self.index_NK)

  def __getitem__(self, rows: slice) -> "Neighbors":
    """Returns a view of some rows."""
    return Neighbors(self.index_NK[rows], self.score_NK[rows])


class SelectedRows:
  """Some of the `Rows` of vectors, read with the others between them.

  Attributes:
    shape: Number and width of the selected rows.
  """

  def __init__(self, rows: Rows, row_S: np.ndarray | range):
    """Selects distinct rows, ascending."""
    self._rows, self._row_S = rows, row_S
    self.shape: tuple[int, int] = (len(row_S), rows.shape[1])

  def __getitem__(self, rows: slice, /) -> np.ndarray:
    """Returns consecutive rows of those selected."""
    row_B = self._row_S[rows]
    if not len(row_B):
      return self._rows[0:0]
    first, end = int(row_B[0]), int(row_B[-1]) + 1
    if isinstance(row_B, range) or end - first == len(row_B):
      return self._rows[first:end]
    parts = []
    for start in range(first, end, _SPAN):
      row_P = row_B[np.searchsorted(row_B, start) : np.searchsorted(row_B, start + _SPAN)]
      if len(row_P):
        parts.append(self._rows[start : start + _SPAN][row_P - start])
    return np.concatenate(parts)


class UnitVectors:
  """Some vectors of many, at length 1, numbered in their order.

  Attributes:
    width: D.
    norm_N: Length of each row; 1 for rows of zeros.
    kept_N: Whether each row counts.
  """

  def __init__(self, rows: Rows, norm_N: np.ndarray, kept_N: np.ndarray):
    """Reads no row."""
    self._rows, self.norm_N, self.kept_N = rows, norm_N, kept_N
    self.width: int = rows.shape[1]
    self._count = int(np.count_nonzero(kept_N))

  def __len__(self) -> int:
    return self._count

  @property
  def first_F(self) -> np.ndarray:
    """Rows that count, ascending."""
    return large_arrays.concatenated(
      (rows.start + np.flatnonzero(self.kept_N[rows]) for rows in _blocks(len(self.kept_N))),
      np.int64,
    )

  def unit_blocks(self, height: int) -> Iterator[tuple[int, np.ndarray]]:
    """Yields vectors at length 1, float32 [B, D], B <= `height`, after the first's number.

    Blocks begin at rows that are multiples of `height`. Vectors of zeros stay zeros.
    """
    number = 0
    for first in range(0, len(self.norm_N), height):
      kept_B = self.kept_N[first : first + height]
      block_BD = np.asarray(self._rows[first : first + height])
      norm_B = self.norm_N[first : first + height]
      if not kept_B.all():
        block_BD, norm_B = block_BD[kept_B], norm_B[kept_B]
      if len(norm_B):
        yield number, _at_length_1(block_BD, norm_B)
        number += len(norm_B)


class DistinctVectors(UnitVectors):
  """The distinct vectors among many, numbered by first occurrence.

  Attributes:
    number_N: Number of each row's vector.
    key_N: Hash of each row.
  """

  def __init__(self, rows: Rows, *, start: int = 0):
    """Reads all rows once; `start` is the number of the first row in error messages.

    Raises:
      ValueError: the shape is not [N, D], or a value is not finite as float32.
    """
    rows = as_rows(rows)
    if len(rows.shape) != 2:
      raise ValueError(f"the shape must be [N, D], not {rows.shape}")
    count = rows.shape[0]
    norm_N = large_arrays.full(count, 0, np.float32)
    self.key_N = large_arrays.full(count, 0, np.int64)
    for first in range(0, count, _BLOCK_ROWS):
      block_BD = _as_float32(rows[first : first + _BLOCK_ROWS])
      block = slice(first, first + len(block_BD))
      norm_N[block] = _norms(block_BD, start + first)
      # Keys have 64 bits, so that different rows do not collide.
      self.key_N[block] = [hash(row_D.tobytes()) for row_D in _positive(block_BD)]
    kept_N, self.number_N = _numbered(self.key_N)
    super().__init__(rows, norm_N, kept_N)

  def unit_rows(self, rows: slice) -> np.ndarray:
    """Returns consecutive rows, identical ones included, at length 1, as `unit_rows` does."""
    return _at_length_1(_as_float32(self._rows[rows]), self.norm_N[rows])

  def expand(self, near: Neighbors, k: int) -> Neighbors:
    """Returns the k nearest rows, or all, given the numbers of the k nearest distinct vectors.

    Args:
      near: Numbers of distinct vectors; those below 0 are skipped, and rows 0 with score -inf may
        follow the others.
      k: Neighbors per vector.
    """
    if len(self) == len(self.number_N):
      return near
    row_FL = self._identical_rows(k)
    result = no_neighbors(len(near.index_NK), min(k, len(self.number_N)))
    height = max(1, _EXPANDED // (near.index_NK.shape[1] * row_FL.shape[1]))
    for start in range(0, len(near.index_NK), height):
      rows = slice(start, start + height)
      row_BKL = row_FL[near.index_NK[rows]]
      lacking_BKL = (row_BKL < 0) | (near.index_NK[rows, :, None] < 0)
      score_BKL = np.where(lacking_BKL, -np.inf, near.score_NK[rows, :, None])
      all_B = len(row_BKL)
      row_BL, score_BL = row_BKL.reshape(all_B, -1), score_BKL.reshape(all_B, -1)
      order_BK = np.lexsort((row_BL, -score_BL))[:, : result.index_NK.shape[1]]
      result.index_NK[rows] = np.take_along_axis(row_BL, order_BK, axis=1)
      result.score_NK[rows] = np.take_along_axis(score_BL, order_BK, axis=1)
    return result

  def _identical_rows(self, k: int) -> np.ndarray:
    """Returns the first rows of each distinct vector, int64 [F, L], L <= k; -1 follows fewer."""
    row_FK = large_arrays.full((len(self), min(k, len(self.number_N))), -1, np.int64)
    count_F = large_arrays.full(len(self), 0, np.int64)
    for rows in _blocks(len(self.number_N)):
      row_B = rows.start + np.argsort(self.number_N[rows], kind="stable")
      number_B = self.number_N[row_B]
      place_B = count_F[number_B] + np.arange(len(row_B)) - np.searchsorted(number_B, number_B)
      count_F[number_B] = place_B + 1  # The last row of each vector has the highest place.
      first_B = place_B < k
      row_FK[number_B[first_B], place_B[first_B]] = row_B[first_B]
    return row_FK[:, : count_F.max()]


class Engine(Protocol):
  """Compares all vectors of two sides.

  Implementations read the sources once. When they request the next block of sources, `forward` and
  `backward` are final for those before.
  """

  def __call__(
    self,
    source: UnitVectors,
    target: UnitVectors,
    forward: Neighbors,
    backward: Neighbors | None,
    /,
  ) -> None:
    """Merges targets into the best of each source, and sources into the best of each target.

    Args:
      source: N vectors.
      target: M vectors.
      forward: Best targets (numbers) of each source so far; updated in place.
      backward: Best sources of each target; None: not requested.
    """


def compare(
  source: UnitVectors,
  target: UnitVectors,
  forward: Neighbors,
  backward: Neighbors | None,
  /,
) -> None:
  """The engine for CPUs: computes each score once, for both directions.

  It runs as many threads as NumPy's BLAS would. Each computes and selects scores on its own, so
  that none waits while others work. Comparisons in several threads of a process take turns.
  """
  with _COMPARING:
    blas = threadpoolctl.ThreadpoolController().select(user_api="blas")
    threads = max((each["num_threads"] for each in blas.info()), default=os.cpu_count() or 1)
    with blas.limit(limits=1), futures.ThreadPoolExecutor(threads) as pool:
      for start, held_HD in source.unit_blocks(_HELD_ROWS):
        rows = forward[start : start + len(held_HD)]
        _Comparison(pool, threads, held_HD, start, rows, backward).run(target)


def mutual_top_k(
  source_ND: Rows | DistinctVectors,
  target_MD: Rows | DistinctVectors,
  k: int,
  *,
  engine: Engine = compare,
) -> tuple[Neighbors, Neighbors]:
  """Returns the k nearest targets of every source and the k nearest sources of every target.

  Near is by cosine. If a side has fewer than k rows, all of them are returned.

  Args:
    source_ND: Vectors of one side, of any length; `DistinctVectors` to compare them repeatedly.
    target_MD: Vectors of the other side.
    k: Neighbors per vector, a small number.
    engine: Compares vectors; `vmsst.search.device_search.engine` returns one for this machine.

  Raises:
    ValueError: shapes are not [N, D] and [M, D], a side is empty, a value is not finite, or k is
      not an integer of 1 or more.
  """
  source, target = _distinct(source_ND), _distinct(target_MD)
  forward, backward = mutual_top_k_distinct(source, target, k, engine=engine)
  return (
    _of_all(target.expand(forward, k), source),
    _of_all(source.expand(backward, k), target),
  )


def mutual_top_k_distinct(
  source: DistinctVectors, target: DistinctVectors, k: int, *, engine: Engine = compare
) -> tuple[Neighbors, Neighbors]:
  """Returns `mutual_top_k` of the distinct vectors of two sides, by their numbers."""
  _check_widths(source, target)
  k = errors.as_integer("k", k)
  if not len(source) or not len(target):
    raise ValueError(f"cannot find {k} neighbors among {len(source)} and {len(target)} vectors")
  forward = no_neighbors(len(source), min(k, len(target)))
  backward = no_neighbors(len(target), min(k, len(source)))
  engine(source, target, forward, backward)
  return forward, backward


def mutual_neighbors(
  source_ND: Rows | DistinctVectors, target_MD: Rows | DistinctVectors, *, engine: Engine = compare
) -> tuple[np.ndarray, np.ndarray]:
  """Returns the nearest target of every source [N] and source of every target [M], by cosine.

  This is `mutual_top_k` with k = 1, without scores.
  """
  forward, backward = mutual_top_k(source_ND, target_MD, 1, engine=engine)
  return forward.index_NK[:, 0], backward.index_NK[:, 0]


def nearest_in_blocks(
  query_ND: Rows | DistinctVectors,
  blocks: Iterable[Rows | DistinctVectors],
  k: int = 1,
  *,
  engine: Engine = compare,
) -> Neighbors:
  """Returns the k nearest vectors of a knowledge base for every query, by cosine, or all.

  Args:
    query_ND: Vectors of the queries; `DistinctVectors` to search for them repeatedly.
    blocks: The knowledge base as arrays [M, D], of which one is held at a time; row numbers count
      through all of them. `DistinctVectors` to search them repeatedly.
    k: Neighbors per query, a small number.
    engine: Compares vectors; `vmsst.search.device_search.engine` returns one for this machine.

  Raises:
    ValueError: widths differ, a value is not finite, the knowledge base is empty, or k is not an
      integer of 1 or more.
  """
  query = _distinct(query_ND)
  found = BlockSearch(len(query), k)
  for block_MD in blocks:
    found.search(query, _distinct(block_MD, found.total), engine)
  if not found.total:
    raise ValueError("the knowledge base is empty")
  return found.of_all(query)


class BlockSearch:
  """The k nearest vectors of N distinct queries among blocks of vectors, which come in order.

  Attributes:
    near: The nearest so far; if there are fewer than k, scores of -inf follow.
    key_NK: Hashes of their vectors.
    total: Number of vectors so far.
  """

  def __init__(self, count: int, k: int):
    """Starts a search for `count` queries; raises ValueError if k is not 1 or more."""
    self._k = errors.as_integer("k", k)
    self.near = no_neighbors(count, self._k)
    self.key_NK = np.zeros(self.near.index_NK.shape, np.int64)
    self.total = 0

  def search(self, query: DistinctVectors, block: DistinctVectors, engine: Engine) -> None:
    """Compares the queries with the vectors of a block."""
    _check_widths(query, block)
    if not len(block):
      return
    # Only neighbors nearer than the best so far count.
    near = Neighbors(np.full_like(self.near.index_NK, -1), self.near.score_NK.copy())
    engine(query, block, near, None)
    near.score_NK[near.index_NK < 0] = -np.inf
    near = block.expand(near, self._k)
    self.add(near, block.key_N[near.index_NK], len(block.number_N))

  def add(self, near: Neighbors, key_NK: np.ndarray, total: int) -> None:
    """Adds the nearest of the next `total` vectors, whose hashes are of the same kind."""
    _level(self.near.score_NK, self.key_NK, near.score_NK, key_NK)
    order_NK = merge(self.near, near, self.total)
    both_NL = np.concatenate([self.key_NK, key_NK], axis=1)
    self.key_NK = np.take_along_axis(both_NL, order_NK, axis=1)
    self.total += total

  def of_all(self, query: DistinctVectors) -> Neighbors:
    """Returns the neighbors of all queries, identical ones included."""
    found = slice(self.total)
    return _of_all(Neighbors(self.near.index_NK[:, found], self.near.score_NK[:, found]), query)


def unit_rows(vectors_ND: np.ndarray) -> np.ndarray:
  """Returns the rows at length 1, float32; rows of zeros stay zeros.

  Raises:
    ValueError: the shape is not [N, D], or a value is not finite as float32.
  """
  vectors_ND = _as_float32(vectors_ND)
  if vectors_ND.ndim != 2:
    raise ValueError(f"the shape must be [N, D], not {vectors_ND.shape}")
  return _at_length_1(vectors_ND, _norms(vectors_ND, 0))


def rounded(score_N: Any) -> np.ndarray:
  """Returns scores as commands print them, with 6 decimals, float64; thresholds compare these."""
  return np.round(np.asarray(score_N, np.float64), 6)


def row_keys(vectors_ND: np.ndarray) -> np.ndarray:
  """Returns hashes of rows, int64, that are the same in any process."""
  digests = (hashlib.blake2b(row_D.tobytes(), digest_size=8) for row_D in _positive(vectors_ND))
  return np.frombuffer(b"".join(x.digest() for x in digests), "<i8")


def as_rows(rows: Any) -> Rows:
  """Returns `rows` if it has a shape, or else an array of it."""
  return rows if hasattr(rows, "shape") else np.asarray(rows)


def no_neighbors(count: int, k: int) -> Neighbors:
  """Returns neighbors before a search: row 0 with a cosine of -inf."""
  return Neighbors(
    large_arrays.full((count, k), 0, np.int64), large_arrays.full((count, k), -np.inf, np.float32)
  )


def merge(best: Neighbors, new: Neighbors, start: int) -> np.ndarray:
  """Merges new neighbors into the best; their rows count from `start` and come after all others.

  Returns:
    For each kept neighbor its column in the best and the new, concatenated.
  """
  score_NL = np.concatenate([best.score_NK, new.score_NK], axis=1)
  index_NL = np.concatenate([best.index_NK, start + new.index_NK], axis=1)
  # Stable: among equal scores the earlier row comes first.
  order_NK = np.argsort(-score_NL, axis=1, kind="stable")[:, : best.score_NK.shape[1]]
  best.score_NK[:] = np.take_along_axis(score_NL, order_NK, axis=1)
  best.index_NK[:] = np.take_along_axis(index_NL, order_NK, axis=1)
  return order_NK


def _level(
  score_NK: np.ndarray, key_NK: np.ndarray, new_score_NL: np.ndarray, new_key_NL: np.ndarray
) -> None:
  """Sets the scores of new neighbors to those of old ones with the same key."""
  for place in range(score_NK.shape[1]):
    same_NL = (new_key_NL == key_NK[:, place, None]) & (new_score_NL > -np.inf)
    same_NL &= score_NK[:, place, None] > -np.inf
    np.copyto(new_score_NL, score_NK[:, place, None], where=same_NL)


def _of_all(near: Neighbors, side: DistinctVectors) -> Neighbors:
  """Returns the neighbors of every row, given those of the distinct vectors."""
  if len(side) == len(side.number_N):
    return near
  found = no_neighbors(len(side.number_N), near.index_NK.shape[1])
  for rows in _blocks(len(side.number_N)):
    number_B = side.number_N[rows]
    found.index_NK[rows], found.score_NK[rows] = near.index_NK[number_B], near.score_NK[number_B]
  return found


def _blocks(count: int) -> Iterator[slice]:
  return (slice(start, min(start + _NUMBERED, count)) for start in range(0, count, _NUMBERED))


def _numbered(key_N: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
  """Returns whether each row is the first with its key, and the number of each row's key.

  Keys are numbered by first occurrence.
  """
  kept_N = large_arrays.full(len(key_N), True, bool)
  number_N = large_arrays.full(len(key_N), 0, np.int64)
  with external_sort.Records(2) as records:
    for rows in _blocks(len(key_N)):
      row_B = np.arange(rows.start, rows.stop, dtype=np.uint64)
      records.add(np.stack([key_N[rows].view(np.uint64), row_B], axis=1))
    before_2 = None  # The record before, and the first row with its key.
    for record_B2 in records.sorted():
      record_C2 = record_B2 if before_2 is None else np.concatenate([before_2, record_B2])
      key_C, row_C = record_C2[:, 0], record_C2[:, 1].astype(np.int64)
      first_C = row_C[np.searchsorted(key_C, key_C)]
      later_C = row_C > first_C
      kept_N[row_C[later_C]] = False
      number_N[row_C[later_C]] = first_C[later_C]
      before_2 = np.array([[key_C[-1], first_C[-1]]], np.uint64)
  count = 0
  for rows in _blocks(len(key_N)):
    kept_B = kept_N[rows]
    kept = int(np.count_nonzero(kept_B))
    number_N[rows][kept_B] = np.arange(count, count + kept)
    later_P = rows.start + np.flatnonzero(~kept_B)
    number_N[later_P] = number_N[number_N[later_P]]  # The number of the first.
    count += kept
  return kept_N, number_N


@dataclasses.dataclass(frozen=True)
class _Block:
  """Scores of some sources with some targets: -inf in rows after the last source.

  Attributes:
    row: First source, among those held.
    column: First target.
    score_BC: The scores; B is a multiple of _GROUP.
    buffer: Their memory.
    rows: Tasks that compute the scores and select those of rows.
  """

  row: int
  column: int
  score_BC: np.ndarray
  buffer: np.ndarray
  rows: list[futures.Future[None]]


class _Comparison:
  """Compares the sources that are held with all targets, in the threads of a pool.

  While some threads compute the scores of a block, others select those of earlier blocks. A task
  waits only for tasks submitted before it, and the pool starts them in this order.
  """

  def __init__(
    self,
    pool: futures.Executor,
    threads: int,
    held_HD: np.ndarray,
    start: int,
    forward: Neighbors,
    backward: Neighbors | None,
  ):
    """Starts no task; `start` is the number of the first source."""
    self._pool, self._held_HD, self._start = pool, held_HD, start
    self._forward, self._backward = forward, backward
    self._piece = min(_PIECE, max(1, _HELD_ROWS // threads))
    self._height = min(len(held_HD), self._piece * threads)
    tasks_per_block = -(-self._height // self._piece)
    self._blocks = 1 + -(-threads // tasks_per_block)
    # The last task of each piece of rows and of columns: later ones merge after it.
    self._last: dict[tuple[str, int], futures.Future[None]] = {}

  def run(self, target: UnitVectors) -> None:
    """Returns when all scores have been merged."""
    size = (self._height + _GROUP) * _BLOCK_ROWS
    free: collections.deque[tuple[np.ndarray, list[futures.Future[None]]]] = collections.deque(
      (np.empty(size, np.float32), []) for _ in range(self._blocks)
    )
    computing: collections.deque[_Block] = collections.deque()
    for column, target_CD in target.unit_blocks(_BLOCK_ROWS):
      for row in range(0, len(self._held_HD), self._height):
        buffer, readers = free.popleft()
        _wait(readers)
        computing.append(self._compute(row, column, target_CD, buffer))
        if len(computing) == self._blocks:
          block = computing.popleft()
          free.append((block.buffer, self._select_columns(block)))
    for block in computing:
      free.append((block.buffer, self._select_columns(block)))
    for _, readers in free:
      _wait(readers)

  def _compute(self, row: int, column: int, target_CD: np.ndarray, buffer: np.ndarray) -> _Block:
    """Starts to compute a block, and to select the best of its rows."""
    count = min(self._height, len(self._held_HD) - row)
    shape = count + -count % _GROUP, len(target_CD)
    score_BC = buffer[: shape[0] * shape[1]].reshape(shape)
    score_BC[count:] = -np.inf
    tasks = []
    for first in range(0, count, self._piece):
      part = slice(first, min(first + self._piece, count))
      rows = slice(row + part.start, row + part.stop)
      place = ("row", rows.start)
      task = self._pool.submit(
        _compute_rows,
        self._held_HD[rows],
        target_CD,
        score_BC[part],
        self._forward[rows],
        column,
        self._last.get(place),
      )
      self._last[place] = task
      tasks.append(task)
    return _Block(row, column, score_BC, buffer, tasks)

  def _select_columns(self, block: _Block) -> list[futures.Future[None]]:
    """Starts to select the best of a block's columns; returns the last tasks that read it."""
    if self._backward is None:
      return block.rows
    columns = self._backward[block.column : block.column + block.score_BC.shape[1]]
    tasks = []
    for first in range(0, len(columns), _PIECE):
      part = slice(first, first + _PIECE)
      place = ("column", block.column + first)
      before = [*block.rows, *filter(None, [self._last.get(place)])]
      task = self._pool.submit(
        _select_columns,
        columns[part],
        block.score_BC[:, part],
        self._start + block.row,
        before,
      )
      self._last[place] = task
      tasks.append(task)
    return tasks


def _wait(tasks: Iterable[futures.Future[None]]) -> None:
  for task in tasks:
    task.result()


def _compute_rows(
  source_PD: np.ndarray,
  target_CD: np.ndarray,
  score_PC: np.ndarray,
  best: Neighbors,
  column: int,
  before: futures.Future[None] | None,
) -> None:
  """Computes scores and, after another task, merges them into the best of their rows."""
  np.matmul(source_PD, target_CD.T, out=score_PC)
  _wait([] if before is None else [before])
  _keep_of_rows(best, score_PC, column)


def _select_columns(
  best: Neighbors, score_BP: np.ndarray, row: int, before: Iterable[futures.Future[None]]
) -> None:
  """Merges scores into the best of their columns, after other tasks."""
  _wait(before)
  _keep_of_columns(best, score_BP, row)


def _keep_of_rows(best: Neighbors, score_NM: np.ndarray, start: int) -> None:
  """Merges M columns, numbered from `start` and after all others, into the best of N rows."""
  k = best.score_NK.shape[1]
  for first in range(0, score_NM.shape[1], _SEGMENT):
    score_NL = score_NM[:, first : first + _SEGMENT]
    row_P = np.flatnonzero(score_NL.max(axis=1) > best.score_NK[:, -1])
    _merge_some(best, row_P, _top_k(score_NL[row_P], k), start + first)


def _keep_of_columns(best: Neighbors, score_MN: np.ndarray, start: int) -> None:
  """Merges M rows, numbered from `start` and after all others, into the best of N columns."""
  k = best.score_NK.shape[1]
  group_NG = score_MN.reshape(-1, _GROUP, score_MN.shape[1]).max(axis=1).T
  column_P = np.flatnonzero(group_NG.max(axis=1) > best.score_NK[:, -1])
  # The k best rows are in the k groups with the highest maxima; among equal ones in the first.
  group_PK = np.sort(_top_k(np.ascontiguousarray(group_NG[column_P]), k).index_NK, axis=1)
  row_PL = (group_PK[:, :, None] * _GROUP + np.arange(_GROUP)).reshape(
    len(column_P), group_PK.shape[1] * _GROUP
  )
  near = _top_k(score_MN[row_PL, column_P[:, None]], k)
  index_PK = np.take_along_axis(row_PL, near.index_NK, axis=1)
  _merge_some(best, column_P, Neighbors(index_PK, near.score_NK), start)


def _merge_some(best: Neighbors, row_P: np.ndarray, new: Neighbors, start: int) -> None:
  """Runs `merge` for a subset of rows."""
  kept = Neighbors(best.index_NK[row_P], best.score_NK[row_P])
  merge(kept, new, start)
  best.index_NK[row_P], best.score_NK[row_P] = kept.index_NK, kept.score_NK


def _top_k(score_NM: np.ndarray, k: int) -> Neighbors:
  """Returns the k best columns of each row, or all, ties by first column; overwrites the scores."""
  near = no_neighbors(len(score_NM), min(k, score_NM.shape[1]))
  row_N = np.arange(len(score_NM))
  for place in range(near.index_NK.shape[1]):
    index_N = score_NM.argmax(axis=1)
    near.index_NK[:, place] = index_N
    near.score_NK[:, place] = score_NM[row_N, index_N]
    score_NM[row_N, index_N] = -np.inf
  return near


def _as_float32(vectors_ND: Any) -> np.ndarray:
  with np.errstate(over="ignore"):  # Overflow raises an error later.
    return np.asarray(vectors_ND, np.float32)


def _positive(vectors_ND: Any) -> np.ndarray:
  """Returns vectors as float32, without -0, which equals 0."""
  return _as_float32(vectors_ND) + 0


def _norms(vectors_ND: np.ndarray, start: int) -> np.ndarray:
  """Returns the lengths, float32; 1 for rows of zeros."""
  square_N = np.einsum("nd,nd->n", vectors_ND, vectors_ND, dtype=np.float64)
  if not np.isfinite(square_N).all():
    row = start + int(np.argmin(np.isfinite(square_N)))
    raise errors.InputError(f"vector {row} contains a value that is not finite")
  with np.errstate(over="ignore"):  # `_at_length_1` handles infinite lengths.
    norm_N = np.sqrt(square_N).astype(np.float32)
  return np.where(norm_N > 0, norm_N, np.float32(1))


def _at_length_1(vectors_ND: np.ndarray, norm_N: np.ndarray) -> np.ndarray:
  unit_ND = np.divide(vectors_ND, norm_N[:, None], dtype=np.float32, casting="same_kind")
  long_P = np.flatnonzero(np.isinf(norm_N))
  if len(long_P):
    long_PD = vectors_ND[long_P].astype(np.float64)
    unit_ND[long_P] = long_PD / np.linalg.norm(long_PD, axis=1, keepdims=True)
  return unit_ND


def _distinct(rows: Rows | DistinctVectors, start: int = 0) -> DistinctVectors:
  return rows if isinstance(rows, DistinctVectors) else DistinctVectors(rows, start=start)


def _check_widths(source: UnitVectors, target: UnitVectors) -> None:
  if source.width != target.width:
    raise ValueError(f"both sides must have one width, not {source.width} and {target.width}")
