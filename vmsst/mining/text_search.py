"""Searches the lines of a file for texts, by their vectors."""

import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from vmsst import errors
from vmsst.mining import span_search
from vmsst.search import exact_search, indexed_search
from vmsst.search.index_folder import StoredIndex
from vmsst.text import input_texts
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

  The text and, in an exact search, the vectors are scanned once. Each call then reads the lines
  that it finds and the vectors that it compares, which are memory-mapped: all of them in an exact
  search, the candidates in an approximate one. Blank lines are never found.
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
      index: An index of its vectors, for an approximate search; None, or if it is exact: an exact
        search of the vectors, with the same result.
      language: Code of the queries' language, for encoders that need it.
      batch_size: Queries per batch.
      engine: Compares vectors in an exact search; `vmsst.search.device_search.engine` returns one
        for this machine.
      progress: Show a progress bar for each pass of an exact search; None: on a terminal only.

    Raises:
      InputError: the corpus has no line with text.
    """
    blank_E = blank_rows(corpus)
    self._encoder = encoder
    self._options = QueryOptions.of(corpus, language, batch_size)
    self._text_of = corpus.reader()
    self._nearest: Callable[[np.ndarray, int], exact_search.Neighbors]
    if index is None or index.exact:
      exact = span_search.SpanSearch(corpus.vectors, blank_E, engine, keep=True)
      self._nearest = functools.partial(exact.nearest, title=corpus.path, progress=progress)
    else:
      row_S = np.delete(np.arange(len(corpus)), blank_E) if len(blank_E) else None
      rows = indexed_search.IndexedRows(index, row_S)
      self._nearest = lambda query_ND, k: rows.nearest(exact_search.unit_rows(query_ND), k)

  def search(self, queries: input_texts.Texts, count: int) -> list[list[Hit]]:
    """Returns the lines nearest to each query by cosine, nearest first.

    Args:
      queries: Texts to search for; their vectors are held in memory.
      count: Lines per query, a small number; all lines, if there are fewer.

    Raises:
      InputError: the encoder's vectors have another width or one is not finite, `count` is below 1,
        or the corpus has changed.
      ValueError: the encoder returns arrays of another shape.
      TypeError: the queries are not texts, such as one string or a dictionary.
    """
    count = errors.as_integer("count", count)
    queries = input_texts.as_list(queries)
    if not queries:
      return []
    query_ND = self._options.encode(self._encoder, queries)
    return hits(self._nearest(query_ND, count), self._text_of)

  def stream(self, queries: Iterable[str], count: int) -> Iterator[tuple[str, list[Hit]]]:
    """Yields each query with its result of `search`; reads 32,768 queries at a time."""
    input_texts.check(queries)
    for window in encoding.windows(queries, WINDOW):
      yield from zip(window, self.search(window, count), strict=True)


@dataclasses.dataclass(frozen=True)
class QueryOptions:
  """How to compute vectors of queries that compare with those of a corpus.

  Attributes:
    folder: The folder of the vectors, for messages.
    width: Their width.
    dimensions: How many of the encoder's dimensions they have; None: all.
    language: Code of the queries' language, for encoders that need it.
    batch_size: Queries per batch.
  """

  folder: str
  width: int
  dimensions: int | None
  language: str | None
  batch_size: int

  @classmethod
  def of(cls, corpus: EmbeddedText, language: str | None, batch_size: int) -> "QueryOptions":
    """Returns the options for a corpus."""
    width = corpus.vectors.shape[1]
    return cls(str(corpus.folder), width, corpus.dimensions, language, batch_size)

  def encode(self, encoder: Any, queries: Sequence[str]) -> np.ndarray:
    """Returns the vectors, float32 [N, D]; see `Searcher.search` for errors."""
    query_ND = encoding.encode(
      encoder, queries, language=self.language, batch_size=self.batch_size, progress=False
    )[:, : self.dimensions]
    if query_ND.shape[1] != self.width:
      raise errors.InputError(
        f"{self.folder} has vectors of width {self.width}, the encoder's have width "
        f"{query_ND.shape[1]}: give the encoder that computed them"
      )
    finite_N = np.isfinite(query_ND).all(axis=1)
    if not finite_N.all():
      text = queries[int(np.argmin(finite_N))]
      raise errors.InputError(
        f"the encoder's vector of {text!r} contains a value that is not finite"
      )
    return query_ND


def blank_rows(corpus: EmbeddedText) -> np.ndarray:
  """Returns the rows of blank lines, int64 [E]; raises InputError if all lines are blank."""
  blank_E = corpus.blank_rows()
  if len(blank_E) == len(corpus):
    raise errors.InputError(f"{corpus.path} has no line with text: give a corpus with lines")
  return blank_E


def hits(near: exact_search.Neighbors, text_of: Callable[[int], str]) -> list[list[Hit]]:
  """Returns the lines of rows found, given a function that returns the text of a row."""
  score_NK = np.clip(near.score_NK, -1, 1)  # Sums of products exceed 1 by rounding.
  texts = {row: text_of(row) for row in np.unique(near.index_NK).tolist()}
  return [
    [Hit(row + 1, score, texts[row]) for row, score in zip(row_K, score_K, strict=True)]
    for row_K, score_K in zip(near.index_NK.tolist(), score_NK.tolist(), strict=True)
  ]


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
