"""Reads plain or gzipped (`.gz`) text files; errors name the file and the line."""

import contextlib
import gzip
import hashlib
import io
import pathlib
import zlib
from collections.abc import Iterable, Iterator
from typing import IO, Any, cast

from vmsst import errors, storage
from vmsst.io import input_files

LINE_BYTES = 1 << 26
"""Maximum length of a line; longer lines raise InputError."""
_CHUNK_BYTES = 1 << 16


def read_lines(path: str, digest: str | None = None) -> Iterator[str]:
  """Yields the lines of a plain or gzipped UTF-8 text file, without line ends.

  Lines end at LF. A byte order mark at the start of the file and every CR are removed, as
  TensorFlow does when it streams the same file.

  Args:
    path: The file.
    digest: The `new_digest` that its content must have; None: any.

  Raises:
    InputError: the file cannot be read, is truncated, or is not UTF-8; a line has more than
      `LINE_BYTES`; or, after the last line, the content has another digest.
  """
  with _open(path) as stream:
    yield from decoded(_raw_lines(stream, path, digest), path)


def check_not_empty(path: str) -> None:
  """Raises InputError unless a text can be read and has a line; `-` and pipes are not read."""
  is_pipe = path == "-" or pathlib.Path(path).is_fifo()
  if not is_pipe and next(read_lines(path), None) is None:
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


def read_chunks(path: str) -> Iterator[bytes]:
  """Yields the content of a plain or gzipped file in chunks; raises as `read_lines` does."""
  with _open(path) as stream:
    yield from _stream(path, iter(lambda: stream.read(_CHUNK_BYTES), b""))


def _decode(raw: bytes, path: str, number: int) -> str:
  try:
    text = raw.decode("utf-8")
  except UnicodeDecodeError as error:
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


def _raw_lines(stream: IO[bytes], path: str, digest: str | None = None) -> Iterator[bytes]:
  """Yields the lines of an open file; errors are those of `read_lines`."""
  return _stream(path, iter(lambda: stream.readline(LINE_BYTES + 1), b""), digest)


def _stream(path: str, chunks: Iterator[bytes], digest: str | None = None) -> Iterator[bytes]:
  """Yields the same chunks or lines; errors of decompression and of the disk name the file.

  Raises InputError for a line that is too long, and at the end if the content has another digest.
  """
  number, current = 0, new_digest()
  while True:
    try:
      chunk = next(chunks, b"")
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
    if digest:
      current.update(chunk)
    yield chunk
  if digest and current.hexdigest() != digest:
    raise errors.InputError(f"{path} has changed since the work on it started; start over")
