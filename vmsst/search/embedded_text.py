"""A text file and the vectors of its lines: line i belongs to row i."""

import dataclasses
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from vmsst import errors, storage
from vmsst.io import array_files, text_files
from vmsst.search import vector_store

_LINES = 1 << 14  # Of a span; its size does not matter here.


@dataclasses.dataclass(frozen=True)
class EmbeddedText:
  """A text file, or a column or key of its lines, and the vectors of its texts.

  Attributes:
    path: The text file.
    folder: The folder of vectors.
    vectors: One row per line.
    digest: Hash of the text; reading another text from the path is an error.
  """

  path: str
  folder: storage.Path
  vectors: vector_store.Vectors
  digest: str

  def __len__(self) -> int:
    return len(self.vectors)

  @property
  def encoder(self) -> dict[str, Any]:
    """`encoding.identity` of the encoder that computed the vectors; empty if unknown."""
    name = self.vectors.settings.get("encoder")
    return name if isinstance(name, dict) else {} if name is None else {"name": str(name)}

  @property
  def dimensions(self) -> int | None:
    """How many of the encoder's dimensions the vectors have; None: all."""
    count = self.vectors.settings.get("dimensions")
    return count if isinstance(count, int) else None

  def texts(self) -> Iterator[str]:
    """Yields all texts; reads the file once."""
    return text_files.read_texts(self.path, self.vectors.settings.get("field"), self.digest)

  def visible_rows(self) -> np.ndarray:
    """Returns the rows of texts with a visible character, int64 [M]; reads the file.

    Raises:
      InputError: no text has one.
    """
    rows = (row for row, text in enumerate(self.texts()) if not text_files.is_blank(text))
    row_M = array_files.concatenate(map(np.array, rows), np.int64)
    if not len(row_M):
      raise errors.InputError(f"{self.path} contains no sentence: give a text with lines")
    return row_M

  def reader(self) -> Callable[[int], str]:
    """Returns a function of a row that returns its text.

    Reads the file once; the texts are copied to a temporary file if they are large.
    """
    end_N = array_files.full(len(self) + 1, 0, np.int64)

    def contents() -> Iterator[np.ndarray]:
      for row, text in enumerate(self.texts()):
        content_B = np.frombuffer(text.encode(), np.uint8)
        end_N[row + 1] = end_N[row] + len(content_B)
        yield content_B

    content_B = array_files.concatenate(contents(), np.uint8)
    return lambda row: content_B[end_N[row] : end_N[row + 1]].tobytes().decode()


def open_text(path: str | os.PathLike[str], vectors: Any) -> EmbeddedText:
  """Opens a text and its vectors, as `vmsst embed` writes them.

  Vectors from another source are accepted if their number matches the lines.

  Args:
    path: The text.
    vectors: As in `vector_store.open_vectors`.

  Raises:
    InputError: the text or vectors are missing, incomplete or broken, or do not match.
  """
  path, vectors = os.fspath(path), vector_store.open_vectors(vectors)
  folder = vectors.folder
  text = fingerprint(path)
  stored = vectors.settings.get("text")
  is_other = isinstance(stored, dict) and stored.get("digest") != text["digest"]
  if is_other or text["lines"] != len(vectors):
    raise errors.InputError(
      f"{folder} has {len(vectors):,} vectors of another text than {path} with {text['lines']:,} "
      "lines, or of an earlier version: recompute them (`vmsst embed`)"
    )
  return EmbeddedText(path, storage.path(folder), vectors, text["digest"])


def fingerprint(path: str) -> Mapping[str, Any]:
  """Returns what identifies a text, for JSON: a `digest` of its lines, their number and its path.

  A text and its gzipped copy are identical.

  Raises:
    InputError: the file cannot be read.
  """
  return text_files.cut([path], _LINES).identity
