"""Searches the lines of a file for texts, by their vectors."""

import dataclasses
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from vmsst import errors
from vmsst.files import progress_bar
from vmsst.search import exact_search
from vmsst.vectors import encoding
from vmsst.vectors.embedded_text import EmbeddedText

# Queries searched together, in one pass through the vectors.
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


def nearest_lines(
  encoder: Any,
  queries: Iterable[str],
  corpus: EmbeddedText,
  count: int,
  *,
  language: str | None = None,
  batch_size: int = 128,
  engine: exact_search.Engine = exact_search.compare,
  progress: bool | None = None,
) -> Iterator[tuple[str, list[Hit]]]:
  """Yields each query with the lines nearest to it by cosine, nearest first.

  Blank lines are never found. Neither the vectors nor the lines of the corpus are kept in memory:
  both are read once for every 32,768 queries.

  Args:
    encoder: The encoder of the vectors, an object with `encode(texts)`; see `encoding.encode`.
    queries: Texts to search for.
    corpus: The text to search.
    count: Lines per query, a small number; all lines, if there are fewer.
    language: Code of the queries' language, for encoders that need it.
    batch_size: Queries per batch.
    engine: Compares vectors; `vmsst.search.device_search.engine` returns one for this machine.
    progress: Show a progress bar; None: on a terminal only.

  Raises:
    InputError: the encoder's vectors have another width, one is not finite, or the corpus has no
      line with text.
    ValueError: `count` is below 1, or the encoder returns arrays of another shape.
  """
  blank_E = corpus.blank_rows()
  if len(blank_E) == len(corpus):
    raise errors.InputError(f"{corpus.path} has no line with text: give a corpus with lines")
  for window in encoding.windows(queries, _WINDOW):
    query_ND = encoding.encode(
      encoder, window, language=language, batch_size=batch_size, progress=False
    )
    if query_ND.shape[1] != corpus.vectors.shape[1]:
      raise errors.InputError(
        f"{corpus.folder} has vectors of width {corpus.vectors.shape[1]}, the encoder's have width "
        f"{query_ND.shape[1]}: give the encoder that computed them"
      )
    finite_N = np.isfinite(query_ND).all(axis=1)
    if not finite_N.all():
      text = window[int(np.argmin(finite_N))]
      raise errors.InputError(
        f"the encoder's vector of {text!r} contains a value that is not finite"
      )
    shards = _shards(corpus, blank_E, progress)
    near = exact_search.nearest_in_blocks(query_ND, shards, count, engine=engine)
    row_NK = _rows(near.index_NK, blank_E)
    texts = corpus.lines(np.unique(row_NK).tolist())
    for query, row_K, score_K in zip(window, row_NK.tolist(), near.score_NK.tolist(), strict=True):
      hits = zip(row_K, score_K, strict=True)
      yield query, [Hit(row + 1, score, texts[row]) for row, score in hits]


def _shards(
  corpus: EmbeddedText, blank_E: np.ndarray, progress: bool | None
) -> Iterator[np.ndarray]:
  """Yields the vectors of all lines but the blank ones."""
  start = 0
  disable = None if progress is None else not progress
  with progress_bar.Bar(total=len(corpus), unit=" lines", desc=corpus.path, disable=disable) as bar:
    for shard_MD in corpus.vectors.shards():
      first, last = np.searchsorted(blank_E, (start, start + len(shard_MD)))
      blank = blank_E[first:last] - start
      yield np.delete(shard_MD, blank, axis=0) if len(blank) else shard_MD
      start += len(shard_MD)
      bar.update(len(shard_MD))


def _rows(index_NK: np.ndarray, blank_E: np.ndarray) -> np.ndarray:
  """Returns the rows of lines that are numbered without the blank ones."""
  return index_NK + np.searchsorted(blank_E - np.arange(len(blank_E)), index_NK, side="right")
