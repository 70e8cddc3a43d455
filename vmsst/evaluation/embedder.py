"""Embeds texts for tasks, in parts that any process can compute."""

import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from vmsst import errors
from vmsst.encoder import encoding
from vmsst.io import progress_bar
from vmsst.search import exact_search

WINDOW = 1 << 14
"""Texts of a part."""
BLOCK = 1 << 12
"""Split texts whose pieces have vectors in memory at once."""

Arrays = dict[str, np.ndarray]
"""What is computed from a part, by name."""


@dataclasses.dataclass(frozen=True)
class Side:
  """Texts of one language.

  Attributes:
    language: Language code in the benchmark's files; `vmsst.languages.language` accepts it.
    texts: The texts, in file order.
    method: Method of the encoder, if it has it. Others than `encode` are for large tasks.
    split: Splits a text into pieces, whose mean vector it gets, for large tasks; default: not
      split.
  """

  language: str
  texts: Sequence[str]
  method: str = "encode"
  split: Callable[[str], Sequence[str]] | None = None


@dataclasses.dataclass(frozen=True)
class Part:
  """What one process computes at once.

  Attributes:
    content: What it is computed from; must be picklable.
    key: What identifies the content, as JSON.
    size: What the progress bar counts.
    title: Name for messages.
  """

  content: Any
  key: Any
  size: int
  title: str


class Embedder:
  """Embeds texts in this process.

  Args:
    encoder: An object with `encode(texts)`.
    name: Its name or path.
    dimensions: To how many first dimensions vectors are cut for further results.
    search: Finds the nearest vectors of a knowledge base.
    load: Returns name and encoder in other processes, for subclasses that have any.

  Attributes:
    scratch: Folder for temporary files of large tasks, which other processes see too; None: they
      use one of the system.
    source: Opens the encoder in any process.
    dimensions: As above, sorted.
    search: As above.
    width: Width of the vectors; 0 if there are none yet.
  """

  scratch: str | None = None

  def __init__(
    self,
    encoder: Any,
    name: str = "encoder",
    *,
    dimensions: Iterable[int] = (),
    search: exact_search.Search = exact_search.search,
    load: Callable[[], tuple[str, Any]] | None = None,
  ):
    self.source = encoding.EncoderSource(encoder, name, load)
    self.dimensions = sorted({errors.as_integer("dimensions", x) for x in dimensions})
    self.search = search
    self._shared: dict[tuple[str, str], np.ndarray] = {}
    self.check_width(getattr(encoder, "dimension", None) or 0)

  def check_width(self, width: int) -> None:
    """Sets the width; raises InputError if vectors are narrower than they are to be cut to."""
    if width and max(self.dimensions, default=0) > width:
      raise errors.InputError(
        f"dimensions is {max(self.dimensions)}: the encoder's vectors have {width}; give 1 to "
        f"{width}"
      )
    self.width = width

  def map(
    self,
    title: str,
    compute: Callable[[Any], Arrays],
    parts: Sequence[Part],
    *,
    keep: bool = False,
  ) -> Iterator[Arrays]:
    """Yields `compute(content)` of each part, in order.

    Subclasses may do this in other processes, and store the arrays.

    Args:
      title: Name of this kind of work, for the progress bar.
      compute: Computes arrays; must be picklable. `source.open()` is the encoder.
      parts: The parts.
      keep: Whether to store the arrays, if this can be done, even if this process computes them.
    """
    done = 0
    total = sum(part.size for part in parts)
    with progress_bar.Bar(total=total, desc=title, outer=True) as bar:
      for part in parts:
        yield compute(part.content)
        done += part.size
        bar.update(max(0, done - bar.n))

  def __call__(self, side: Side) -> np.ndarray:
    """Returns the vectors of texts in one language, float32 [N, D].

    Raises:
      InputError: a value is not finite, or too large for a norm in float32; or the vectors have
        fewer dimensions than they are to be cut to.
    """
    if side.split is None:
      if side.method == "encode" and side.texts and all(x in self._shared for x in _keys(side)):
        return np.array([self._shared[key] for key in _keys(side)])
      return self._embed(side.texts, [side.language] * len(side.texts), side.method)
    means = []  # of the pieces of each text, which are not normalized first
    for start in range(0, len(side.texts), BLOCK):
      pieces = [side.split(text) for text in side.texts[start : start + BLOCK]]
      count_N = np.array([len(pieces_of_text) for pieces_of_text in pieces])
      whole = dataclasses.replace(side, texts=[x for y in pieces for x in y], split=None)
      first_N = np.cumsum(count_N) - count_N
      sum_ND = np.add.reduceat(self(whole), first_N, axis=0, dtype=np.float32)
      means.append(sum_ND / count_N[:, None].astype(np.float32))
    return np.concatenate(means)

  def _embed(self, texts: Sequence[str], codes: Sequence[str], method: str) -> np.ndarray:
    parts = []
    for first in range(0, max(1, len(texts)), WINDOW):
      window = slice(first, first + WINDOW)
      content = list(texts[window]), list(codes[window]), method
      size = len(content[0])
      parts.append(Part(content, content, size, f"{size:,} texts"))
    arrays = [*self.map("embed", functools.partial(_vectors, self.source), parts)]
    encoding.log_all_cut([cut for x in arrays for cut in x["cut"].tolist()], len(texts))
    vectors_ND = np.concatenate([x["vectors"] for x in arrays])
    self.check_width(vectors_ND.shape[1])
    return vectors_ND

  def share(self, sides: Sequence[Side], report: Callable[[str], None]) -> None:
    """Embeds texts together for the calls that follow, equal texts once, and forgets others."""
    keys = dict.fromkeys(key for side in sides for key in _keys(side))
    self._shared.clear()
    if keys:
      report(f"embedding {len(keys):,} texts")
      codes, texts = zip(*keys, strict=True)
      self._shared |= zip(keys, self._embed(texts, codes, "encode"), strict=True)


def _keys(side: Side) -> Iterator[tuple[str, str]]:
  return ((side.language, text) for text in side.texts)


def _vectors(source: encoding.EncoderSource, window: tuple[list[str], list[str], str]) -> Arrays:
  """Returns the vectors of texts, and how many texts were cut.

  Args:
    source: The encoder.
    window: The texts, the code of each one's language, and the method of the encoder.
  """
  texts, codes, method = window
  with np.errstate(over="ignore"):  # Values too large for float32 become infinite.
    vectors_ND, cut = source.encode(texts, method=method, language=codes)
  encoding.check_finite(vectors_ND, texts)
  return {"vectors": vectors_ND, "cut": np.array(cut, np.int64).reshape(-1, 3)}
