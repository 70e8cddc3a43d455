"""Searches the lines of a file for texts, by their vectors."""

import collections
import dataclasses
import json
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from vmsst import errors
from vmsst.data import input_texts
from vmsst.encoder import encoding, file_embedding
from vmsst.io import stored_settings
from vmsst.jobs import atomic_files, base, engines, work_folders
from vmsst.search import embedded_text, exact_search, faiss_index, sharded_search
from vmsst.search.embedded_text import EmbeddedText

# Queries that `Searcher.stream` searches together, in one pass through the vectors.
_WINDOW = 1 << 15


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
    index: faiss_index.Index | None = None,
    name: str | None = None,
    language: str | None = None,
    batch_size: int = 128,
    compare: exact_search.Compare = exact_search.compare,
  ):
    """Opens a corpus; logs a warning if another encoder has computed its vectors.

    Args:
      encoder: The encoder of the vectors, an object with `encode_query(texts)` or, if it has one
        prompt for all texts or no such method, `encode(texts)`.
      corpus: The text to search.
      index: An index of its vectors, for an approximate search; None, or if it is exact: an exact
        search of the vectors, with the same result.
      name: Name or path of the encoder; see `encoding.identity`.
      language: Code of the queries' language, for encoders that need it.
      batch_size: Queries per batch.
      compare: Compares vectors in an exact search; `vmsst.search.device_search.compare` uses
        accelerators.

    Raises:
      InputError: the corpus has no line with a visible character.
    """
    visible_N = corpus.visible_rows()
    _compare_encoders(corpus, encoder, name or getattr(encoder, "path", None))
    self._encoder, self._corpus = encoder, corpus
    self._options: dict[str, Any] = {"language": language, "batch_size": batch_size}
    self._read_text = corpus.reader()
    self._nearest: Callable[[np.ndarray, int], exact_search.Neighbors]
    if index is None or index.exact:
      base = exact_search.DistinctVectors(corpus.vectors, visible_N)
      self._nearest = lambda query_ND, k: exact_search.top_k(query_ND, base, k, compare=compare)
    else:
      self._nearest = lambda query_ND, k: index.nearest(
        exact_search.unit_rows(query_ND), k, visible_N
      )

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
    query_ND = encoding.encode(
      self._encoder, queries, method="encode_query", progress=False, **self._options
    )
    query_ND = query_ND[:, : self._corpus.dimensions]
    _check_width(self._corpus, query_ND.shape[1])
    encoding.check_finite(query_ND, queries)
    return _hits(self._nearest(query_ND, count), self._read_text)

  def stream(self, queries: Iterable[str], count: int) -> Iterator[tuple[str, list[Hit]]]:
    """Yields each query with its result of `search`.

    Args:
      queries: Texts to search for, read as they are searched.
      count: Lines per query.
    """
    input_texts.check(queries)
    for texts in encoding.windows(queries, _WINDOW):
      yield from zip(texts, self.search(texts, count), strict=True)


def search_file(
  encoder: Any,
  queries: str,
  corpus: EmbeddedText,
  output: str | os.PathLike[str],
  count: int,
  *,
  name: str,
  language: str | None = None,
  batch_size: int = 128,
  compare: exact_search.Compare = exact_search.compare,
  engine: engines.Engine | None = None,
  load: Callable[[], tuple[str, Any]] | None = None,
) -> None:
  """Writes the result of an exact search as `as_line`, one query per line.

  The vectors of the queries, and blocks of queries and lines that are compared, are units of work
  with results in the work folder of `output`: an interrupted call resumes from there.

  Args:
    encoder: The encoder of the vectors, an object with `encode(texts)`; see `encoding.encode`.
    queries: Text file, one query per line.
    corpus: The text to search.
    output: Output file, local or in an object store, written atomically.
    count: Lines per query, a small number; all lines, if there are fewer.
    name: Name or path of the encoder; see `file_embedding.embed_file`.
    language: Code of the queries' language, for encoders that need it.
    batch_size: Queries per batch.
    compare: Compares vectors, in any process.
    engine: Where to compute; None: in this process.
    load: As in `file_embedding.embed_file`.

  Raises:
    InputError: as in `Searcher`, `Searcher.search` and `file_embedding.embed_file`.
  """
  count, engine = errors.as_integer("count", count), engine or engines.Local()
  with work_folders.owned(output):
    work = work_folders.work_path(output)
    visible_N = corpus.visible_rows()
    _compare_encoders(corpus, encoder, name)
    text = embedded_text.fingerprint(queries)
    identity = encoding.identity(encoder, name)
    # Vectors of another search with this output, which was interrupted, have another name.
    folder = f"{work}/queries-{base.digest(text['digest'], identity, language, corpus.dimensions)}"
    file_embedding.embed_file(
      encoder,
      queries,
      folder,
      name=name,
      language=language,
      dimensions=corpus.dimensions,
      batch_size=batch_size,
      engine=engine,
      load=load,
    )
    embedded = embedded_text.open_text(queries, folder)
    _check_width(corpus, embedded.vectors.shape[1])
    near = exact_search.top_k(
      embedded.vectors,
      exact_search.DistinctVectors(corpus.vectors, visible_N),
      count,
      compare=sharded_search.compare(work, compare=compare, engine=engine),
    )
    read_text, texts = corpus.reader(), embedded.texts()
    with atomic_files.atomic_file(output) as stream:
      for rows in exact_search.blocks(len(near)):
        for hits, query in zip(_hits(near[rows], read_text), texts, strict=False):
          stream.write(f"{as_line(query, hits)}\n".encode())
      collections.deque(texts, maxlen=0)  # The digest is compared at the end of the file.
    work_folders.clear(work)


def other_encoder(corpus: EmbeddedText, encoder: Any, name: str) -> str:
  """Returns how the encoder of queries differs from that of a corpus, for people; "" if equal.

  Lines and queries may have prompts of their own.
  """
  of_lines, of_queries = (
    {"encoder": {key: value for key, value in known.items() if key != "prompt"}}
    for known in (corpus.encoder, encoding.identity(encoder, name))
  )
  return stored_settings.differences(of_lines, of_queries) if corpus.encoder else ""


def _compare_encoders(corpus: EmbeddedText, encoder: Any, name: str | None) -> None:
  if name is not None and (differences := other_encoder(corpus, encoder, name)):
    logging.getLogger(__name__).warning("%s: %s", corpus.folder, differences)


def as_line(query: str, hits: Sequence[Hit]) -> str:
  """Returns the result of a query as a line of JSON."""
  results = [hit.as_json() for hit in hits]
  return json.dumps({"query": query, "results": results}, ensure_ascii=False)


def _check_width(corpus: EmbeddedText, width: int) -> None:
  if corpus.vectors.shape[1] != width:
    raise errors.InputError(
      f"{corpus.folder} has vectors of width {corpus.vectors.shape[1]}, the encoder's have width "
      f"{width}: give the encoder that computed them"
    )


def _hits(near: exact_search.Neighbors, read_text: Callable[[int], str]) -> list[list[Hit]]:
  """Returns the lines of rows found, given a function that returns the text of a row."""
  score_NK = np.clip(near.score_NK, -1, 1)  # Sums of products exceed 1 by rounding.
  texts = {row: read_text(row) for row in np.unique(near.index_NK).tolist()}
  return [
    [Hit(row + 1, score, texts[row]) for row, score in zip(row_K, score_K, strict=True)]
    for row_K, score_K in zip(near.index_NK.tolist(), score_NK.tolist(), strict=True)
  ]
