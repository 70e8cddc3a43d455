"""Approximate nearest neighbors from an index, with exact cosines from the stored vectors.

An index finds candidates by their codes; the vectors of these are read and compared exactly, as in
`exact_search`. Thus scores are exact, but a vector that is not a candidate is never found.
"""

import os
from concurrent import futures

import numpy as np

from vmsst.files import large_arrays, progress_bar
from vmsst.search import exact_search, factory_strings, faiss_index
from vmsst.search.index_folder import StoredIndex

_QUERIES = 1 << 11  # Searched together.
_ROWS = 1 << 16  # Row numbers in memory at once.
_PIECE = 64  # Queries per thread when candidates are compared.
_CANDIDATES, _PER_NEIGHBOR = 64, 8
_TINY = 1e-12  # Squared lengths that float32 computes without loss are above.


class IndexedRows:
  """The vectors of an index, or some of them, to search.

  Attributes:
    probes: Lists to search per query.
  """

  def __init__(
    self,
    index: StoredIndex,
    row_S: np.ndarray | None = None,
    *,
    probes: int | None = None,
    candidates: int | None = None,
  ):
    """Prepares a search.

    Args:
      index: The index.
      row_S: Distinct rows to search among; None: all.
      probes: Lists to search per query; None: `factory_strings.default_probes`.
      candidates: Vectors per query to compare exactly; None: 8 per neighbor, but at least 64.
    """
    self._index, self._candidates = index, candidates
    self.probes: int = probes or factory_strings.default_probes(index.reader.lists)
    total = index.reader.count
    self._count = total if row_S is None else len(row_S)
    self._allowed = None
    if row_S is not None and len(row_S) < total:
      self._allowed = faiss_index.Allowed(row_S, total)

  def nearest(self, query_ND: np.ndarray, k: int) -> exact_search.Neighbors:
    """Returns about the k nearest rows of each query, or all; ties by lowest row.

    Args:
      query_ND: Queries at length 1, float32.
      k: Neighbors per query.
    """
    k = min(k, self._count)
    found = exact_search.no_neighbors(len(query_ND), k)
    with futures.ThreadPoolExecutor(os.cpu_count()) as pool:
      for start in range(0, len(query_ND), _QUERIES):
        rows = slice(start, start + _QUERIES)
        self._search(pool, query_ND[rows], found[rows])
    return found

  def _search(
    self, pool: futures.Executor, query_BD: np.ndarray, found: exact_search.Neighbors
  ) -> None:
    reader, k = self._index.reader, found.index_NK.shape[1]
    count = min(self._count, max(k, self._candidates or max(_CANDIDATES, _PER_NEIGHBOR * k)))
    row_BC = reader.search(query_BD, count, self.probes, self._allowed)
    # The lists of a few queries have fewer vectors than requested.
    lacking_P = np.flatnonzero((row_BC[:, :k] < 0).any(axis=1))
    if len(lacking_P):
      row_BC[lacking_P] = reader.search(query_BD[lacking_P], count, reader.lists, self._allowed)
    pieces = [slice(start, start + _PIECE) for start in range(0, len(query_BD), _PIECE)]
    for part, near in zip(
      pieces,
      pool.map(lambda part: self._compare(query_BD[part], row_BC[part], k), pieces),
      strict=True,
    ):
      found.index_NK[part], found.score_NK[part] = near.index_NK, near.score_NK

  def _compare(self, query_BD: np.ndarray, row_BC: np.ndarray, k: int) -> exact_search.Neighbors:
    """Returns the k nearest candidates by their vectors."""
    stored_PD = self._index.rows.take(np.maximum(row_BC, 0).ravel())
    score_BC = _cosines(query_BD, stored_PD.reshape(*row_BC.shape, -1))
    score_BC[row_BC < 0] = -np.inf
    order_BK = np.lexsort((row_BC, -score_BC))[:, :k]
    return exact_search.Neighbors(
      np.take_along_axis(row_BC, order_BK, axis=1), np.take_along_axis(score_BC, order_BK, axis=1)
    )


def engine(
  source: tuple[StoredIndex, np.ndarray],
  target: tuple[StoredIndex, np.ndarray],
  *,
  progress: bool | None = None,
) -> exact_search.Engine:
  """Returns an engine that searches for the neighbors of both sides in indexes.

  Args:
    source: The index of the sources' vectors, and the rows in it of the vectors to compare.
    target: The same of the targets.
    progress: Show a progress bar; None: on a terminal only.
  """

  def compare(
    source_side: exact_search.UnitVectors,
    target_side: exact_search.UnitVectors,
    forward: exact_search.Neighbors,
    backward: exact_search.Neighbors | None,
    /,
  ) -> None:
    ways = [(source_side, target, target_side, forward)]
    if backward is not None:
      ways.append((target_side, source, source_side, backward))
    with progress_bar.Bar(
      total=sum(len(way[0]) for way in ways),
      unit=" searches",
      disable=None if progress is None else not progress,
    ) as bar:
      for queries, (index, row_S), base, best in ways:
        row_F = _kept(row_S, base.kept_N)
        rows = IndexedRows(index, row_F)
        for number, query_BD in queries.unit_blocks(_QUERIES):
          near = rows.nearest(query_BD, best.index_NK.shape[1])
          own = slice(number, number + len(query_BD))
          best.index_NK[own] = np.searchsorted(row_F, near.index_NK)
          best.score_NK[own] = near.score_NK
          bar.update(len(query_BD))

  return compare


def _cosines(query_BD: np.ndarray, vector_BCD: np.ndarray) -> np.ndarray:
  """Returns the cosine of each unit query with each of its vectors, of any length."""
  vector_BCD = vector_BCD.astype(np.float32, copy=False)
  with np.errstate(over="ignore"):
    square_BC = np.einsum("bcd,bcd->bc", vector_BCD, vector_BCD)
  if not ((square_BC > _TINY) & (square_BC < 1 / _TINY)).all():  # Zeros, or of extreme lengths.
    flat_PD = vector_BCD.reshape(-1, vector_BCD.shape[-1])
    vector_BCD = exact_search.unit_rows(flat_PD).reshape(vector_BCD.shape)
    square_BC = np.float32(1)
  return np.einsum("bd,bcd->bc", query_BD, vector_BCD) / np.sqrt(square_BC)


def _kept(row_S: np.ndarray, kept_S: np.ndarray) -> np.ndarray:
  """Returns the rows that are kept."""
  parts = (slice(start, start + _ROWS) for start in range(0, len(row_S), _ROWS))
  return large_arrays.concatenated((row_S[part][kept_S[part]] for part in parts), row_S.dtype)
