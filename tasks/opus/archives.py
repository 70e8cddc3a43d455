"""Bytes and lines of archives and compressed files from outside, however broken, in little memory.

Python's own readers of zip and gzip files give nothing of a truncated archive, and lose what they
have in hand where a file breaks. Nothing here is ever extracted to disk.
"""

import contextlib
import dataclasses
import os
import re
import struct
import zipfile
import zlib
from collections.abc import Iterable, Iterator

LINE_BYTES = 1 << 20
"""Longer lines are left out."""

_READ_BYTES = 1 << 13  # Compressed bytes at a time: what is lost where a stream breaks.
_CHUNK_BYTES = 1 << 18
_BOMB_BYTES = 1 << 28  # From here on, text that was compressed more than _BOMB_RATIO times ...
_BOMB_RATIO = 500  # ... is no text: DEFLATE reaches 1000 on repetition alone.
_COMPANION_BYTES = 1 << 16
_RAW, _GZIP = -zlib.MAX_WBITS, zlib.MAX_WBITS | 16
_LOCAL_HEADER = struct.Struct("<4s5H3L2H")
_ENCRYPTED, _SIZES_FOLLOW = 0x1, 0x8


class DamagedError(Exception):
  """Nothing more can be had from a file; the message says why in words without a name."""


class BadLine(str):
  """Stands for a line that is left out: the reason."""


@dataclasses.dataclass(frozen=True)
class Member:
  """A file in a zip archive.

  Attributes:
    archive: Path of the archive.
    name: As the archive has it; it is never used as a path.
    offset: Where its header is.
    size: Compressed bytes; None where the archive is cut and does not tell.
    crc: Checksum of the content; None where the archive is cut and does not tell.
  """

  archive: str
  name: str
  offset: int
  size: int | None
  crc: int | None

  def __str__(self) -> str:
    return f"{self.archive}/{self.name}"


def members(path: str) -> list[Member]:
  """The members of a zip archive; of one whose end is cut off, those whose beginning is left.

  Raises:
    DamagedError: it is no zip archive or cannot be read.
  """
  try:
    with zipfile.ZipFile(path) as archive:
      return [
        Member(path, info.filename, info.header_offset, info.compress_size, info.CRC)
        for info in archive.infolist()
        if not info.is_dir()
      ]
  except OSError as error:
    raise DamagedError(f"cannot be read: {error.strerror}") from None
  except (zipfile.BadZipFile, struct.error, ValueError, OverflowError, NotImplementedError):
    found = list(_members_by_header(path))
    if not found:
      raise DamagedError("no zip archive, or its beginning and end are damaged") from None
    return found


def member_chunks(member: Member) -> Iterator[bytes]:
  """Yields the content of a member in pieces.

  Raises:
    DamagedError: the rest cannot be read; everything before it was yielded.
  """
  with _reading(member.archive) as stream:
    method, _, _ = _header(stream, member.offset)
    pieces = _pieces(stream, member.size)
    checksum = 0
    for chunk in _inflated(pieces, _RAW) if method == zipfile.ZIP_DEFLATED else pieces:
      checksum = zlib.crc32(chunk, checksum)
      yield chunk
    if member.crc is not None and checksum != member.crc:
      raise DamagedError("wrong checksum: its content is damaged")


def file_chunks(path: str) -> Iterator[bytes]:
  """Yields the content of a plain or gzipped (`.gz`) file in pieces; errors as `member_chunks`."""
  with _reading(path) as stream:
    pieces = _pieces(stream, None)
    yield from _inflated(pieces, _GZIP) if path.endswith(".gz") else pieces


def lines(chunks: Iterable[bytes]) -> Iterator[str]:
  """Yields the lines in UTF-8 text, without their ends, and a `BadLine` for one that is left out.

  Lines end at LF or CR LF; at CR in text that has no LF in its first piece. A byte order mark at
  the beginning is dropped. Lines that are not UTF-8, hold NUL or exceed LINE_BYTES are bad.

  Raises:
    DamagedError: as `chunks` does; the line that it breaks off in is not yielded.
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
    if skipping:
      yield BadLine("the line is too long")
      start = chunk.find(separator) + 1
      skipping = False
    else:
      start = 0
    yield from _decoded(rest + chunk[start:end], separator)
    rest = chunk[end:]
  if skipping:
    yield BadLine("the line is too long")
  elif rest:
    yield from _decoded(rest + separator, separator)


def companion(path: str, name: str, folder: str | None = None) -> str:
  """Beginning of the text named LICENSE or README (any case) in an archive, or else in `folder`.

  Returns "" where there is none, or it cannot be read.
  """
  wanted = re.compile(rf"{name}(\.txt|\.md)?", re.IGNORECASE)
  with contextlib.suppress(DamagedError, OSError):
    if path.endswith(".zip"):
      for member in members(path):
        if wanted.fullmatch(os.path.basename(member.name)):
          return _beginning(member_chunks(member))
    for file_name in sorted(os.listdir(folder)) if folder else ():
      if wanted.fullmatch(file_name):
        return _beginning(file_chunks(os.path.join(str(folder), file_name)))
  return ""


def _beginning(chunks: Iterable[bytes]) -> str:
  content = b""
  for chunk in chunks:
    content += chunk
    if len(content) >= _COMPANION_BYTES:
      break
  text = content[:_COMPANION_BYTES].decode("utf-8", errors="replace")
  return text.removeprefix("\ufeff").replace("\r\n", "\n").strip()


def _decoded(block: bytes, separator: bytes) -> Iterator[str]:
  """The lines of a block that ends with `separator`, or is empty."""
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
def _reading(path: str):
  try:
    with open(path, "rb") as stream:
      yield stream
  except OSError as error:
    raise DamagedError(f"cannot be read: {error.strerror or error}") from None


def _pieces(stream, size: int | None) -> Iterator[bytes]:
  """The next `size` bytes of a stream, or all that follow."""
  left = size
  while left is None or left > 0:
    piece = stream.read(_READ_BYTES if left is None else min(left, _READ_BYTES))
    if not piece:
      if left:
        raise DamagedError("truncated")
      return
    if left is not None:
      left -= len(piece)
    yield piece


def _inflated(pieces: Iterable[bytes], window: int) -> Iterator[bytes]:
  """Decompresses a DEFLATE stream, or one or more gzip streams, never much at a time."""
  engine = None
  taken = given = 0
  for piece in pieces:
    taken += len(piece)
    while piece:
      if engine is None:
        # Zeros may follow a gzip stream: tapes and disks pad with them.
        piece = piece.lstrip(b"\0") if given else piece
        if not piece:
          break
        engine = zlib.decompressobj(window)
      try:
        chunk = engine.decompress(piece, _CHUNK_BYTES)
      except zlib.error:
        raise DamagedError("the compressed data is damaged") from None
      given += len(chunk)
      if given > max(_BOMB_BYTES, _BOMB_RATIO * taken):
        raise DamagedError(f"text that was compressed more than {_BOMB_RATIO} times")
      if chunk:
        yield chunk
      piece = engine.unconsumed_tail
      if engine.eof:
        if window == _RAW:
          return
        piece = engine.unused_data
        engine = None
  while engine is not None and (chunk := engine.decompress(b"", _CHUNK_BYTES)):
    yield chunk
  if not taken or (engine is not None and not engine.eof):
    raise DamagedError("truncated")


def _header(stream, offset: int) -> tuple[int, int | None, str]:
  """Method, compressed size if told, and name of the member whose header is at `offset`.

  Leaves the stream at the member's content.
  """
  if not 0 <= offset < 1 << 62:
    raise DamagedError("the archive's directory is damaged")
  stream.seek(offset)
  raw = stream.read(_LOCAL_HEADER.size)
  if len(raw) < _LOCAL_HEADER.size:
    raise DamagedError("truncated")
  signature, _, flags, method, _, _, _, size, plain_size, name_size, extra_size = (
    _LOCAL_HEADER.unpack(raw)
  )
  if signature != b"PK\x03\x04":
    raise DamagedError("the archive's directory is damaged")
  name = stream.read(name_size)
  extra = stream.read(extra_size)
  if len(name) + len(extra) < name_size + extra_size:
    raise DamagedError("truncated")
  if flags & _ENCRYPTED:
    raise DamagedError("encrypted")
  if method not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
    raise DamagedError("compressed in another way than by DEFLATE")
  told = _long_size(extra) if 0xFFFFFFFF in (size, plain_size) else size
  return method, None if flags & _SIZES_FOLLOW else told, name.decode("utf-8", errors="replace")


def _long_size(extra: bytes) -> int | None:
  """Compressed size in the extra field of a header whose own field is too small for it."""
  while len(extra) >= 4:
    kind, length = struct.unpack_from("<2H", extra)
    if kind == 1 and length >= 16 and len(extra) >= 20:
      return struct.unpack_from("<8xQ", extra, 4)[0]
    extra = extra[4 + length :]
  return None


def _members_by_header(path: str) -> Iterator[Member]:
  """The members from an archive's beginning up to where it breaks off."""
  with contextlib.suppress(DamagedError), _reading(path) as stream:
    offset = 0
    while True:
      method, size, name = _header(stream, offset)
      if size is None and method == zipfile.ZIP_STORED:
        return  # Nothing tells where it ends.
      yield Member(path, name, offset, size, None)
      offset = _next_header(stream) if size is None else stream.tell() + size


def _next_header(stream) -> int:
  """Where the header behind a member of unknown size is, from the beginning of its content."""
  start = stream.tell()
  engine = zlib.decompressobj(_RAW)
  size = 0
  for piece in _pieces(stream, None):
    size += len(piece)
    while piece and not engine.eof:
      try:
        engine.decompress(piece, _CHUNK_BYTES)
      except zlib.error:
        raise DamagedError("the compressed data is damaged") from None
      piece = engine.unconsumed_tail
    if engine.eof:
      break
  end = start + size - len(engine.unused_data)
  # Checksum and sizes lie between, in 12 to 24 bytes.
  stream.seek(end)
  gap = stream.read(28).find(b"PK\x03\x04")
  if gap < 0:
    raise DamagedError("truncated")
  return end + gap
