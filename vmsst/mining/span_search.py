"""Exact search among the lines of a text with vectors, in spans of its shards.

Spans depend on the vectors alone. Each is searched by itself, and their results are merged in
order, so that processes which share the spans find what one process finds.
"""

import numpy as np

from vmsst.files import progress_bar
from vmsst.search import exact_search
from vmsst.vectors import vector_store

# A text has at most _MOST_SPANS; each but the last has _SPAN_ROWS or more.
_SPAN_ROWS, _MOST_SPANS = 1 << 18, 64


class SpanSearch:
  """Compares queries with the vectors of all lines but the blank ones.

  Attributes:
    spans: Numbers of the shards of each span.
  """

  def __init__(
    self,
    vectors: vector_store.Vectors,
    blank_E: np.ndarray,
    engine: exact_search.Engine,
    *,
    keep: bool = False,
  ):
    """Prepares a search.

    Args:
      vectors: The vectors.
      blank_E: Rows of the blank lines, ascending.
      engine: Compares vectors.
      keep: Keep norms and hashes of the vectors, for further searches in the same spans.
    """
    self._vectors, self._blank_E, self._engine, self._keep = vectors, blank_E, engine, keep
    self._shards: dict[int, exact_search.DistinctVectors] = {}  # Those that are kept.
    rows = vectors.shard_rows
    self._starts = np.cumsum([0, *rows]).tolist()
    self.spans: list[range] = spans(vectors)

  def nearest(
    self, query_ND: np.ndarray, k: int, *, title: str = "", progress: bool | None = False
  ) -> exact_search.Neighbors:
    """Returns the nearest lines of each query by row, and shows progress."""
    query = exact_search.DistinctVectors(query_ND)
    found = exact_search.BlockSearch(len(query), k)
    disable = None if progress is None else not progress
    with progress_bar.Bar(
      total=len(self._vectors), unit=" lines", desc=title, disable=disable
    ) as bar:
      for span in self.spans:
        own = self.search(query, span, k, bar)
        found.add(own.near, own.key_NK, own.total)
    near = found.of_all(query)
    return exact_search.Neighbors(self.rows(near.index_NK), near.score_NK)

  def search(
    self,
    query: exact_search.DistinctVectors,
    span: range,
    k: int,
    bar: progress_bar.Bar | None = None,
  ) -> exact_search.BlockSearch:
    """Returns what is found in a span, whose lines are numbered without the blank ones."""
    found = exact_search.BlockSearch(len(query), k)
    for number in span:
      found.search(query, self._prepared(number), self._engine)
      if bar is not None:
        bar.update(self._starts[number + 1] - self._starts[number])
    return found

  def rows(self, number_NK: np.ndarray, span: range | None = None) -> np.ndarray:
    """Returns the rows of lines that are numbered without the blank ones, in a span or in all."""
    first = 0 if span is None else self._starts[span.start]
    blank_E = self._blank_E[np.searchsorted(self._blank_E, first) :]
    before_E = blank_E - np.arange(len(blank_E)) - first  # Lines before each that are not blank.
    return first + number_NK + np.searchsorted(before_E, number_NK, side="right")

  def _prepared(self, number: int) -> exact_search.DistinctVectors:
    if number in self._shards:
      return self._shards[number]
    start, end = self._starts[number : number + 2]
    first, last = np.searchsorted(self._blank_E, (start, end))
    row_S: range | np.ndarray = range(start, end)
    if first < last:
      row_S = np.delete(np.arange(start, end), self._blank_E[first:last] - start)
    # Not the shard itself: its memory map would have a descriptor.
    rows = exact_search.SelectedRows(self._vectors, row_S)
    prepared = exact_search.DistinctVectors(rows, start=start)
    if self._keep:
      self._shards[number] = prepared
    return prepared


def spans(vectors: vector_store.Vectors) -> list[range]:
  """Returns the numbers of the shards of each span."""
  rows = vectors.shard_rows
  least = max(_SPAN_ROWS, -(-sum(rows) // _MOST_SPANS))
  found, first, count = [], 0, 0
  for number, own in enumerate(rows, 1):
    count += own
    if count >= least or number == len(rows):
      found.append(range(first, number))
      first, count = number, 0
  return found
