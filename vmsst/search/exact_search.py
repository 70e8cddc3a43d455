"""Exact nearest neighbors by cosine, block by block, in NumPy.

Vectors may be on disk: they are read in blocks and never held or normalized as a whole. Results,
and what is stored per vector, are in temporary files if they are large. Among equally near vectors
the one of the lowest row comes first. Large matrix products round the same two vectors differently
from place to place, so that identical vectors would not be equally near; therefore each distinct
vector is compared once, and identical ones share the result.
"""

import collections
import dataclasses
import functools
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent import futures
from typing import Any, Protocol

import numpy as np
import threadpoolctl

from vmsst import errors
from vmsst.io import large_arrays

BLOCK_ROWS = 1 << 14
"""Rows of vectors, or of what is stored per vector, in memory at once."""

_PIECE = 2048  # At most so many vectors per task of a thread.
_GROUP = 32  # Scores of a column that are skipped together if none is high enough.
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
    score_NK: Cosines, float32; -inf for vectors without neighbors.
  """

  index_NK: np.ndarray
  score_NK: np.ndarray

  def __len__(self) -> int:
    return len(self.index_NK)

  def __getitem__(self, rows: slice) -> "Neighbors":
    """Returns a view of some rows."""
    return Neighbors(self.index_NK[rows], self.score_NK[rows])


class UnitVectors:
  """Some vectors of many, at length 1, numbered in their order.

  Attributes:
    rows: All vectors.
    norm_N: Length of each row; 1 for rows of zeros.
    kept_N: Whether each row counts.
  """

  def __init__(self, rows: Rows, norm_N: np.ndarray, kept_N: np.ndarray, start: int = 0):
    """Reads no row; the norms are those of the rows from `start` on."""
    self.rows, self.norm_N, self.kept_N, self._start = rows, norm_N, kept_N, start
    self._count = int(np.count_nonzero(kept_N))

  def __len__(self) -> int:
    return self._count

  def unit_blocks(self, height: int) -> Iterator[tuple[int, np.ndarray]]:
    """Yields vectors at length 1, float32 [B, D], B <= `height`, after the first's number.

    Blocks begin at rows that are multiples of `height`. Vectors of zeros stay zeros.
    """
    number = 0
    for block in blocks(len(self.norm_N), height):
      kept_B, norm_B = self.kept_N[block], self.norm_N[block]
      if not kept_B.any():
        continue
      block_BD = np.asarray(self.rows[self._start + block.start : self._start + block.stop])
      if not kept_B.all():
        block_BD, norm_B = block_BD[kept_B], norm_B[kept_B]
      yield number, _at_length_1(block_BD, norm_B)
      number += len(norm_B)


class DistinctVectors(UnitVectors):
  """The distinct vectors among many, numbered by first occurrence.

  Attributes:
    number_N: Number of each row's vector; -1 for rows that are left out.
    total: Number of rows that are not left out.
  """

  def __init__(
    self, rows: Rows, wanted_N: np.ndarray | None = None, *, block_rows: int = BLOCK_ROWS
  ):
    """Reads all rows once.

    Args:
      rows: The vectors.
      wanted_N: Whether to compare each row; None: all.
      block_rows: Rows in memory at once.

    Raises:
      ValueError: the shape is not [N, D], or a value is not finite as float32.
    """
    rows = rows if hasattr(rows, "shape") else np.asarray(rows)
    if len(rows.shape) != 2:
      raise ValueError(f"the shape must be [N, D], not {rows.shape}")
    count = rows.shape[0]
    norm_N = large_arrays.full(count, 0, np.float32)
    key_N = large_arrays.full(count, 0, np.int64)
    for block in blocks(count, block_rows):
      block_BD = _as_float32(rows[block])
      norm_N[block] = _norms(block_BD, block.start)
      # Adding 0 turns -0 into 0, which it equals. Keys have 64 bits, so that different rows do not
      # collide.
      key_N[block] = [hash(row_D.tobytes()) for row_D in block_BD + 0]
    first_N = first_rows(key_N, wanted_N)
    kept_N = large_arrays.full(count, False, bool)
    self.number_N = large_arrays.full(count, -1, np.int64)
    self.total, number = 0, 0
    for block in blocks(count, block_rows):
      first_B = first_N[block]
      kept_B = kept_N[block]
      np.equal(first_B, np.arange(block.start, block.stop), out=kept_B)
      place_P = np.flatnonzero(kept_B)
      self.number_N[block.start + place_P] = np.arange(number, number + len(place_P))
      wanted_B = first_B >= 0
      self.number_N[block][wanted_B] = self.number_N[first_B[wanted_B]]
      number += len(place_P)
      self.total += int(np.count_nonzero(wanted_B))
    self._block_rows = block_rows
    super().__init__(rows, norm_N, kept_N)

  def unit_rows(self, rows: slice) -> np.ndarray:
    """Returns consecutive rows, identical ones included, at length 1, as `unit_rows` does."""
    return _at_length_1(_as_float32(self.rows[rows]), self.norm_N[rows])

  def expanded(self, near: Neighbors, k: int) -> Neighbors:
    """Returns the k nearest rows, or all, given the numbers of the k nearest distinct vectors."""
    if len(self) == len(self.number_N):
      return near
    row_FL = self._identical_rows(k)
    neighbors = no_neighbors(len(near), min(k, self.total))
    height = max(1, 4 * self._block_rows // (near.index_NK.shape[1] * row_FL.shape[1]))
    for block in blocks(len(near), height):
      row_BKL = row_FL[near.index_NK[block]]
      score_BKL = np.where(row_BKL < 0, -np.inf, near.score_NK[block, :, None])
      row_BL, score_BL = (x.reshape(len(row_BKL), -1) for x in (row_BKL, score_BKL))
      order_BK = np.lexsort((row_BL, -score_BL))[:, : neighbors.index_NK.shape[1]]
      neighbors.index_NK[block] = np.take_along_axis(row_BL, order_BK, axis=1)
      neighbors.score_NK[block] = np.take_along_axis(score_BL, order_BK, axis=1)
    return neighbors

  def of_all(self, near: Neighbors) -> Neighbors:
    """Returns the neighbors of every row, given those of the distinct vectors."""
    if len(self) == len(self.number_N):
      return near
    neighbors = no_neighbors(len(self.number_N), near.index_NK.shape[1])
    for block in blocks(len(self.number_N), self._block_rows):
      wanted_P = block.start + np.flatnonzero(self.number_N[block] >= 0)
      number_P = self.number_N[wanted_P]
      neighbors.index_NK[wanted_P] = near.index_NK[number_P]
      neighbors.score_NK[wanted_P] = near.score_NK[number_P]
    return neighbors

  def _identical_rows(self, k: int) -> np.ndarray:
    """Returns the first rows of each distinct vector, int64 [F, L], L <= k; -1 follows fewer."""
    row_FK = large_arrays.full((len(self), min(k, self.total)), -1, np.int64)
    count_F = large_arrays.full(len(self), 0, np.int64)
    for block in blocks(len(self.number_N), self._block_rows):
      row_B = block.start + np.argsort(self.number_N[block], kind="stable")
      row_B = row_B[self.number_N[row_B] >= 0]
      number_B = self.number_N[row_B]
      place_B = count_F[number_B] + np.arange(len(row_B)) - np.searchsorted(number_B, number_B)
      count_F[number_B] = place_B + 1  # The last row of each vector has the highest place.
      first_B = place_B < k
      row_FK[number_B[first_B], place_B[first_B]] = row_B[first_B]
    return row_FK[:, : count_F.max()]


class Compare(Protocol):
  """Compares all vectors of two sides: on CPUs, on devices, in units of work, or by indexes.

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
  *,
  held_rows: int = 1 << 13,
  block_rows: int = 1 << 11,
) -> None:
  """The `Compare` for CPUs: computes each score once, for both directions.

  Threads compute blocks of scores and find those that may be among the best, which this thread
  merges in order, so that none waits while others work. Comparisons in several threads of a process
  take turns.

  Args:
    source: See `Compare`.
    target: See `Compare`.
    forward: See `Compare`.
    backward: See `Compare`.
    held_rows: Sources in memory while all targets are read.
    block_rows: Targets read at once.
  """
  with _COMPARING:
    blas = threadpoolctl.ThreadpoolController().select(user_api="blas")
    counts = [pool_info["num_threads"] for pool_info in blas.info()]
    threads = max(counts, default=os.cpu_count() or 1)
    piece = min(_PIECE, max(1, held_rows // threads))
    computing: collections.deque[Callable[[], None]] = collections.deque()
    with blas.limit(limits=1), futures.ThreadPoolExecutor(threads) as pool:
      for start, held_HD in source.unit_blocks(held_rows):
        for column, target_CD in target.unit_blocks(block_rows):
          columns = None if backward is None else backward[column : column + len(target_CD)]
          for part in blocks(len(held_HD), piece):
            rows = forward[start + part.start : start + part.stop]
            task = pool.submit(_better, held_HD[part], target_CD, rows, columns)
            sides = [(rows, column), (columns, start + part.start)]
            computing.append(functools.partial(_merge_sides, task, sides))
            if len(computing) > threads:
              computing.popleft()()
        while computing:
          computing.popleft()()


def top_k(
  query_ND: Rows | DistinctVectors,
  base_MD: Rows | DistinctVectors,
  k: int = 1,
  *,
  compare: Compare = compare,
) -> Neighbors:
  """Returns the k nearest vectors of a base for every query, by cosine, or all.

  Args:
    query_ND: Vectors of the queries, of any length, or one vector [D], which is [1, D];
      `DistinctVectors` to search repeatedly.
    base_MD: The vectors to search, the same; read in blocks.
    k: Neighbors per query, a small number.
    compare: Compares vectors; `vmsst.search.device_search.compare` uses accelerators.

  Raises:
    ValueError: shapes are not [N, D] and [M, D], the base is empty, a value is not finite, or k is
      not an integer of 1 or more.
  """
  if getattr(query_ND, "ndim", 2) == 1:
    query_ND = np.asarray(query_ND)[None]
  query, base, k = _checked(query_ND, base_MD, k)
  if not len(base):
    raise ValueError(f"cannot find {k} neighbors among {len(base)} vectors")
  near = no_neighbors(len(query), min(k, len(base)))
  compare(query, base, near, None)
  return query.of_all(base.expanded(near, k))


def mutual_top_k(
  source_ND: Rows | DistinctVectors,
  target_MD: Rows | DistinctVectors,
  k: int,
  *,
  compare: Compare = compare,
) -> tuple[Neighbors, Neighbors]:
  """Returns the k nearest targets of every source and the k nearest sources of every target.

  This is `top_k` in both directions, which computes each cosine once; rows that are left out have
  scores of -inf. It raises ValueError also if there are no sources.
  """
  source, target, k = _checked(source_ND, target_MD, k)
  if not len(source) or not len(target):
    raise ValueError(f"cannot find {k} neighbors among {len(source)} and {len(target)} vectors")
  forward = no_neighbors(len(source), min(k, len(target)))
  backward = no_neighbors(len(target), min(k, len(source)))
  compare(source, target, forward, backward)
  return source.of_all(target.expanded(forward, k)), target.of_all(source.expanded(backward, k))


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


def no_neighbors(count: int, k: int) -> Neighbors:
  """Returns neighbors before a search: row 0 with a cosine of -inf."""
  return Neighbors(
    large_arrays.full((count, k), 0, np.int64), large_arrays.full((count, k), -np.inf, np.float32)
  )


def merge(best: Neighbors, new: Neighbors, start: int) -> None:
  """Merges new neighbors into the best; their rows count from `start` and come after all others."""
  score_NL = np.concatenate([best.score_NK, new.score_NK], axis=1)
  index_NL = np.concatenate([best.index_NK, start + new.index_NK], axis=1)
  # Stable: among equal scores the earlier row comes first.
  order_NK = np.argsort(-score_NL, axis=1, kind="stable")[:, : best.score_NK.shape[1]]
  best.score_NK[:] = np.take_along_axis(score_NL, order_NK, axis=1)
  best.index_NK[:] = np.take_along_axis(index_NL, order_NK, axis=1)


def blocks(count: int, size: int = BLOCK_ROWS) -> Iterator[slice]:
  """Yields the blocks of `count` rows."""
  return (slice(start, min(start + size, count)) for start in range(0, count, size))


def first_rows(key_N: np.ndarray, wanted_N: np.ndarray | None = None) -> np.ndarray:
  """Returns for each row the first row with the same key, int64 [N], in bounded memory.

  Args:
    key_N: The keys, int64.
    wanted_N: Rows to consider; None: all. Others get -1.
  """
  first_N = large_arrays.full(len(key_N), -1, np.int64)
  with large_arrays.Records(2) as records:
    for block in blocks(len(key_N)):
      row_B = np.arange(block.start, block.stop, dtype=np.uint64)
      record_B2 = np.stack([key_N[block].view(np.uint64), row_B], axis=1)
      records.add(record_B2 if wanted_N is None else record_B2[wanted_N[block]])
    before_12 = np.empty((0, 2), np.uint64)  # The key of the record before, and its first row.
    for record_B2 in records.sorted():
      record_C2 = np.concatenate([before_12, record_B2])
      key_C, row_C = record_C2[:, 0], record_C2[:, 1].astype(np.int64)
      first_C = row_C[np.searchsorted(key_C, key_C)]
      first_N[row_C] = first_C
      before_12 = np.array([[key_C[-1], first_C[-1]]], np.uint64)
  return first_N


def _better(
  source_PD: np.ndarray, target_CD: np.ndarray, rows: Neighbors, columns: Neighbors | None
) -> list[tuple[np.ndarray, Neighbors]]:
  """Returns what can change the best of rows and, if these are requested, of columns of scores.

  Only scores above the worst of the best so far can: blocks are merged in order, so that among
  equal scores, those of the best have the lower numbers.
  """
  count = len(source_PD)
  score_BC = np.empty((count + -count % _GROUP, len(target_CD)), np.float32)
  np.matmul(source_PD, target_CD.T, out=score_BC[:count])
  score_BC[count:] = -np.inf
  row_R = np.flatnonzero(score_BC[:count].max(axis=1) > rows.score_NK[:, -1])
  better = [(row_R, _top_k(score_BC[row_R], rows.score_NK.shape[1]))]
  if columns is not None:
    k = columns.score_NK.shape[1]
    group_CG = score_BC.reshape(-1, _GROUP, len(target_CD)).max(axis=1).T
    column_R = np.flatnonzero(group_CG.max(axis=1) > columns.score_NK[:, -1])
    # The k best rows are in the k groups with the highest maxima; among equal ones in the first.
    group_RK = np.sort(_top_k(np.ascontiguousarray(group_CG[column_R]), k).index_NK, axis=1)
    row_RL = (group_RK[:, :, None] * _GROUP + np.arange(_GROUP)).reshape(
      len(column_R), group_RK.shape[1] * _GROUP
    )
    near = _top_k(score_BC[row_RL, column_R[:, None]], k)
    index_RK = np.take_along_axis(row_RL, near.index_NK, axis=1)
    better.append((column_R, Neighbors(index_RK, near.score_NK)))
  return better


def _merge_sides(
  task: futures.Future[list[tuple[np.ndarray, Neighbors]]],
  sides: Iterable[tuple[Any, int]],
) -> None:
  """Merges the result of `_better` into the best of both sides, given each side's first number."""
  for (best, first), (row_R, new) in zip(sides, task.result(), strict=False):
    _merge_some(best, row_R, new, first)


def _merge_some(best: Neighbors, row_R: np.ndarray, new: Neighbors, start: int) -> None:
  """Runs `merge` for a subset of rows."""
  kept = Neighbors(best.index_NK[row_R], best.score_NK[row_R])
  merge(kept, new, start)
  best.index_NK[row_R], best.score_NK[row_R] = kept.index_NK, kept.score_NK


def _top_k(score_NM: np.ndarray, k: int) -> Neighbors:
  """Returns the k best columns of each row, or all, ties by first column; overwrites the scores."""
  near = no_neighbors(len(score_NM), min(k, score_NM.shape[1]))
  row_N = np.arange(len(score_NM))
  for rank in range(near.index_NK.shape[1]):
    index_N = score_NM.argmax(axis=1)
    near.index_NK[:, rank] = index_N
    near.score_NK[:, rank] = score_NM[row_N, index_N]
    score_NM[row_N, index_N] = -np.inf
  return near


def _as_float32(vectors_ND: Any) -> np.ndarray:
  if getattr(vectors_ND, "dtype", None) in (np.int8, np.uint8):
    raise ValueError(
      f"{vectors_ND.dtype} vectors are quantized, so their cosines mean nothing; give the vectors "
      "before vmsst.quantize"
    )
  with np.errstate(over="ignore"):  # Overflow raises an error later.
    return np.asarray(vectors_ND, np.float32)


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


def _checked(
  source_ND: Rows | DistinctVectors, target_MD: Rows | DistinctVectors, k: int
) -> tuple[DistinctVectors, DistinctVectors, int]:
  source, target = (
    side if isinstance(side, DistinctVectors) else DistinctVectors(side)
    for side in (source_ND, target_MD)
  )
  if source.rows.shape[1] != target.rows.shape[1]:
    widths = source.rows.shape[1], target.rows.shape[1]
    raise ValueError(f"both sides must have one width, not {widths[0]} and {widths[1]}")
  return source, target, errors.as_integer("k", k)
