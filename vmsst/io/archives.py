"""Reads and unpacks untrusted archives, with bounded memory.

Zip archives, gzipped files and lines are read as far as possible, even if they are damaged, without
extracting anything to disk. `unpack` writes members below a folder, all of them or none.
"""

import contextlib
import copy
import dataclasses
import filecmp
import functools
import gzip
import os
import pathlib
import stat
import struct
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from typing import IO, Any

from vmsst import errors, storage
from vmsst.io import input_files, text_files

LINE_BYTES = 1 << 20
"""`lines` yields a `BadLine` for each longer line."""

Choose = Callable[[str], str | None]
"""Maps a member's name to its path below a folder, or to None to skip the member."""
Open = Callable[[], IO[bytes] | None]
"""Opens a member; returns None for a link or another special file."""

_PIECE_BYTES = 1 << 15  # What is lost at most if compressed data is damaged.
_CHUNK_BYTES = 1 << 18
_MOST_HEADER_BYTES = 1 << 20
_EXTENDED = (
  tarfile.XHDTYPE,
  tarfile.XGLTYPE,
  tarfile.SOLARIS_XHDTYPE,
  tarfile.GNUTYPE_LONGNAME,
  tarfile.GNUTYPE_LONGLINK,
)


class DamagedError(Exception):
  """The rest of a file cannot be read; the message is the reason, without the file name."""


class BadLine(str):
  """The reason why a line was left out, in place of the line."""


@dataclasses.dataclass(frozen=True)
class Member:
  """A file in a zip archive.

  Attributes:
    archive: Path of the archive.
    name: Name in the archive.
    info: Its entry in the archive's directory.
  """

  archive: str
  name: str
  info: zipfile.ZipInfo

  def __str__(self) -> str:
    return f"{self.archive}/{self.name}"


def members(path: str) -> list[Member]:
  """Returns the members of a zip archive.

  Raises:
    DamagedError: the file is not a zip archive, has lost its end or cannot be read.
  """
  with _directory(path) as archive:
    return [Member(path, info.filename, info) for info in archive.infolist() if not info.is_dir()]


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
  with _directory(path) as archive, archive.open(unchecked) as stream:
    for piece in _bounded(_pieces(stream), min(info.compress_size, storage.size(path))):
      checksum = zlib.crc32(piece, checksum)
      yield piece
  if checksum != info.CRC:
    raise DamagedError("wrong checksum: its content is damaged")


@contextlib.contextmanager
def _directory(path: str) -> Iterator[zipfile.ZipFile]:
  """Yields an open archive; turns the errors of reading it into DamagedError."""
  try:
    with _damage(), storage.open_binary(path) as stream, zipfile.ZipFile(stream) as archive:
      yield archive
  except errors.InputError:
    raise
  except (zipfile.BadZipFile, struct.error, ValueError, OverflowError, NotImplementedError):
    raise DamagedError("no zip archive, or it has lost its end; download it again") from None


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

  Lines end at LF or CR LF. A byte order mark at the beginning is dropped. Lines that are not UTF-8,
  hold NUL or exceed LINE_BYTES are bad.

  Raises:
    DamagedError: as `chunks`; the incomplete last line is not yielded.
  """
  rest, first = b"", True
  for chunk in chunks:
    if first:
      chunk, first = chunk.removeprefix(b"\xef\xbb\xbf"), False
    end = chunk.rfind(b"\n") + 1
    if end:
      yield from _decoded(rest + chunk[:end])
      rest = b""
    if len(rest) <= LINE_BYTES:  # The rest of a line that is too long is dropped.
      rest += chunk[end:]
  if rest:
    yield from _decoded(rest + b"\n")


def _decoded(block: bytes) -> Iterator[str]:
  """Yields the lines of a block that ends with LF."""
  if len(block) <= LINE_BYTES and b"\0" not in block:
    with contextlib.suppress(UnicodeDecodeError):
      text = block.decode("utf-8")
      yield from text.replace("\r\n", "\n")[:-1].split("\n")
      return
  for line in block[:-1].split(b"\n"):
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
  left = text_files.most_unpacked(compressed)
  for piece in pieces:
    left -= len(piece)
    if left < 0:
      raise DamagedError(f"text that was compressed more than {text_files.BOMB_RATIO} times")
    yield piece


def unpack(
  archive: pathlib.Path, folder: pathlib.Path, choose: Choose, most: int
) -> list[pathlib.Path]:
  """Unpacks members of an archive into a folder, all of them or none.

  They are first written to a temporary folder inside it and then moved.

  Args:
    archive: A .zip, or a tar of any compression.
    folder: The target folder.
    choose: Selects members and their paths.
    most: Maximum total size of the unpacked members, in bytes.

  Returns:
    The files, in the order of the archive.

  Raises:
    InputError: the archive is broken, has none of the members or more than `most` bytes, names a
      member outside of itself or two members alike, a chosen member is a link or other special
      file, a file of its name exists with another content, or the disk is full.
  """
  input_files.check(archive)
  folder.mkdir(parents=True, exist_ok=True)
  try:
    with tempfile.TemporaryDirectory(prefix=".unpacked.", dir=folder) as stage:
      names = list(_unpacked(archive, pathlib.Path(stage), choose, most))
      if not names:
        raise errors.InputError(f"{archive}: contains none of the expected files")
      for name in names:
        check_replaceable(folder / name, pathlib.Path(stage, name))
      for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        os.replace(pathlib.Path(stage, name), folder / name)
  except errors.InputError:
    raise
  except Exception as error:  # A broken archive can make the standard library raise any.
    raise errors.InputError(
      f"{archive}: cannot be unpacked into {folder} ({input_files.reason(error)}); fix this, or "
      "remove a broken archive to download it again"
    ) from None
  finally:
    with contextlib.suppress(OSError):  # It has files.
      folder.rmdir()
  return [folder / name for name in names]


def check_replaceable(path: pathlib.Path, new: pathlib.Path) -> None:
  """Raises InputError if something exists at a path, unless it has the content of the new file."""
  if path.exists() and not filecmp.cmp(path, new, shallow=False):
    raise errors.InputError(
      f"{path} differs from the published file; remove it to download it again"
    )


def _unpacked(
  archive: pathlib.Path, stage: pathlib.Path, choose: Choose, most: int
) -> Iterator[str]:
  """Writes the chosen members to a folder; yields their paths below it."""
  read = _zip_members if archive.suffix == ".zip" else _tar_members
  for name, open_member in read(archive):
    target = choose(safe_name(name, archive))
    if target is None:
      continue
    stream, path = open_member(), stage / target
    if stream is None:
      raise errors.InputError(
        f"{archive}: {name!r} is a link, encrypted or not a regular file; nothing was unpacked"
      )
    if path.exists():
      raise errors.InputError(f"{archive}: two members are {target}; nothing was unpacked")
    path.parent.mkdir(parents=True, exist_ok=True)
    with stream, open(path, "xb") as out:
      while chunk := stream.read(_CHUNK_BYTES):
        most -= len(chunk)
        if most < 0:
          raise errors.InputError(
            f"{archive}: untrusted: it contains more bytes than expected; nothing was unpacked"
          )
        out.write(chunk)
    yield target


def safe_name(name: str, archive: pathlib.Path) -> str:
  """Returns a member's normalized name; raises InputError if it can lead out of a folder."""
  path = pathlib.PureWindowsPath(name)  # also splits at "/"
  if path.anchor or ".." in path.parts or ":" in name or not name.isprintable():
    raise errors.InputError(
      f"{archive}: untrusted: it names a member {name!r}, outside of itself; nothing was unpacked"
    )
  return path.as_posix()


def _zip_members(archive: pathlib.Path) -> Iterator[tuple[str, Open]]:
  with zipfile.ZipFile(archive) as source:
    for member in source.infolist():
      if not member.is_dir():
        kind = stat.S_IFMT(member.external_attr >> 16)
        special = kind not in (0, stat.S_IFREG) or member.flag_bits & 1
        yield member.filename, (lambda: None) if special else functools.partial(source.open, member)


def _tar_members(archive: pathlib.Path) -> Iterator[tuple[str, Open]]:
  """Yields the members of a tar; read each before the next."""
  with tarfile.open(archive, "r|*", tarinfo=_Header) as source:
    while (member := source.next()) is not None:
      source.members.clear()  # type: ignore[attr-defined]  # Those of a bomb would fill the memory.
      if not member.isdir():
        opener = functools.partial(source.extractfile, member)
        yield member.name, opener if member.isreg() else lambda: None


class _Header(tarfile.TarInfo):
  """A header of a tar; raises ReadError if an extended header could fill the memory."""

  def _proc_member(self, source: tarfile.TarFile) -> Any:
    """Reads what follows the header; the standard library's hook for subclasses."""
    if self.type in _EXTENDED and self.size > _MOST_HEADER_BYTES:
      raise tarfile.ReadError(f"a header of {self.size:,} bytes")
    return super()._proc_member(source)  # type: ignore[misc]
