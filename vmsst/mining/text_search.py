"""Searches the lines of a file for texts, by their vectors."""

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from vmsst import errors
from vmsst.files import progress_bar
from vmsst.search import exact_search, indexed_search
from vmsst.search.index_folder import StoredIndex
from vmsst.vectors import encoding
from vmsst.vectors.embedded_text import EmbeddedText

WINDOW = 1 << 15
"""Queries searched together, in one pass through the vectors."""


@dataclasses.dataclass(frozen=True)
class Hit:
  """A line found.

  Attributes:
    line: Its number, from 1.
    score: Its cosine with the query.
    text: The line.
  """

  line: int
  score: float
  text: str

  def as_json(self) -> dict[str, Any]:
    """Returns the hit as JSON."""
    return {**dataclasses.asdict(self), "score": round(self.score, 6)}


class Searcher:
  """Searches the lines of a text for queries: opened once, it answers any number of calls.

  The text and, without an index, the vectors are scanned once. Each call then reads the lines that
  it finds and the vectors that it compares, which are memory-mapped: all of them without an index,
  the candidates with one. Blank lines are never found.
  """

  def __init__(
    self,
    encoder: Any,
    corpus: EmbeddedText,
    *,
    index: StoredIndex | None = None,
    language: str | None = None,
    batch_size: int = 128,
    engine: exact_search.Engine = exact_search.compare,
    progress: bool | None = None,
  ):
    """Opens a corpus.

    Args:
      encoder: The encoder of the vectors, an object with `encode(texts)`; see `encoding.encode`.
      corpus: The text to search.
      index: An index of its vectors, for an approximate search; None: an exact one.
      language: Code of the queries' language, for encoders that need it.
      batch_size: Queries per batch.
      engine: Compares vectors in an exact search; `vmsst.search.device_search.engine` returns one
        for this machine.
      progress: Show a progress bar for each pass of an exact search; None: on a terminal only.

    Raises:
      InputError: the corpus has no line with text.
    """
    blank_E = corpus.blank_rows()
    if len(blank_E) == len(corpus):
      raise errors.InputError(f"{corpus.path} has no line with text: give a corpus with lines")
    self._encoder, self._corpus = encoder, corpus
    self._options: dict[str, Any] = {
      "language": language,
      "batch_size": batch_size,
      "progress": False,
    }
    self._text_of = corpus.reader()
    self._nearest: Callable[[np.ndarray, int], exact_search.Neighbors]
    if index is None:
      self._nearest = _ExactSearch(corpus, blank_E, engine, progress).nearest
    else:
      row_S = np.delete(np.arange(len(corpus)), blank_E) if len(blank_E) else None
      rows = indexed_search.IndexedRows(index, row_S)
      self._nearest = lambda query_ND, k: rows.nearest(exact_search.unit_rows(query_ND), k)

  def search(self, queries: Sequence[str], count: int) -> list[list[Hit]]:
    """Returns the lines nearest to each query by cosine, nearest first.

    Args:
      queries: Texts to search for; their vectors are held in memory.
      count: Lines per query, a small number; all lines, if there are fewer.

    Raises:
      InputError: the encoder's vectors have another width or one is not finite, `count` is below 1,
        or the corpus has changed.
      ValueError: the encoder returns arrays of another shape.
    """
    count = errors.as_integer("count", count)
    if not queries:
      return []
    query_ND = encoding.encode(self._encoder, queries, **self._options)
    query_ND = query_ND[:, : self._corpus.dimensions]
    self._check(queries, query_ND)
    near = self._nearest(query_ND, count)
    texts = {row: self._text_of(row) for row in np.unique(near.index_NK).tolist()}
    return [
      [Hit(row + 1, score, texts[row]) for row, score in zip(row_K, score_K, strict=True)]
      for row_K, score_K in zip(near.index_NK.tolist(), near.score_NK.tolist(), strict=True)
    ]

  def stream(self, queries: Iterable[str], count: int) -> Iterator[tuple[str, list[Hit]]]:
    """Yields each query with its result of `search`; reads 32,768 queries at a time."""
    for window in encoding.windows(queries, WINDOW):
      yield from zip(window, self.search(window, count), strict=True)

  def _check(self, queries: Sequence[str], query_ND: np.ndarray) -> None:
    width = self._corpus.vectors.shape[1]
    if query_ND.shape[1] != width:
      raise errors.InputError(
        f"{self._corpus.folder} has vectors of width {width}, the encoder's have width "
        f"{query_ND.shape[1]}: give the encoder that computed them"
      )
    finite_N = np.isfinite(query_ND).all(axis=1)
    if not finite_N.all():
      text = queries[int(np.argmin(finite_N))]
      raise errors.InputError(
        f"the encoder's vector of {text!r} contains a value that is not finite"
      )


def nearest_lines(
  encoder: Any, queries: Iterable[str], corpus: EmbeddedText, count: int, **options: Any
) -> Iterator[tuple[str, list[Hit]]]:
  """Yields each query with the lines nearest to it: a `Searcher` for one stream of queries.

  Args:
    encoder: The encoder of the vectors.
    queries: Texts to search for, read 32,768 at a time.
    corpus: The text to search.
    count: Lines per query.
    **options: Further arguments of `Searcher`.

  Raises:
    InputError: as in `Searcher` and its `search`.
  """
  yield from Searcher(encoder, corpus, **options).stream(queries, count)


class _ExactSearch:
  """Compares queries with the vectors of all lines but the blank ones."""

  def __init__(
    self,
    corpus: EmbeddedText,
    blank_E: np.ndarray,
    engine: exact_search.Engine,
    progress: bool | None,
  ):
    self._corpus, self._blank_E, self._engine = corpus, blank_E, engine
    self._disable = None if progress is None else not progress
    self._shards: list[exact_search.DistinctVectors] = []  # Those that the first search has read.

  def nearest(self, query_ND: np.ndarray, k: int) -> exact_search.Neighbors:
    """Returns the nearest lines by row."""
    near = exact_search.nearest_in_blocks(query_ND, self._blocks(), k, engine=self._engine)
    # Rows are counted without the blank ones.
    blank_E = self._blank_E - np.arange(len(self._blank_E))
    row_NK = near.index_NK + np.searchsorted(blank_E, near.index_NK, side="right")
    return exact_search.Neighbors(row_NK, near.score_NK)

  def _blocks(self) -> Iterator[exact_search.DistinctVectors]:
    corpus = self._corpus
    with progress_bar.Bar(
      total=len(corpus), unit=" lines", desc=corpus.path, disable=self._disable
    ) as bar:
      start = 0
      for number, shard_MD in enumerate(corpus.vectors.shards()):
        if number == len(self._shards):
          self._shards.append(self._prepared(shard_MD, start))
        yield self._shards[number]
        start += len(shard_MD)
        bar.update(len(shard_MD))

  def _prepared(self, shard_MD: np.ndarray, start: int) -> exact_search.DistinctVectors:
    first, last = np.searchsorted(self._blank_E, (start, start + len(shard_MD)))
    if first == last:
      return exact_search.DistinctVectors(shard_MD, start=start)
    row_S = np.delete(np.arange(len(shard_MD)), self._blank_E[first:last] - start)
    return exact_search.DistinctVectors(exact_search.SelectedRows(shard_MD, row_S), start=start)
