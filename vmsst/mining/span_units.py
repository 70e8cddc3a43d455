"""Exact search by units of work: each compares a window of queries with a span of the corpus."""

import dataclasses
import functools
import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from vmsst import errors
from vmsst.files import atomic_files, npz_files
from vmsst.mining import span_search, text_search
from vmsst.search import exact_search
from vmsst.units import base, engines
from vmsst.vectors import encoding, vector_store
from vmsst.vectors.embedded_text import EmbeddedText
from vmsst.vectors.encoder_sources import EncoderSource

_FORMAT = 1
"""Version of the results; increase it if the same queries and vectors get others."""
_NAMES = ("index", "score", "key")


@dataclasses.dataclass(frozen=True)
class EncodeQueries(base.Unit):
  """Writes the vectors of some queries.

  Attributes:
    encoder: The encoder.
    options: How to encode.
    first: Number of the first query, from 1.
    queries: The queries.
    path: Output file.
  """

  encoder: EncoderSource
  options: text_search.QueryOptions
  first: int
  queries: Sequence[str]
  path: str

  @functools.cached_property
  def key(self) -> str:
    """Hash of everything that the output depends on; without the batch size, as in embedding."""
    options = self.options.language, self.options.dimensions
    return base.digest("queries", _FORMAT, self.encoder.identity, options, self.queries)

  def __str__(self) -> str:
    return f"queries {self.first:,} to {self.first + len(self.queries) - 1:,}"

  def make(self) -> dict[str, Any]:
    """Writes the file."""
    query_ND = self.options.encode(self.encoder.open(), self.queries)
    with atomic_files.atomic_file(self.path) as stream:
      np.save(stream, query_ND)
    return {}


@dataclasses.dataclass(frozen=True)
class StoredCorpus:
  """Vectors to search that any process can open.

  Attributes:
    vectors: The vectors.
    blank: File with the rows of blank lines.
    digest: Hash of the text and its vectors.
  """

  vectors: vector_store.Vectors
  blank: str
  digest: str


@dataclasses.dataclass(frozen=True)
class SearchSpan(base.Unit):
  """Finds the lines of a span that are nearest to some queries.

  Attributes:
    title: Names the queries.
    queries: File of their vectors.
    queries_key: Hash of everything that these depend on.
    corpus: The corpus.
    span: Numbers of the shards of the span.
    count: Lines per query.
    compare: Compares vectors; must be picklable.
    path: Output file.
  """

  title: str
  queries: str
  queries_key: str
  corpus: StoredCorpus
  span: range
  count: int
  compare: exact_search.Engine
  path: str

  @functools.cached_property
  def key(self) -> str:
    """Hash of everything that the output depends on."""
    span = self.span.start, self.span.stop
    return base.digest("span", _FORMAT, self.queries_key, self.corpus.digest, span, self.count)

  def __str__(self) -> str:
    return f"{self.title} in shards {self.span.start + 1:,} to {self.span.stop:,}"

  def make(self) -> dict[str, Any]:
    """Writes the file; returns the number of lines that were compared."""
    vectors = self.corpus.vectors
    search = span_search.SpanSearch(vectors, npz_files.read_array(self.corpus.blank), self.compare)
    query = exact_search.DistinctVectors(npz_files.read_array(self.queries))
    found = search.search(query, self.span, self.count)
    index_NK, score_NK = (x[:, : found.total] for x in (found.near.index_NK, found.near.score_NK))
    row_U, place_NK = np.unique(search.rows(index_NK, self.span), return_inverse=True)
    key_NK = exact_search.row_keys(vectors.take(row_U))[place_NK].reshape(index_NK.shape)
    arrays = index_NK.astype(np.int32), score_NK, key_NK
    content: dict[str, Any] = dict(zip(_NAMES, arrays, strict=True))
    with atomic_files.atomic_file(self.path) as stream:
      np.savez(stream, **content)
    return {"lines": found.total}


def search(
  encoder: EncoderSource,
  corpus: EmbeddedText,
  queries: Iterable[str],
  count: int,
  folder: str,
  *,
  digest: str,
  language: str | None,
  batch_size: int,
  compare: exact_search.Engine,
  engine: engines.Engine,
  progress: bool | None = None,
) -> Iterator[tuple[str, list[text_search.Hit]]]:
  """Yields what `Searcher.stream` yields; resumes after interruption from a folder.

  Args:
    encoder: The encoder.
    corpus: The text to search.
    queries: Texts to search for.
    count: Lines per query.
    folder: Absolute path or URL of a folder for unfinished work, which the caller removes.
    digest: Hash of the text and its vectors.
    language: As in `Searcher`.
    batch_size: The same.
    compare: Compares vectors; must be picklable.
    engine: Where to search.
    progress: Show progress bars; None: on a terminal only.

  Raises:
    InputError: as in `Searcher` and its `search`.
  """
  count = errors.as_integer("count", count)
  blank_E = text_search.blank_rows(corpus)
  stored = StoredCorpus(corpus.vectors, f"{folder}/blank.npy", digest)
  with atomic_files.atomic_file(stored.blank) as stream:
    np.save(stream, blank_E)
  options = text_search.QueryOptions.of(corpus, language, batch_size)
  windows, first = [], 1
  for number, window in enumerate(encoding.windows(queries, text_search.WINDOW)):
    path = f"{folder}/queries-{number:05d}.npy"
    windows.append(EncodeQueries(encoder, options, first, tuple(window), path))
    first += len(window)
  engines.run("encode", windows, engine, progress=progress)
  merged = span_search.SpanSearch(corpus.vectors, blank_E, compare)
  spans = [
    SearchSpan(
      str(unit),
      unit.path,
      unit.key,
      stored,
      span,
      count,
      compare,
      f"{unit.path.removesuffix('.npy')}-span-{number:02d}.npz",
    )
    for unit in windows
    for number, span in enumerate(merged.spans)
  ]
  made = iter(zip(spans, engines.run("search", spans, engine, progress=progress), strict=True))
  text_of = corpus.reader()
  for window_unit in windows:
    query = exact_search.DistinctVectors(npz_files.read_array(window_unit.path))
    found = exact_search.BlockSearch(len(query), count)
    for unit, facts in itertools.islice(made, len(merged.spans)):
      index_NK, score_NK, key_NK = npz_files.read(unit.path, _NAMES)
      near = exact_search.Neighbors(index_NK.astype(np.int64), score_NK)
      found.add(near, key_NK, facts["lines"])
    near = found.of_all(query)
    near = exact_search.Neighbors(merged.rows(near.index_NK), near.score_NK)
    yield from zip(window_unit.queries, text_search.hits(near, text_of), strict=True)
