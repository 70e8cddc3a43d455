"""Exact nearest neighbors by cosine, block by block, in NumPy.

Vectors may be on disk. They are read and normalized in blocks, and are never all in memory at once.
Large results are stored in temporary files. If several vectors have the same cosine, the one in the
lowest row comes first. However, rounding in a large matrix product depends on a row's position, so
the cosines of identical vectors can differ in the last bit. Remove duplicates before you search.
"""

import collections
import itertools
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent import futures
from typing import Any, NamedTuple, Protocol

import numpy as np
import threadpoolctl

from vmsst import errors
from vmsst.io import array_files

BLOCK_ROWS = 1 << 14  # default number of rows that are in memory at once

_SOURCE_ROWS = 1 << 13  # Sources held in memory while all targets are read.
_TARGET_ROWS = 1 << 11  # Targets per read.
_TASK_ROWS = 1 << 11  # Sources per thread task. This number affects rounding.
_GROUP = 32  # Sources per group. Each target's k best sources are in its k best groups.
_SEARCHING = threading.Lock()  # Lock held while BLAS is limited to one thread.
# Block sizes in `search_blocks`: maximum sources, maximum targets, and minimum sources. All are
# multiples of the number of rows that a search reads at once.
_BLOCK_SOURCES, _BLOCK_TARGETS, _LEAST_SOURCES = 1 << 16, 1 << 18, 1 << 13
_SOURCE_BLOCKS = 8  # Blocks of sources at most, unless they would exceed the maximum size.


class Rows(Protocol):
  """Vectors [N, D] that can be read in blocks: an array, a memory map, or several shards."""

  @property
  def shape(self) -> tuple[int, ...]:
    """Number of vectors (N) and their width (D)."""

  def __getitem__(self, rows: slice, /) -> Any:
    """Returns consecutive rows as an array."""


class Selection(NamedTuple):
  """A subset of rows. Vectors are read only when they are needed.

  Attributes:
    rows: The vectors.
    row_N: Indices of the selected rows, in ascending order.
  """

  rows: Rows
  row_N: np.ndarray | range

  def unit_blocks(self, height: int) -> Iterator[tuple[slice, np.ndarray]]:
    """Yields slices of `row_N` and the unit vectors for each slice, float32 [B, D], B <= height."""
    for positions in blocks(len(self.row_N), height):
      row_B = self.row_N[positions]
      first = int(row_B[0])
      block_BD = np.asarray(self.rows[first : int(row_B[-1]) + 1])
      if len(block_BD) != len(row_B):
        block_BD = block_BD[np.asarray(row_B) - first]
      yield positions, unit_rows(block_BD, positions.start)


class Neighbors(NamedTuple):
  """The K nearest neighbors of N vectors, nearest first.

  Attributes:
    index_NK: Row numbers, int64.
    score_NK: Cosines, float32.
  """

  index_NK: np.ndarray
  score_NK: np.ndarray


Both = tuple[Neighbors, Neighbors | None]


class Search(Protocol):
  """A nearest-neighbor search function, such as `search` or `device_search.search`."""

  def __call__(
    self, source: Selection, target: Selection, k_source: int, k_target: int | None, /
  ) -> Both:
    """Returns the nearest targets for each source, and the nearest sources for each target.

    Args:
      source: N vectors.
      target: M vectors.
      k_source: Number of targets to find for each source, at most M.
      k_target: Number of sources to find for each target, at most N. If None, no sources are found.
    """


Block = tuple[Selection, Selection, int, int | None]
"""The arguments of a `Search` in a block of sources and targets."""


def search(source: Selection, target: Selection, k_source: int, k_target: int | None, /) -> Both:
  """The `Search` for CPUs. It computes each score once, for both directions.

  Worker threads compute blocks of scores, and select the scores in each block that may be among the
  best. Only the calling thread merges the selected scores, in order, so the workers never wait for
  each other. If several threads in a process search at the same time, they take turns.
  """
  forward = no_neighbors(len(source.row_N), k_source)
  backward = None if k_target is None else no_neighbors(len(target.row_N), k_target)
  with _SEARCHING:
    blas = threadpoolctl.ThreadpoolController().select(user_api="blas")
    threads = max((library["num_threads"] for library in blas.info()), default=1)
    with blas.limit(limits=1), futures.ThreadPoolExecutor(threads) as pool:
      tasks = (
        (
          rows.start + piece.start,
          columns.start,
          pool.submit(
            _better,
            source_HD[piece],
            target_CD,
            forward.score_NK[rows][piece],
            None if backward is None else backward.score_NK[columns],
          ),
        )
        for rows, source_HD in source.unit_blocks(_SOURCE_ROWS)
        for columns, target_CD in target.unit_blocks(_TARGET_ROWS)
        for piece in blocks(len(source_HD), _TASK_ROWS)
      )
      computing = collections.deque(itertools.islice(tasks, threads))
      while computing:
        row, column, task = computing.popleft()
        computing.extend(itertools.islice(tasks, 1))
        (row_R, neighbors), *near_back = task.result()
        merge(forward, row + row_R, neighbors, column)
        if backward is not None:
          ((column_R, neighbors),) = near_back
          merge(backward, column + column_R, neighbors, row)
  return forward, backward


def search_blocks(
  source: Selection,
  target: Selection,
  k_source: int,
  k_target: int | None,
  /,
  *,
  search: Search = search,
  run_blocks: Callable[[Search, Sequence[Block]], Iterable[Both]] = itertools.starmap,
) -> Both:
  """A `Search` that divides a large search into blocks, without changing the result.

  Each block starts at a row where `search` would also start a read, so that even rounding is
  identical.

  Args:
    source: See `Search`.
    target: See `Search`.
    k_source: See `Search`.
    k_target: See `Search`.
    search: Nearest-neighbor search within one block.
    run_blocks: Function that applies `search` to blocks, possibly in several processes, and yields
      the results in order.
  """
  forward = no_neighbors(len(source.row_N), k_source)
  backward = None if k_target is None else no_neighbors(len(target.row_N), k_target)
  multiple = max(1, -(-len(source.row_N) // _SOURCE_BLOCKS // _LEAST_SOURCES))
  height = min(_BLOCK_SOURCES, multiple * _LEAST_SOURCES)
  spans = [
    (rows, columns)
    for rows in blocks(len(source.row_N), height)
    for columns in blocks(len(target.row_N), _BLOCK_TARGETS)
  ]
  tasks = [
    (
      source._replace(row_N=source.row_N[rows]),
      target._replace(row_N=target.row_N[columns]),
      min(k_source, columns.stop - columns.start),
      None if k_target is None else min(k_target, rows.stop - rows.start),
    )
    for rows, columns in spans
  ]
  for (rows, columns), (neighbors, near_back) in zip(spans, run_blocks(search, tasks), strict=True):
    merge(forward, rows, neighbors, columns.start)
    if backward is not None and near_back is not None:
      merge(backward, columns, near_back, rows.start)
  return forward, backward


def top_k(query_ND: Any, base_MD: Any, k: int = 1, *, search: Search = search) -> Neighbors:
  """Returns the k base vectors nearest to each query, by cosine, or all M if M < k.

  Args:
    query_ND: Query vectors of any length: an array, `Rows` or a `Selection`. A single vector [D] is
      treated as [1, D].
    base_MD: The vectors to search, in the same forms as the queries; they are read in blocks.
    k: Neighbors per query. Use a small number.
    search: Nearest-neighbor search; `vmsst.search.device_search.search` uses accelerators.

  Raises:
    ValueError: If the shapes are not [N, D] and [M, D], the base is empty, a value is not finite,
      or k is not a positive integer.
  """
  if getattr(query_ND, "ndim", 2) == 1:
    query_ND = np.asarray(query_ND)[None]
  query, base, k = _as_selections(query_ND, base_MD, k)
  if not len(base.row_N):
    raise ValueError(f"cannot find {k} neighbors among 0 vectors")
  return search(query, base, min(k, len(base.row_N)), None)[0]


def mutual_top_k(
  source_ND: Any, target_MD: Any, k: int, *, search: Search = search
) -> tuple[Neighbors, Neighbors]:
  """Returns the k nearest targets for every source and the k nearest sources for every target.

  This function is like `top_k` in both directions, but computes each cosine once. It also raises
  ValueError if there are no sources.
  """
  source, target, k = _as_selections(source_ND, target_MD, k)
  counts = len(source.row_N), len(target.row_N)
  if not all(counts):
    raise ValueError(f"cannot find {k} neighbors among {counts[0]} sources and {counts[1]} targets")
  forward, backward = search(source, target, min(k, counts[1]), min(k, counts[0]))
  assert backward is not None
  return forward, backward


def _as_selections(source_ND: Any, target_MD: Any, k: int) -> tuple[Selection, Selection, int]:
  inputs = [
    rows if hasattr(rows, "shape") or isinstance(rows, Selection) else np.asarray(rows)
    for rows in (source_ND, target_MD)
  ]
  shapes = [(rows.rows if isinstance(rows, Selection) else rows).shape for rows in inputs]
  for shape in shapes:
    if len(shape) != 2:
      raise ValueError(f"the shape must be [N, D], not {shape}")
  if shapes[0][1] != shapes[1][1]:
    raise ValueError(f"the vectors have different widths, {shapes[0][1]} and {shapes[1][1]}")
  source, target = (
    rows if isinstance(rows, Selection) else Selection(rows, range(shape[0]))
    for rows, shape in zip(inputs, shapes, strict=True)
  )
  return source, target, errors.as_integer("k", k)


def unit_rows(vectors_ND: Any, first: int = 0) -> np.ndarray:
  """Returns the rows scaled to length 1, in float32. Zero rows stay zero.

  Args:
    vectors_ND: The rows.
    first: Index of the first row, for error messages.

  Raises:
    ValueError: If the shape is not [N, D], or if a value or the length of a row is not finite in
      float32.
  """
  if getattr(vectors_ND, "dtype", None) in (np.int8, np.uint8):
    raise ValueError(
      f"{vectors_ND.dtype} vectors are quantized, so their cosines are meaningless; pass the "
      "unquantized vectors"
    )
  with np.errstate(over="ignore"):
    vectors_ND = np.asarray(vectors_ND, np.float32)
    if vectors_ND.ndim != 2:
      raise ValueError(f"the shape must be [N, D], not {vectors_ND.shape}")
    double_ND = vectors_ND.astype(np.float64)
    norm_N = np.sqrt(np.vecdot(double_ND, double_ND)).astype(np.float32)
  if not np.isfinite(norm_N).all():
    row = first + int(np.argmin(np.isfinite(norm_N)))
    raise errors.InputError(f"vector {row} is too large or contains a value that is not finite")
  return vectors_ND / np.where(norm_N > 0, norm_N, np.float32(1))[:, None]


def no_neighbors(count: int, k: int) -> Neighbors:
  """Returns the initial result for a search: every neighbor is row 0, with a cosine of -inf."""
  return Neighbors(
    array_files.full((count, k), 0, np.int64), array_files.full((count, k), -np.inf, np.float32)
  )


def merge(best: Neighbors, rows: np.ndarray | slice, new: Neighbors, start: int) -> None:
  """Merges new neighbors for some rows into the best neighbors so far, in place.

  `start` is added to the row numbers of the new neighbors. The sums must exceed the row numbers of
  all earlier neighbors.
  """
  score_RL = np.concatenate([best.score_NK[rows], new.score_NK], axis=1)
  index_RL = np.concatenate([best.index_NK[rows], start + new.index_NK], axis=1)
  # The sort is stable, so that ties go to the earlier row.
  order_RK = np.argsort(-score_RL, axis=1, kind="stable")[:, : best.score_NK.shape[1]]
  best.score_NK[rows] = np.take_along_axis(score_RL, order_RK, axis=1)
  best.index_NK[rows] = np.take_along_axis(index_RL, order_RK, axis=1)


def blocks(count: int, size: int = BLOCK_ROWS) -> Iterator[slice]:
  """Divides `count` rows into consecutive slices of at most `size` rows."""
  return (slice(start, min(start + size, count)) for start in range(0, count, size))


def _better(
  source_PD: np.ndarray, target_CD: np.ndarray, best_PK: np.ndarray, best_CK: np.ndarray | None
) -> list[tuple[np.ndarray, Neighbors]]:
  """Returns the rows (and columns, unless `best_CK` is None) with better neighbors in this block.

  A neighbor is better if its score exceeds the lowest of the best scores so far. An equal score
  does not count as better, because ties go to the lower row and blocks are merged in order.
  """
  count = len(source_PD)
  score_BC = np.empty((count + -count % _GROUP, len(target_CD)), np.float32)
  np.matmul(source_PD, target_CD.T, out=score_BC[:count])
  score_BC[count:] = -np.inf
  row_R = np.flatnonzero(score_BC[:count].max(axis=1) > best_PK[:, -1])
  better = [(row_R, _top_k(score_BC[row_R], best_PK.shape[1]))]
  if best_CK is not None:
    k = best_CK.shape[1]
    group_CG = score_BC.reshape(-1, _GROUP, len(target_CD)).max(axis=1).T
    column_R = np.flatnonzero(group_CG.max(axis=1) > best_CK[:, -1])
    # The k best rows are in the k groups with the highest maxima; ties go to the first group.
    group_RK = np.sort(_top_k(np.ascontiguousarray(group_CG[column_R]), k).index_NK, axis=1)
    row_RL = (group_RK[:, :, None] * _GROUP + np.arange(_GROUP)).reshape(
      len(column_R), group_RK.shape[1] * _GROUP
    )
    neighbors = _top_k(score_BC[row_RL, column_R[:, None]], k)
    index_RK = np.take_along_axis(row_RL, neighbors.index_NK, axis=1)
    better.append((column_R, Neighbors(index_RK, neighbors.score_NK)))
  return better


def _top_k(score_NM: np.ndarray, k: int) -> Neighbors:
  """Returns up to k best columns for each row; ties go to the first. Overwrites the scores."""
  neighbors = no_neighbors(len(score_NM), min(k, score_NM.shape[1]))
  row_N = np.arange(len(score_NM))
  for rank in range(neighbors.index_NK.shape[1]):
    index_N = score_NM.argmax(axis=1)
    neighbors.index_NK[:, rank] = index_N
    neighbors.score_NK[:, rank] = score_NM[row_N, index_N]
    score_NM[row_N, index_N] = -np.inf
  return neighbors
