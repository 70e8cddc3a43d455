"""Searches for queries by units of work, in other processes: `vmsst search` with an engine."""

import dataclasses
import functools
import json
import os
import shutil
from collections.abc import Iterable, Sequence
from typing import Any

from vmsst import errors
from vmsst.files import atomic_files, storage, work_folders
from vmsst.mining import span_search, span_units, text_search
from vmsst.search import exact_search
from vmsst.search.index_folder import StoredIndex
from vmsst.units import base, engines, kept_values
from vmsst.vectors import embedded_text, encoding
from vmsst.vectors.embedded_text import EmbeddedText
from vmsst.vectors.encoder_sources import EncoderSource

_FORMAT = 1
"""Version of the results; increase it if the same queries get other lines."""


@dataclasses.dataclass(frozen=True)
class SearcherSource:
  """Opens a searcher in any process, which keeps it until it opens another.

  Attributes:
    encoder: The encoder of the queries.
    corpus: The text.
    vectors: The folder of its vectors.
    index: The folder of their index; None: the search is exact.
    language: Code of the queries' language.
    batch_size: Queries per batch.
    compare: Compares vectors in an exact search; must be picklable.
    digest: Hash of the text, the vectors and the index.
  """

  encoder: EncoderSource
  corpus: str
  vectors: str
  index: str | None
  language: str | None
  batch_size: int
  compare: exact_search.Engine
  digest: str

  def open(self) -> text_search.Searcher:
    """Returns the searcher.

    Raises:
      InputError: a file is missing, damaged or has changed.
    """
    return _searchers.get(self, self._open)

  def _open(self) -> text_search.Searcher:
    corpus = embedded_text.open_text(self.corpus, self.vectors)
    index = corpus.open_index(self.index) if self.index else None
    if digest(corpus, index) != self.digest:
      raise errors.InputError(
        f"{self.corpus} or its vectors have changed since the search started; start over"
      )
    return text_search.Searcher(
      self.encoder.open(),
      corpus,
      index=index,
      language=self.language,
      batch_size=self.batch_size,
      engine=self.compare,
      progress=False,
    )


_searchers: kept_values.LastOpened[SearcherSource, text_search.Searcher] = kept_values.LastOpened()


def source(
  encoder: EncoderSource,
  corpus: EmbeddedText,
  *,
  index: StoredIndex | None,
  language: str | None,
  batch_size: int,
  compare: exact_search.Engine,
) -> SearcherSource:
  """Returns the source of a searcher; see `SearcherSource`."""
  return SearcherSource(
    encoder,
    storage.absolute(corpus.path),
    storage.absolute(corpus.folder),
    storage.absolute(index.folder) if index else None,
    language,
    batch_size,
    compare,
    digest(corpus, index),
  )


def digest(corpus: EmbeddedText, index: StoredIndex | None) -> str:
  """Returns a hash of a text, its vectors and their index."""
  settings = dataclasses.asdict(index.settings) if index else None
  return base.digest(corpus.digest, corpus.vectors.digest, settings)


@dataclasses.dataclass(frozen=True)
class SearchQueries(base.Unit):
  """Writes the lines nearest to some queries, as `as_line` does.

  Attributes:
    searcher: Searches.
    first: Number of the first query, from 1.
    queries: The queries.
    count: Lines per query.
    path: Output file.
  """

  searcher: SearcherSource
  first: int
  queries: Sequence[str]
  count: int
  path: str

  @functools.cached_property
  def key(self) -> str:
    """Hash of everything that the output depends on; without the batch size, as in embedding."""
    return base.digest(
      "search",
      _FORMAT,
      self.searcher.encoder.identity,
      self.searcher.digest,
      self.searcher.language,
      self.queries,
      self.count,
    )

  def __str__(self) -> str:
    return f"queries {self.first:,} to {self.first + len(self.queries) - 1:,}"

  def make(self) -> dict[str, Any]:
    """Writes the file."""
    hits = self.searcher.open().search(self.queries, self.count)
    with atomic_files.atomic_file(self.path) as stream:
      for query, found in zip(self.queries, hits, strict=True):
        stream.write(f"{as_line(query, found)}\n".encode())
    return {}


def as_line(query: str, hits: Iterable[text_search.Hit]) -> str:
  """Returns the result of a query as a line of JSON."""
  results = [hit.as_json() for hit in hits]
  return json.dumps({"query": query, "results": results}, ensure_ascii=False)


def search_file(
  searcher: SearcherSource,
  corpus: EmbeddedText,
  queries: Iterable[str],
  output: str | os.PathLike[str],
  count: int,
  *,
  engine: engines.Engine,
  progress: bool | None = None,
) -> None:
  """Writes a line of JSON per query; resumes after interruption from the work folder of `output`.

  A unit has as many queries as `Searcher.stream` searches at once. In a large corpus without an
  index it searches one span (`span_units`), so that many processes can share a few queries.

  Args:
    searcher: Searches.
    corpus: Its text and vectors.
    queries: Texts to search for.
    output: Output file, local or in an object store, written atomically.
    count: Lines per query.
    engine: Where to search.
    progress: Show a progress bar; None: on a terminal only.

  Raises:
    InputError: as in `Searcher` and its `search`.
  """
  folder = work_folders.path_of(output)
  if searcher.index is None and len(span_search.spans(corpus.vectors)) > 1:
    found = span_units.search(
      searcher.encoder,
      corpus,
      queries,
      count,
      folder,
      digest=searcher.digest,
      language=searcher.language,
      batch_size=searcher.batch_size,
      compare=searcher.compare,
      engine=engine,
      progress=progress,
    )
    with atomic_files.atomic_file(output) as stream:
      stream.writelines(f"{as_line(*each)}\n".encode() for each in found)
    work_folders.clear(folder)
    return
  units, first = [], 1
  for number, window in enumerate(encoding.windows(queries, text_search.WINDOW)):
    path = f"{folder}/queries-{number:05d}.jsonl"
    units.append(SearchQueries(searcher, first, tuple(window), count, path))
    first += len(window)
  engines.run("search", units, engine, progress=progress)
  with atomic_files.atomic_file(output) as stream:
    for unit in units:
      with storage.explained(unit.path, "read"), storage.open_binary(unit.path) as part:
        shutil.copyfileobj(part, stream)
  work_folders.clear(folder)
