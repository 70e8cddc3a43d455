"""Exact nearest neighbors by cosine, block by block, in NumPy.

Vectors may be on disk: they are read in blocks and never held or normalized as a whole. Results
are in temporary files if they are large. Among equally near vectors the one of the lowest row comes
first. Large matrix products round by place, so that copies of a vector can differ in the last bit
of their cosines: remove duplicates before a search.
"""

import collections
import dataclasses
import functools
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent import futures
from typing import Any, Protocol

import numpy as np
import threadpoolctl

from vmsst import errors
from vmsst.io import array_files

BLOCK_ROWS = 1 << 14
"""Rows of vectors, or of what is stored per vector, in memory at once."""

_HELD_ROWS = 1 << 13  # Sources in memory while all targets are read.
_READ_ROWS = 1 << 11  # Targets read at once.
_TASK_ROWS = 1 << 11  # Sources per task of a thread: fixed, so that rounding is too.
_GROUP = 32  # Scores of a column that are skipped together if none is high enough.
_SEARCHING = threading.Lock()  # Held by the thread that has set BLAS to one thread.
# Sources and targets of a block of `block_search`: multiples of the rows that a search reads at
# once. Sources are in at least 8 blocks if these have 8,192 or more.
_BLOCK_SOURCES, _BLOCK_TARGETS, _LEAST_SOURCES = 1 << 16, 1 << 18, 1 << 13
_SOURCE_BLOCKS = 8


class Rows(Protocol):
  """Vectors [N, D] that can be read in blocks: an array, in memory or mapped, or its shards."""

  @property
  def shape(self) -> tuple[int, ...]:
    """N and D."""

  def __getitem__(self, rows: slice, /) -> Any:
    """Returns consecutive rows as an array."""


@dataclasses.dataclass(frozen=True)
class Selection:
  """Some rows of vectors, which are read when they are used.

  Attributes:
    rows: The vectors.
    row_N: Numbers of the selected rows, ascending.
  """

  rows: Rows
  row_N: np.ndarray | range

  @property
  def shape(self) -> tuple[int, int]:
    """Number of selected rows, and D."""
    return len(self.row_N), self.rows.shape[1]

  def __getitem__(self, rows: slice) -> np.ndarray:
    """Returns consecutive selected rows as an array."""
    row_B = self.row_N[rows]
    if not len(row_B):
      return np.asarray(self.rows[:0])
    first = int(row_B[0])
    block_BD = np.asarray(self.rows[first : int(row_B[-1]) + 1])
    return block_BD if len(block_BD) == len(row_B) else block_BD[np.asarray(row_B) - first]

  def part(self, rows: slice) -> "Selection":
    """Returns some of the selected rows, without reading them."""
    return Selection(self.rows, self.row_N[rows])


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


Both = tuple[Neighbors, Neighbors | None]


class Search(Protocol):
  """Finds the nearest rows between two sides: on CPUs, on devices, in blocks, or in an index."""

  def __call__(
    self, source: Selection, target: Selection, k_source: int, k_target: int | None, /
  ) -> Both:
    """Returns the nearest targets of each source, and the nearest sources of each target.

    Args:
      source: N vectors.
      target: M vectors.
      k_source: Number of targets to find for each source, at most M.
      k_target: Number of sources to find for each target, at most N; None: do not search them.
    """


def search(source: Selection, target: Selection, k_source: int, k_target: int | None, /) -> Both:
  """The `Search` for CPUs: computes each score once, for both directions.

  Threads compute blocks of scores and find those that may be among the best, which this thread
  merges in order, so that none waits while others work. Searches in several threads of a process
  take turns.
  """
  forward = no_neighbors(len(source.row_N), k_source)
  backward = None if k_target is None else no_neighbors(len(target.row_N), k_target)
  with _SEARCHING:
    blas = threadpoolctl.ThreadpoolController().select(user_api="blas")
    threads = max((library["num_threads"] for library in blas.info()), default=1)
    computing: collections.deque[Callable[[], None]] = collections.deque()
    with blas.limit(limits=1), futures.ThreadPoolExecutor(threads) as pool:
      for start, held_HD in unit_blocks(source, _HELD_ROWS):
        for column, target_CD in unit_blocks(target, _READ_ROWS):
          columns = None if backward is None else backward[column : column + len(target_CD)]
          for piece in blocks(len(held_HD), _TASK_ROWS):
            rows = forward[start + piece.start : start + piece.stop]
            task = pool.submit(_better, held_HD[piece], target_CD, rows, columns)
            sides = [(rows, column), (columns, start + piece.start)]
            computing.append(functools.partial(_merge_sides, task, sides))
            if len(computing) > threads:
              computing.popleft()()
        while computing:
          computing.popleft()()
  return forward, backward


Block = tuple[Selection, Selection]
"""Sources and targets that are searched together."""


def block_search(
  search: Search,
  run_blocks: Callable[[Callable[[Block], Both], Sequence[Block]], Iterable[Both]] = map,
) -> Search:
  """Returns a `Search` that divides a large one into blocks, with the result of a search in one.

  Blocks begin at rows where `search` would begin to read anyway, so that not even rounding changes.

  Args:
    search: Searches a block.
    run_blocks: Applies a function to blocks, in order, as `map` does, perhaps in other processes.
  """

  def search_blocks(
    source: Selection, target: Selection, k_source: int, k_target: int | None, /
  ) -> Both:
    forward = no_neighbors(len(source.row_N), k_source)
    backward = None if k_target is None else no_neighbors(len(target.row_N), k_target)
    multiple = max(1, -(-len(source.row_N) // _SOURCE_BLOCKS // _LEAST_SOURCES))
    height = min(_BLOCK_SOURCES, multiple * _LEAST_SOURCES)
    spans = [
      (rows, columns)
      for rows in blocks(len(source.row_N), height)
      for columns in blocks(len(target.row_N), _BLOCK_TARGETS)
    ]
    run = functools.partial(_search_block, search, k_source, k_target)
    parts = [(source.part(rows), target.part(columns)) for rows, columns in spans]
    for (rows, columns), (near, near_back) in zip(spans, run_blocks(run, parts), strict=True):
      merge(forward[rows], near, columns.start)
      if backward is not None and near_back is not None:
        merge(backward[columns], near_back, rows.start)
    return forward, backward

  return search_blocks


def _search_block(search: Search, k_source: int, k_target: int | None, block: Block) -> Both:
  source, target = block
  most_back = None if k_target is None else min(k_target, len(source.row_N))
  return search(source, target, min(k_source, len(target.row_N)), most_back)


def top_k(query_ND: Any, base_MD: Any, k: int = 1, *, search: Search = search) -> Neighbors:
  """Returns the k nearest vectors of a base for every query, by cosine, or all.

  Args:
    query_ND: Vectors of the queries, of any length, `Rows`; or one vector [D], which is [1, D].
    base_MD: The vectors to search, the same; read in blocks.
    k: Neighbors per query, a small number.
    search: Finds them; `vmsst.search.device_search.search` uses accelerators.

  Raises:
    ValueError: shapes are not [N, D] and [M, D], the base is empty, a value is not finite, or k is
      not an integer of 1 or more.
  """
  if getattr(query_ND, "ndim", 2) == 1:
    query_ND = np.asarray(query_ND)[None]
  query, base, k = _checked(query_ND, base_MD, k)
  if not len(base.row_N):
    raise ValueError(f"cannot find {k} neighbors among 0 vectors")
  return search(query, base, min(k, len(base.row_N)), None)[0]


def mutual_top_k(
  source_ND: Any, target_MD: Any, k: int, *, search: Search = search
) -> tuple[Neighbors, Neighbors]:
  """Returns the k nearest targets of every source and the k nearest sources of every target.

  This is `top_k` in both directions, which computes each cosine once. It raises ValueError also if
  there are no sources.
  """
  source, target, k = _checked(source_ND, target_MD, k)
  counts = len(source.row_N), len(target.row_N)
  if not all(counts):
    raise ValueError(f"cannot find {k} neighbors among {counts[0]} and {counts[1]} vectors")
  forward, backward = search(source, target, min(k, counts[1]), min(k, counts[0]))
  assert backward is not None
  return forward, backward


def _checked(source_ND: Any, target_MD: Any, k: int) -> tuple[Selection, Selection, int]:
  sides = [side if hasattr(side, "shape") else np.asarray(side) for side in (source_ND, target_MD)]
  for side in sides:
    if len(side.shape) != 2:
      raise ValueError(f"the shape must be [N, D], not {side.shape}")
  if sides[0].shape[1] != sides[1].shape[1]:
    widths = sides[0].shape[1], sides[1].shape[1]
    raise ValueError(f"both sides must have one width, not {widths[0]} and {widths[1]}")
  source, target = (
    side if isinstance(side, Selection) else Selection(side, range(side.shape[0])) for side in sides
  )
  return source, target, errors.as_integer("k", k)


def unit_rows(vectors_ND: Any, first: int = 0) -> np.ndarray:
  """Returns the rows at length 1, float32; rows of zeros stay zeros.

  Args:
    vectors_ND: The rows.
    first: Number of the first row, for messages.

  Raises:
    ValueError: the shape is not [N, D], or a value or a length is not finite as float32.
  """
  if getattr(vectors_ND, "dtype", None) in (np.int8, np.uint8):
    raise ValueError(
      f"{vectors_ND.dtype} vectors are quantized, so their cosines mean nothing; give the vectors "
      "before vmsst.quantize"
    )
  with np.errstate(over="ignore"):
    vectors_ND = np.asarray(vectors_ND, np.float32)
    if vectors_ND.ndim != 2:
      raise ValueError(f"the shape must be [N, D], not {vectors_ND.shape}")
    double_ND = vectors_ND.astype(np.float64)
    norm_N = np.sqrt(np.vecdot(double_ND, double_ND)).astype(np.float32)
  if not np.isfinite(norm_N).all():
    row = first + int(np.argmin(np.isfinite(norm_N)))
    raise errors.InputError(f"vector {row} contains a value that is not finite, or is too large")
  return vectors_ND / np.where(norm_N > 0, norm_N, np.float32(1))[:, None]


def unit_blocks(rows: Rows, height: int) -> Iterator[tuple[int, np.ndarray]]:
  """Yields vectors at length 1, float32 [B, D], B <= `height`, after the first's number."""
  for block in blocks(rows.shape[0], height):
    yield block.start, unit_rows(rows[block], block.start)


def round_scores(score_N: Any) -> np.ndarray:
  """Returns scores as commands print them, with 6 decimals, float64; thresholds compare these."""
  return np.round(np.asarray(score_N, np.float64), 6)


def no_neighbors(count: int, k: int) -> Neighbors:
  """Returns neighbors before a search: row 0 with a cosine of -inf."""
  return Neighbors(
    array_files.full((count, k), 0, np.int64), array_files.full((count, k), -np.inf, np.float32)
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
    changed = Neighbors(best.index_NK[row_R], best.score_NK[row_R])
    merge(changed, new, first)
    best.index_NK[row_R], best.score_NK[row_R] = changed.index_NK, changed.score_NK


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
