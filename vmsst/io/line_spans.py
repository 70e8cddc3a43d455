"""Cuts text files into spans of lines, once, so that many processes can each read their own."""

import dataclasses
import fnmatch
import itertools
import os
from collections.abc import Sequence
from typing import IO, Any

from vmsst import errors, storage
from vmsst.io import input_files, text_files
from vmsst.jobs import atomic_files

_COPY = "lines-{}.txt"


@dataclasses.dataclass(frozen=True)
class Span:
  """Consecutive lines of a text file.

  Attributes:
    name: The text file, for messages.
    first: Number of the first line, from 1.
    lines: Number of lines.
    path: Uncompressed file of the lines.
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


def cut(paths: Sequence[str], lines: int, copies: str | None = None) -> Cut:
  """Cuts texts into spans of `lines` lines; reads every file once.

  Args:
    paths: UTF-8 texts, plain or gzipped.
    lines: Most lines of a span.
    copies: Folder for uncompressed copies of gzipped files, from which their spans are read. None:
      these spans cannot be read.

  Raises:
    InputError: a file cannot be read, a line is too long, or there is no line at all.
    OSError: a copy cannot be written.
  """
  spans: list[Span] = []
  whole, last = text_files.new_digest(), b"\n"
  for number, path in enumerate(paths):
    if input_files.is_pipe(path):
      raise errors.InputError(f"{path}: a pipe, which can be read only once; give a file")
    if last != b"\n":
      whole.update(b"\n")
      last = b"\n"
    if path.endswith(".gz") and copies is not None:
      target = os.path.join(copies, _COPY.format(f"{number:05d}"))
      with atomic_files.atomic_file(target) as stream:
        pieces, end = _cut(path, target, lines, whole, stream)
    else:
      pieces, end = _cut(path, storage.absolute(path), lines, whole, None)
    spans += pieces
    last = end or last
  if not spans:
    raise errors.InputError(f"{', '.join(paths)}: empty; give a text with at least one line")
  return Cut(spans, sum(span.lines for span in spans), whole.hexdigest())


def remove_copies(folder: str) -> None:
  """Removes the copies that `cut` has made in a folder."""
  for name in storage.names(folder):
    if fnmatch.fnmatch(name, _COPY.format("*")):
      storage.remove(os.path.join(folder, name))


def _cut(
  path: str, target: str, lines: int, whole: Any, copy: IO[bytes] | None
) -> tuple[list[Span], bytes]:
  """Returns the spans of a file, and its last byte."""
  spans: list[Span] = []
  raw_lines = text_files.read_raw_lines(path)
  first, offset, raw = 1, 0, b""
  while True:
    digest, start, count = text_files.new_digest(), offset, 0
    for raw in itertools.islice(raw_lines, lines):
      whole.update(raw)
      digest.update(raw)
      if copy is not None:
        copy.write(raw)
      offset += len(raw)
      count += 1
    if not count:
      return spans, raw[-1:]
    spans.append(Span(path, first, count, target, start, digest.hexdigest()))
    first += count
