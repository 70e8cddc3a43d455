"""A text file and the vectors of its lines: line i of one belongs to row i of the other."""

import dataclasses
import hashlib
import os
import pathlib
from collections.abc import Iterable, Mapping
from typing import Any

from vmsst import errors
from vmsst.files import text_fields, text_files
from vmsst.vectors import vector_store


@dataclasses.dataclass(frozen=True)
class EmbeddedText:
  """The lines of a file, or the texts in a column or under a key of them, and their vectors.

  Attributes:
    path: The file.
    folder: The folder of vectors.
    vectors: One row a line.
  """

  path: str
  folder: pathlib.Path
  vectors: vector_store.Vectors

  def __len__(self) -> int:
    return len(self.vectors)

  def lines(self, rows: Iterable[int]) -> dict[int, str]:
    """The texts of some rows, in one pass through the file that holds no others."""
    wanted = set(rows)
    found: dict[int, str] = {}
    if wanted:
      texts = text_fields.read_texts(self.path, self.vectors.settings.get("field"))
      for row, line in enumerate(texts):
        if row in wanted:
          found[row] = line
          if len(found) == len(wanted):
            break
    return found


def open_text(path: str, folder: str | os.PathLike[str]) -> EmbeddedText:
  """A text and the vectors in a folder that `bulk_embedding.embed_file` has made of it.

  A folder that something else has written is taken if it has as many vectors as the text has lines.

  Raises:
    InputError: one of them is missing, unfinished or broken, or they do not belong together.
  """
  vectors = vector_store.open_vectors(folder)
  text = describe(path)
  if text["lines"] != len(vectors):
    raise errors.InputError(
      f"{path} has {text['lines']:,} lines and {folder} has {len(vectors):,} vectors: one a line "
      "is needed; make them again (`vmsst embed`)"
    )
  if vectors.settings.get("digest", text["digest"]) != text["digest"]:
    raise errors.InputError(
      f"{folder} has vectors of another text than {path}, or of what it was before a change: make "
      "them again (`vmsst embed`)"
    )
  return EmbeddedText(path, pathlib.Path(folder), vectors)


def describe(path: str) -> Mapping[str, Any]:
  """What tells a text from others, for JSON: the number of `lines` and a `digest` of all of them.

  A text and its gzipped copy are one.

  Raises:
    InputError: the file cannot be read.
  """
  digest = hashlib.blake2b(digest_size=16)
  lines, last = 0, b"\n"
  for chunk in text_files.read_chunks(path):
    digest.update(chunk)
    lines += chunk.count(b"\n")
    last = chunk[-1:]
  return {"lines": lines + (last != b"\n"), "digest": digest.hexdigest()}
