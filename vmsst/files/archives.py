"""Reads as much as possible of zip archives, gzipped files and lines, however damaged they are.

Memory is bounded, nothing is extracted to disk, and the names of members are never used as paths.
"""

import contextlib
import copy
import dataclasses
import functools
import gzip
import struct
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from typing import Any

from vmsst import errors
from vmsst.files import input_files, storage

LINE_BYTES = 1 << 20
"""`lines` yields a `BadLine` for each longer line."""

_PIECE_BYTES = 1 << 15  # What is lost at most if compressed data is damaged.
_BOMB_BYTES = 1 << 28  # Above this size, data that was compressed more than _BOMB_RATIO times ...
_BOMB_RATIO = 500  # ... is not text: DEFLATE reaches 1000 on repetition alone.


class DamagedError(Exception):
  """The rest of a file cannot be read; the message is the reason, without the file name."""


class BadLine(str):
  """The reason why a line was left out, in place of the line."""


@dataclasses.dataclass(frozen=True)
class Member:
  """A file in a zip archive.

  Attributes:
    archive: Path of the archive.
    info: Its entry in the archive's directory.
  """

  archive: str
  info: zipfile.ZipInfo

  @property
  def name(self) -> str:
    """Name in the archive."""
    return self.info.filename

  def __str__(self) -> str:
    return f"{self.archive}/{self.name}"


def members(path: str) -> list[Member]:
  """Returns the members of a zip archive.

  Raises:
    DamagedError: the file is not a zip archive, is truncated or cannot be read.
  """
  try:
    with storage.open_binary(path) as stream, zipfile.ZipFile(stream) as archive:
      return [Member(path, info) for info in archive.infolist() if not info.is_dir()]
  except OSError as error:
    raise DamagedError(f"cannot be read: {input_files.reason(error)}") from None
  except errors.InputError:
    raise
  except (zipfile.BadZipFile, struct.error, ValueError, OverflowError, NotImplementedError):
    raise DamagedError("not a zip archive, or a truncated one; download it again") from None


def member_chunks(member: Member) -> Iterator[bytes]:
  """Yields the content of a member in pieces.

  Raises:
    DamagedError: the rest cannot be read; everything before it was yielded.
  """
  path, info = member.archive, member.info
  if info.flag_bits & 0x1:
    raise DamagedError("encrypted")
  if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
    raise DamagedError("compressed in another way than by DEFLATE")
  unchecked = copy.copy(info)
  del unchecked.CRC  # zipfile would drop the last piece if the checksum is wrong.
  checksum = 0
  try:
    with (
      _damage(),
      storage.open_binary(path) as file,
      zipfile.ZipFile(file) as archive,
      archive.open(unchecked) as stream,
    ):
      for piece in _bounded(_pieces(stream), min(info.compress_size, storage.size(path))):
        checksum = zlib.crc32(piece, checksum)
        yield piece
  except errors.InputError:
    raise
  except (zipfile.BadZipFile, struct.error, ValueError, OverflowError, NotImplementedError):
    raise DamagedError("the archive's directory is damaged") from None
  if checksum != info.CRC:
    raise DamagedError("wrong checksum: its content is damaged")


def file_chunks(path: str) -> Iterator[bytes]:
  """Yields the content of a plain or gzipped (`.gz`) file in pieces; errors as `member_chunks`."""
  with _damage(), storage.open_binary(path) as stream:
    if not path.endswith(".gz"):
      yield from _pieces(stream)
      return
    size = storage.size(path)
    if not size:
      raise DamagedError("truncated")
    with gzip.open(stream) as content:
      yield from _bounded(_pieces(content), size)


def lines(chunks: Iterable[bytes]) -> Iterator[str]:
  """Yields the lines of UTF-8 text without their ends, and a `BadLine` for each one left out.

  Lines end at LF or CR LF; at CR in text whose first piece has no LF. A byte order mark at the
  beginning is dropped. Lines that are not UTF-8, hold NUL or exceed LINE_BYTES are bad.

  Raises:
    DamagedError: as `chunks`; the incomplete last line is not yielded.
  """
  separator = b""
  rest = b""
  skipping = False
  for chunk in chunks:
    if not separator:
      chunk = chunk.removeprefix(b"\xef\xbb\xbf")
      separator = b"\r" if b"\r" in chunk and b"\n" not in chunk else b"\n"
    end = chunk.rfind(separator) + 1
    if not end:
      rest = b"" if skipping else rest + chunk
      if len(rest) > LINE_BYTES:
        rest, skipping = b"", True
      continue
    start = 0
    if skipping:
      yield BadLine("the line is too long")
      start = chunk.find(separator) + 1
      skipping = False
    yield from _decoded(rest + chunk[start:end], separator)
    rest = chunk[end:]
  if skipping:
    yield BadLine("the line is too long")
  elif rest:
    yield from _decoded(rest + separator, separator)


def _decoded(block: bytes, separator: bytes) -> Iterator[str]:
  """Yields the lines of a block that ends with `separator` or is empty."""
  if not block:
    return
  if len(block) <= LINE_BYTES and b"\0" not in block:
    with contextlib.suppress(UnicodeDecodeError):
      text = block.decode("utf-8")
      yield from text.replace("\r\n", "\n")[:-1].split(separator.decode())
      return
  for line in block[:-1].split(separator):
    yield _decoded_line(line)


def _decoded_line(line: bytes) -> str:
  if len(line) > LINE_BYTES:
    return BadLine("the line is too long")
  if b"\0" in line:
    return BadLine("the line holds NUL")
  try:
    return line.removesuffix(b"\r").decode("utf-8")
  except UnicodeDecodeError:
    return BadLine("the line is not UTF-8")


@contextlib.contextmanager
def _damage() -> Iterator[None]:
  """Turns the errors of the standard library's readers into DamagedError."""
  try:
    yield
  except EOFError:
    raise DamagedError("truncated") from None
  except (zlib.error, gzip.BadGzipFile):
    raise DamagedError("the compressed data is damaged") from None
  except OSError as error:
    raise DamagedError(f"cannot be read: {input_files.reason(error)}") from None


def _pieces(stream: Any) -> Iterator[bytes]:
  # read1 returns what was read before the data breaks; read would lose it.
  return iter(functools.partial(stream.read1, _PIECE_BYTES), b"")


def _bounded(pieces: Iterable[bytes], compressed: int) -> Iterator[bytes]:
  """Yields pieces; raises DamagedError if they are too many for `compressed` bytes of text."""
  left = max(_BOMB_BYTES, _BOMB_RATIO * compressed)
  for piece in pieces:
    left -= len(piece)
    if left < 0:
      raise DamagedError(f"text that was compressed more than {_BOMB_RATIO} times")
    yield piece
