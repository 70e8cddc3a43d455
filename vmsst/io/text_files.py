"""Reads plain or gzipped (`.gz`) text files; errors name the file and the line."""

import array
import contextlib
import gzip
import hashlib
import io
import os
import sys
import tempfile
import threading
import weakref
import zlib
from collections.abc import Iterable, Iterator
from typing import IO, Any, cast

from vmsst import errors, storage
from vmsst.io import input_files

LINE_BYTES = 1 << 26
"""Maximum length of a line; longer lines raise InputError."""
BOMB_RATIO = 500
"""Large content that was compressed more often is not text: DEFLATE reaches 1000 on repetition."""

_CHUNK_BYTES = 1 << 16
_ENDS = 1 << 13  # Places of lines in memory while they are found.
_BOMB_BYTES = 1 << 28  # Text of up to this size may be compressed even more.


def read_lines(path: str, digest: str | None = None) -> Iterator[str]:
  """Yields the lines of a plain or gzipped UTF-8 text file, without line ends.

  Lines end at LF. A byte order mark at the start of the file and every CR are removed, as
  TensorFlow does when it streams the same file.

  Args:
    path: The file.
    digest: The `new_digest` that its content must have; None: any.

  Raises:
    InputError: the file cannot be read, is truncated, or is not UTF-8; a line has more than
      `LINE_BYTES`; the compression ratio is too high for text; or, after the last line, the content
      has another digest.
  """
  with _open(path) as stream:
    yield from decoded(_raw_lines(stream, path, digest), path)


def check_not_empty(path: str) -> None:
  """Raises InputError unless a text can be read and has a line; `-` and pipes are not read."""
  if path != "-" and not input_files.is_pipe(path) and next(read_lines(path), None) is None:
    raise errors.InputError(f"{path}: empty; give a text with at least one line")


def new_digest() -> Any:
  """Returns a hash that identifies the content of a text, uncompressed."""
  return hashlib.blake2b(digest_size=16)


def read_raw_lines(path: str, offset: int = 0) -> Iterator[bytes]:
  """Yields the lines of a file as bytes, with line ends.

  Args:
    path: The file.
    offset: Place of the first byte to read.

  Raises:
    InputError: as `read_lines` does, but content that is not UTF-8 is yielded.
  """
  with _open(path) as stream:
    if offset:  # Pipes cannot seek.
      stream.seek(offset)
    yield from _raw_lines(stream, path)


def decoded(raw_lines: Iterable[bytes], name: str, first: int = 1) -> Iterator[str]:
  """Yields the texts of lines, as `read_lines` does.

  Args:
    raw_lines: The lines, with line ends.
    name: Name of the file, for messages.
    first: Number of the first line.

  Raises:
    InputError: a line is not UTF-8.
  """
  for number, raw in enumerate(raw_lines, first):
    yield _decode(raw, name, number)


class Lines:
  """The lines of a file by number: one pass finds where they start, and each is read from there.

  The places of lines are in a temporary file, of 8 bytes per line. A gzipped file is unpacked into
  another one, and one in an object store is copied.
  """

  def __init__(self, path: str, digest: str | None = None):
    """Reads the file once and keeps it open; arguments and errors are those of `read_lines`."""
    self._path, self._lock = path, threading.Lock()
    ends, end = array.array("q", [0]), 0
    self._count = 0
    with contextlib.ExitStack() as stack:
      self._file = stack.enter_context(_open(path))
      slow = path.endswith(".gz") or storage.is_url(path)
      copy = stack.enter_context(tempfile.TemporaryFile()) if slow else None
      self._ends = stack.enter_context(tempfile.TemporaryFile())
      self._version = None if slow else _version(self._file)
      for raw in _raw_lines(self._file, path, digest):
        self._count += 1
        end += len(raw)
        ends.append(end)
        if len(ends) == _ENDS:
          self._ends.write(ends)
          del ends[:]
        if copy:
          copy.write(raw)
      self._ends.write(ends)
      self._ends.flush()
      self._file = copy or self._file
      self._open = stack.pop_all()
    weakref.finalize(self, self._open.close)

  def __len__(self) -> int:
    return self._count

  def __getitem__(self, row: int) -> str:
    """Returns a line, counted from 0; raises InputError if the file has changed."""
    start, end = array.array("q", os.pread(self._ends.fileno(), 16, 8 * row))
    with self._lock:
      self._file.seek(start)
      raw = self._file.read(end - start)
    if len(raw) != end - start or (self._version and _version(self._file) != self._version):
      raise errors.InputError(f"{self._path}:{row + 1}: the file has changed; open it again")
    return _decode(raw, self._path, row + 1)


def read_chunks(path: str) -> Iterator[bytes]:
  """Yields the content of a plain or gzipped file in chunks; raises as `read_lines` does."""
  with _open(path) as stream:
    yield from _stream(path, iter(lambda: stream.read(_CHUNK_BYTES), b""))


def _raw_lines(stream: IO[bytes], path: str, digest: str | None = None) -> Iterator[bytes]:
  """Yields the lines of an open file; errors are those of `read_lines`."""
  return _stream(path, iter(lambda: stream.readline(LINE_BYTES + 1), b""), digest)


def _version(stream: IO[bytes]) -> tuple[int, int]:
  """Returns what changes when an open file is written to, but not when its name is."""
  status = os.fstat(stream.fileno())
  return status.st_mtime_ns, status.st_size


_NOT_TEXT = {
  b"\x1f\x8b": "gzip: give it a name that ends in .gz",
  b"\xfd7zXZ": "xz: unpack it",
  b"BZh": "bzip2: unpack it",
  b"PK\x03\x04": "a ZIP archive: unpack it",
  b"PAR1": "Parquet: write .tsv or .jsonl",
  b"\xff\xfe": "UTF-16: convert it (iconv -f UTF-16 -t UTF-8)",
  b"\xfe\xff": "UTF-16: convert it (iconv -f UTF-16 -t UTF-8)",
}
"""What files are that start with these bytes."""


def _decode(raw: bytes, path: str, number: int) -> str:
  try:
    text = raw.decode("utf-8")
  except UnicodeDecodeError as error:
    if number == 1 and (kind := next((x for x in _NOT_TEXT if raw.startswith(x)), None)):
      raise errors.InputError(f"{path}: not text but {_NOT_TEXT[kind]}") from None
    raise errors.InputError(
      f"{path}:{number}: not UTF-8: byte 0x{raw[error.start]:02x} at byte {error.start + 1} of "
      "the line; convert the file (iconv -f ... -t UTF-8)"
    ) from None
  if number == 1:
    text = text.removeprefix("\ufeff")
  return text.removesuffix("\n").replace("\r", "")


@contextlib.contextmanager
def _open(path: str) -> Iterator[IO[bytes]]:
  try:
    stream = storage.open_binary(path)
  except OSError as error:
    raise errors.InputError(f"{path}: cannot be opened: {input_files.reason(error)}") from None
  with stream:
    if path.endswith(".gz"):
      # Its readline is C code, that of GzipFile is Python.
      with io.BufferedReader(cast(io.RawIOBase, gzip.open(stream, "rb"))) as unpacked:
        yield unpacked
    else:
      yield stream


def _stream(path: str, chunks: Iterable[bytes], digest: str | None = None) -> Iterator[bytes]:
  """Yields the same chunks or lines; errors of decompression and of the disk name the file.

  Raises InputError for a line that is too long, and at the end if the content has another digest.
  """
  number = size = 0
  current = new_digest()
  most = sys.maxsize
  if path.endswith(".gz"):
    most = max(_BOMB_BYTES, BOMB_RATIO * storage.size(path))
  iterator = iter(chunks)
  while True:
    try:
      chunk = next(iterator, b"")
    except (EOFError, zlib.error, OSError, errors.InputError) as error:  # the last of a store
      raise errors.InputError(
        f"{path}: cannot be read, after line {number}: {error}; copy it again if it is damaged"
      ) from None
    if not chunk:
      break
    if len(chunk) > LINE_BYTES:
      raise errors.InputError(
        f"{path}:{number + 1}: line longer than {LINE_BYTES >> 20} MB: not a text file"
      )
    number += chunk.count(b"\n")
    size += len(chunk)
    if digest:
      current.update(chunk)
    if size > most:
      raise errors.InputError(
        f"{path}: not text: it was compressed more than {BOMB_RATIO} times, after line {number}"
      )
    yield chunk
  if digest and current.hexdigest() != digest:
    raise errors.InputError(f"{path} has changed since the work on it started; start over")
