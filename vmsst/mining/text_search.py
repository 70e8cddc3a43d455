"""Looks texts up among the lines of a file by their vectors."""

import dataclasses
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import tqdm

from vmsst import errors
from vmsst.search import exact_search
from vmsst.vectors import encoding
from vmsst.vectors.embedded_text import EmbeddedText

# Queries that are looked up together, in one pass through the vectors.
_WINDOW = 1 << 15


@dataclasses.dataclass(frozen=True)
class Hit:
  """A line that was found.

  Attributes:
    line: Its number, from 1.
    score: Its cosine with the query.
    text: What stands there.
  """

  line: int
  score: float
  text: str

  def as_json(self) -> dict[str, Any]:
    """For JSON."""
    return {**dataclasses.asdict(self), "score": round(self.score, 6)}


def nearest_lines(
  encoder: Any,
  queries: Iterable[str],
  base: EmbeddedText,
  count: int,
  *,
  language: str | None = None,
  batch_size: int = 128,
  engine: exact_search.Engine = exact_search.compare,
  progress: bool | None = None,
) -> Iterator[tuple[str, list[Hit]]]:
  """Yields each query with the lines nearest to it by cosine, the nearest first.

  Neither the vectors nor the lines of the knowledge base are held: both are gone through once for
  every 32,768 queries.

  Args:
    encoder: What made the vectors; has `encode(texts)`, see `encoding.encode`.
    queries: Texts to look up.
    base: The knowledge base.
    count: How many lines for each, a small number; all, if there are fewer.
    language: Code of the queries' language, for encoders that need it.
    batch_size: Queries embedded at once.
    engine: Compares vectors; `vmsst.search.device_search.engine` returns one for this machine.
    progress: Show a progress bar; None: on a terminal only.

  Raises:
    InputError: the encoder's vectors are of another width, or one is not finite, or the knowledge
      base is empty.
    ValueError: `count` is below 1, or the encoder gives arrays of another shape.
  """
  if not len(base):
    raise errors.InputError(f"{base.path} is empty: there is nothing to look up")
  for window in encoding.windows(queries, _WINDOW):
    query_ND = encoding.encode(
      encoder, window, language=language, batch_size=batch_size, progress=False
    )
    if query_ND.shape[1] != base.vectors.shape[1]:
      raise errors.InputError(
        f"{base.folder} has vectors of width {base.vectors.shape[1]}, the encoder's are "
        f"{query_ND.shape[1]} wide: give the encoder that made them"
      )
    finite_N = np.isfinite(query_ND).all(axis=1)
    if not finite_N.all():
      text = window[int(np.argmin(finite_N))]
      raise errors.InputError(f"the encoder's vector of {text!r} holds a value that is not finite")
    near = exact_search.nearest_in_blocks(query_ND, _shards(base, progress), count, engine=engine)
    texts = base.lines(np.unique(near.index_NK).tolist())
    for query, row_K, score_K in zip(
      window, near.index_NK.tolist(), near.score_NK.tolist(), strict=True
    ):
      hits = zip(row_K, score_K, strict=True)
      yield query, [Hit(row + 1, score, texts[row]) for row, score in hits]


def _shards(base: EmbeddedText, progress: bool | None) -> Iterator[np.ndarray]:
  disable = None if progress is None else not progress
  with tqdm.tqdm(total=len(base), unit=" lines", desc=base.path, disable=disable) as bar:
    for shard_MD in base.vectors.shards():
      yield shard_MD
      bar.update(len(shard_MD))
