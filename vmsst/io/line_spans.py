"""Cuts text files into spans of lines, once, so that many processes can each read their own."""

import dataclasses
import itertools
import os
from collections.abc import Sequence
from typing import Any

from vmsst import errors, storage
from vmsst.io import input_files, text_files


@dataclasses.dataclass(frozen=True)
class Span:
  """Consecutive lines of a text file.

  Attributes:
    name: The text file, for messages.
    first: Number of the first line, from 1.
    lines: Number of lines.
    path: Uncompressed file of the lines; before `unpack`, perhaps a gzipped one.
    offset: Place of the first byte.
    digest: Hash of the bytes.
  """

  name: str
  first: int
  lines: int
  path: str
  offset: int
  digest: str

  def __str__(self) -> str:
    return f"{self.name}, lines {self.first:,} to {self.first + self.lines - 1:,}"

  def read(self) -> list[str]:
    """Returns the lines, as `text_files.read_lines` does.

    Raises:
      InputError: the file cannot be read, has changed, is not UTF-8, or a line is too long.
    """
    raw = list(itertools.islice(text_files.read_raw_lines(self.path, self.offset), self.lines))
    digest = text_files.new_digest()
    for line in raw:
      digest.update(line)
    if digest.hexdigest() != self.digest:
      raise errors.InputError(f"{self.name} has changed since the work on it started; start over")
    return list(text_files.decoded(raw, self.name, self.first))


@dataclasses.dataclass(frozen=True)
class Cut:
  """Texts and their spans, in order.

  Attributes:
    spans: The spans; none covers two files.
    lines: Number of lines.
    digest: Hash of the content: for several files, of their concatenation.
  """

  spans: list[Span]
  lines: int
  digest: str

  @property
  def identity(self) -> dict[str, Any]:
    """What identifies the texts, for JSON. A text and its gzipped copy are the same."""
    names = list(dict.fromkeys(span.name for span in self.spans))
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    return {"name": f"{names[0]}{more}", "lines": self.lines, "digest": self.digest}


def cut(paths: Sequence[str], lines: int) -> Cut:
  """Cuts texts into spans of `lines` lines; reads every file once.

  Args:
    paths: UTF-8 texts, plain or gzipped; spans of gzipped ones need `unpack`.
    lines: Most lines of a span.

  Raises:
    InputError: a file cannot be read, a line is too long, or there is no line at all.
  """
  spans: list[Span] = []
  whole, raw = text_files.new_digest(), b"\n"
  for path in paths:
    if input_files.is_pipe(path):
      raise errors.InputError(f"{path}: a pipe, which can be read only once; give a file")
    if not raw.endswith(b"\n"):
      whole.update(b"\n")
    raw_lines = text_files.read_raw_lines(path)
    first, offset = 1, 0
    while True:
      digest, start, count = text_files.new_digest(), offset, 0
      for raw in itertools.islice(raw_lines, lines):
        whole.update(raw)
        digest.update(raw)
        offset += len(raw)
        count += 1
      if not count:
        break
      spans.append(Span(path, first, count, storage.absolute(path), start, digest.hexdigest()))
      first += count
  if not spans:
    raise errors.InputError(f"{', '.join(paths)}: empty; give a text with at least one line")
  return Cut(spans, sum(span.lines for span in spans), whole.hexdigest())


def unpack(spans: Sequence[Span], folder: str) -> list[Span]:
  """Returns the same spans; those of gzipped files are now in uncompressed copies in a folder.

  Args:
    spans: The spans.
    folder: Folder for the copies, local or in an object store, which the caller removes.
  """
  copies: dict[str, str] = {}
  for path in dict.fromkeys(span.name for span in spans if span.name.endswith(".gz")):
    copies[path] = copy = os.path.join(folder, f"lines-{len(copies):05d}.txt")
    if storage.is_url(copy):
      opened = storage.filesystem(copy).open(copy, "wb")
    else:
      os.makedirs(folder, exist_ok=True)
      opened = open(copy, "wb")  # noqa: SIM115  # closed below
    with opened as stream:
      stream.writelines(text_files.read_chunks(path))
  return [dataclasses.replace(x, path=copies.get(x.name, x.path)) for x in spans]
