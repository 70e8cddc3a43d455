"""Embeds the texts from evaluation tasks in chunks, which several processes can share."""

import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from vmsst import errors
from vmsst.encoder import encoding
from vmsst.io import progress_bar
from vmsst.search import exact_search

WINDOW = 1 << 14  # number of texts in a chunk
BLOCK = 1 << 12  # number of split texts whose piece vectors are in memory at the same time

Arrays = dict[str, np.ndarray]  # results of a chunk, by name


@dataclasses.dataclass(frozen=True)
class TextSet:
  """Texts in one language.

  Attributes:
    language: Language code of the texts, in any form that `vmsst.languages.language` accepts.
    texts: The texts, in file order.
    method: Encoder method to call; `encode` is called if the encoder lacks this method. Only large
      tasks may use a method other than `encode`.
    split: Function that splits a text into pieces; the text's vector is the mean of the piece
      vectors. Only large tasks may split texts (default: texts are not split).
  """

  language: str
  texts: Sequence[str]
  method: str = "encode"
  split: Callable[[str], Sequence[str]] | None = None


@dataclasses.dataclass(frozen=True)
class Chunk:
  """A unit of work for one process.

  Attributes:
    content: Input to the computation; must be picklable.
    key: Identifies the content; must be serializable as JSON.
    size: Number of units on the progress bar.
    title: Name of the chunk in messages.
  """

  content: Any
  key: Any
  size: int
  title: str


class Embedder:
  """Embeds texts in this process.

  Args:
    encoder: An object with `encode(texts)`.
    name: Name or path of the encoder.
    dimensions: Sizes of truncated vectors to evaluate in addition to the full vectors.
    search: Function that finds the nearest vectors in a knowledge base.
    load: Function that loads the encoder in a worker process and returns its name and the encoder,
      for subclasses that use several processes.

  Attributes:
    scratch: Folder for the temporary files of large tasks, readable by all processes. If None, each
      task creates a temporary folder.
    source: Object that opens the encoder in any process.
    dimensions: The sizes of truncated vectors, sorted.
    search: The search function.
    width: Width of the full vectors; 0 until the width is known.
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
    """Sets the width; raises InputError if vectors are too narrow for a requested size."""
    if width and max(self.dimensions, default=0) > width:
      raise errors.InputError(
        f"dimensions is {max(self.dimensions)}, but the encoder's vectors have only {width}; "
        f"choose 1 to {width}"
      )
    self.width = width

  def map(
    self,
    title: str,
    compute: Callable[[Any], Arrays],
    chunks: Sequence[Chunk],
    *,
    keep: bool = False,
  ) -> Iterator[Arrays]:
    """Yields `compute(content)` for every chunk, in order.

    This class computes all chunks in this process. Subclasses may compute chunks in other processes
    and store the results.

    Args:
      title: Name of the computation, for the progress bar.
      compute: Function that computes the arrays for a chunk; must be picklable. The function
        obtains the encoder with `source.open()`.
      chunks: The chunks.
      keep: Whether subclasses store the results even if this process computes them.
    """
    done = 0
    total = sum(chunk.size for chunk in chunks)
    with progress_bar.Bar(total=total, desc=title, outer=True) as bar:
      for chunk in chunks:
        yield compute(chunk.content)
        done += chunk.size
        # The encoder may already have advanced this bar while it encoded the chunk.
        bar.update(max(0, done - bar.n))

  def __call__(self, text_set: TextSet) -> np.ndarray:
    """Returns the vectors for a text set, float32 [N, D].

    Raises:
      InputError: If a vector contains a value that is not finite, the float32 norm of a vector
        overflows, or the vectors are narrower than a size in `dimensions`.
    """
    if text_set.split is None:
      texts, keys = text_set.texts, _keys(text_set)
      if text_set.method == "encode" and keys and all(key in self._shared for key in keys):
        return np.array([self._shared[key] for key in keys])
      return self._embed(texts, [text_set.language] * len(texts), text_set.method)
    means = []
    for start in range(0, len(text_set.texts), BLOCK):
      pieces = [text_set.split(text) for text in text_set.texts[start : start + BLOCK]]
      count_N = np.array([len(pieces_of_text) for pieces_of_text in pieces])
      flat = dataclasses.replace(text_set, texts=[x for y in pieces for x in y], split=None)
      first_N = np.cumsum(count_N) - count_N
      # The piece vectors are averaged without normalization.
      sum_ND = np.add.reduceat(self(flat), first_N, axis=0, dtype=np.float32)
      means.append(sum_ND / count_N[:, None].astype(np.float32))
    return np.concatenate(means)

  def _embed(self, texts: Sequence[str], codes: Sequence[str], method: str) -> np.ndarray:
    chunks = []
    for first in range(0, max(1, len(texts)), WINDOW):
      window = slice(first, first + WINDOW)
      content = list(texts[window]), list(codes[window]), method
      size = len(content[0])
      chunks.append(Chunk(content, content, size, f"{size:,} texts"))
    arrays = [*self.map("embed", functools.partial(_vectors, self.source), chunks)]
    encoding.log_all_cut([cut for x in arrays for cut in x["cut"].tolist()], len(texts))
    vectors_ND = np.concatenate([x["vectors"] for x in arrays])
    self.check_width(vectors_ND.shape[1])
    return vectors_ND

  def share(self, text_sets: Sequence[TextSet], report: Callable[[str], None]) -> None:
    """Embeds the distinct texts of several text sets together.

    Later calls to the embedder reuse the vectors of these texts. Vectors from an earlier call to
    `share` are discarded.
    """
    keys = dict.fromkeys(key for text_set in text_sets for key in _keys(text_set))
    self._shared.clear()
    if keys:
      report(f"embedding {len(keys):,} texts")
      codes, texts = zip(*keys, strict=True)
      self._shared |= zip(keys, self._embed(texts, codes, "encode"), strict=True)


def _keys(text_set: TextSet) -> list[tuple[str, str]]:
  return [(text_set.language, text) for text in text_set.texts]


def _vectors(source: encoding.EncoderSource, window: tuple[list[str], list[str], str]) -> Arrays:
  """Returns the vectors for the texts and the counts of truncated texts.

  Args:
    source: The encoder.
    window: Texts, their language codes, and the name of the encoder method to call.
  """
  texts, codes, method = window
  with np.errstate(over="ignore"):  # Values too large for float32 become infinite.
    vectors_ND, cut = source.encode(texts, method=method, language=codes)
  encoding.check_finite(vectors_ND, texts)
  return {"vectors": vectors_ND, "cut": np.array(cut, np.int64).reshape(-1, 3)}
