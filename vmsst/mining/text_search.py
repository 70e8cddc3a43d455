"""Searches a file for the lines whose vectors are nearest to a query's vector."""

import dataclasses
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from vmsst import errors
from vmsst.data import input_texts
from vmsst.encoder import encoding
from vmsst.io import manifest
from vmsst.search import exact_search, faiss_index
from vmsst.search.vector_store import EmbeddedText


@dataclasses.dataclass(frozen=True)
class Hit:
  """A line that matches a query.

  Attributes:
    line: Line number, from 1.
    score: Cosine of the line and the query.
    text: The line.
  """

  line: int
  score: float
  text: str


class Searcher:
  """Searches the lines of a text. Create it once, then call `search` any number of times.

  Creating a searcher reads the whole text. Vectors are memory-mapped. Each exact search reads all
  vectors; an approximate search reads only the vectors of the candidates. Blank lines are never
  returned.
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
    search: exact_search.Search = exact_search.search,
  ):
    """Opens a corpus. Logs a warning if a different encoder computed the corpus vectors.

    Args:
      encoder: The encoder that computed the vectors: an object with `encode_query(texts)` or
        `encode(texts)`. `encode` is called if the encoder has one prompt for all texts or lacks
        `encode_query`.
      corpus: The text to search.
      index: An index of the corpus, for an approximate search. The search is exact if the index is
        omitted or is `Flat`.
      name: Name or path of the encoder; see `encoding.identity`.
      language: Language code of the queries, for encoders that require one.
      batch_size: Queries per batch.
      search: Function for an exact nearest-neighbor search; `vmsst.search.device_search.search`
        uses accelerators.

    Raises:
      InputError: If the corpus has no line with a visible character.
    """
    self._row_M = corpus.visible_rows()
    name = name or getattr(encoder, "path", None)
    if name is not None and (
      differences := other_encoder(corpus, encoding.identity(encoder, name))
    ):
      logging.getLogger(__name__).warning("%s: %s", corpus.vectors.folder, differences)
    self._encoder, self._corpus = encoder, corpus
    self._options: dict[str, Any] = {"language": language, "batch_size": batch_size}
    self._read_text = corpus.reader()
    if index is not None and not index.exact:
      search = faiss_index.index_search(index, index)
    self._search = search

  def search(self, queries: input_texts.Texts, count: int) -> list[list[Hit]]:
    """Returns the lines nearest to each query by cosine, nearest first.

    Args:
      queries: Texts to search for; all query vectors are held in memory.
      count: Maximum number of lines per query. Use a small number.

    Raises:
      InputError: If the queries' vectors are not as wide as the corpus vectors or are not finite,
        `count` is below 1, or the corpus has changed.
      ValueError: If the encoder does not return one vector for each query.
      TypeError: If `queries` is not a sequence of texts; for example, it is one string or a
        dictionary.
    """
    count = errors.as_integer("count", count)
    queries = input_texts.as_list(queries)
    if not queries:
      return []
    query_ND = encoding.encode(self._encoder, queries, method="encode_query", **self._options)
    query_ND = query_ND[:, : self._corpus.dimensions]
    check_width(self._corpus, query_ND.shape[1])
    encoding.check_finite(query_ND, queries)
    neighbors = nearest_lines(query_ND, self._corpus, self._row_M, count, self._search)
    return hits(neighbors, self._read_text)


def other_encoder(corpus: EmbeddedText, identity: Mapping[str, str]) -> str:
  """Returns a message if the queries and the corpus use different encoders, otherwise "".

  The encoders' prompts are not compared, because queries and documents often have different
  prompts.
  """
  corpus_settings, query_settings = (
    {"encoder": {key: value for key, value in identities.items() if key != "prompt"}}
    for identities in (corpus.encoder, identity)
  )
  return manifest.differences(corpus_settings, query_settings) if corpus.encoder else ""


def as_line(query: str, hits: Sequence[Hit]) -> str:
  """Formats the hits of a query as a line of JSON."""
  results = [{**dataclasses.asdict(hit), "score": round(hit.score, 6)} for hit in hits]
  return json.dumps({"query": query, "results": results}, ensure_ascii=False)


def nearest_lines(
  query_ND: exact_search.Rows,
  corpus: EmbeddedText,
  row_M: np.ndarray,
  k: int,
  search: exact_search.Search,
) -> exact_search.Neighbors:
  """Returns the k lines nearest to each query.

  Args:
    query_ND: Query vectors.
    corpus: The text to search.
    row_M: Indices of the lines to search.
    k: Lines per query.
    search: Nearest-neighbor search.
  """
  neighbors = exact_search.top_k(
    query_ND, exact_search.Selection(corpus.vectors, row_M), k, search=search
  )
  for block in exact_search.blocks(len(neighbors.index_NK)):
    neighbors.index_NK[block] = row_M[neighbors.index_NK[block]]
  return neighbors


def check_width(corpus: EmbeddedText, width: int) -> None:
  """Raises InputError unless the vectors of a corpus have this width."""
  if corpus.vectors.shape[1] != width:
    raise errors.InputError(
      f"{corpus.vectors.folder} has vectors of width {corpus.vectors.shape[1]}, but the encoder's "
      f"vectors have width {width}; use the encoder that computed these vectors"
    )


def hits(neighbors: exact_search.Neighbors, read_text: Callable[[int], str]) -> list[list[Hit]]:
  """Converts neighbors to hits. `read_text` returns the text of a row."""
  score_NK = np.clip(neighbors.score_NK, -1, 1)  # Rounding can push a cosine above 1.
  texts = {row: read_text(row) for row in np.unique(neighbors.index_NK).tolist()}
  return [
    [Hit(row + 1, score, texts[row]) for row, score in zip(row_K, score_K, strict=True)]
    for row_K, score_K in zip(neighbors.index_NK.tolist(), score_NK.tolist(), strict=True)
  ]
