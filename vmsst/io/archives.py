"""Reads and unpacks untrusted archives with bounded memory.

Damaged zip archives and gzipped files are read up to the damage. Each invalid line is replaced by a
`BadLine`. Reading does not write to disk. `unpack` writes either all requested members into a
folder or none of them.
"""

import contextlib
import dataclasses
import filecmp
import functools
import gzip
import os
import pathlib
import shutil
import struct
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from typing import IO, Any

from vmsst import errors, storage
from vmsst.io import input_files

LINE_BYTES = 1 << 20  # maximum length of a line; `lines` yields a `BadLine` for each longer line

# Number of bytes per read. If compressed data is damaged, at most this many intact bytes before the
# damage are lost.
_PIECE_BYTES = 1 << 15


class DamagedError(Exception):
  """Raised when the rest of a file cannot be read. The message does not contain the file name."""


class BadLine(str):
  """Placeholder for an invalid line. The string contains the reason."""


@dataclasses.dataclass(frozen=True)
class Member:
  """A file in a zip archive.

  Attributes:
    archive: Path of the archive.
    name: Name of the file in the archive.
  """

  archive: str
  name: str

  def __str__(self) -> str:
    return f"{self.archive}/{self.name}"


def members(path: str) -> list[Member]:
  """Returns the members of a zip archive.

  Raises:
    DamagedError: If the file is not a zip archive, is truncated or cannot be read.
  """
  with _damage(), storage.open_binary(path) as stream, zipfile.ZipFile(stream) as archive:
    return [Member(path, info.filename) for info in archive.infolist() if not info.is_dir()]


def member_chunks(member: Member) -> Iterator[bytes]:
  """Yields the content of a member in pieces.

  Raises:
    DamagedError: If the rest of the member cannot be read. All content before the damage has
      already been yielded.
  """
  with (
    _damage(),
    storage.open_binary(member.archive) as stream,
    zipfile.ZipFile(stream) as archive,
    archive.open(member.name) as content,
  ):
    yield from _pieces(content)


def file_chunks(path: str) -> Iterator[bytes]:
  """Yields the content of a plain or gzipped (`.gz`) file in pieces, like `member_chunks`."""
  with _damage(), storage.open_binary(path) as stream:
    if not path.endswith(".gz"):
      yield from _pieces(stream)
      return
    if not storage.size(path):
      raise DamagedError("truncated")
    with gzip.open(stream) as content:
      yield from _pieces(content)


@contextlib.contextmanager
def _damage() -> Iterator[None]:
  """Converts exceptions from the standard library's readers to DamagedError."""
  try:
    yield
  except errors.InputError:  # Reading from an object store can raise InputError.
    raise
  except EOFError:
    raise DamagedError("truncated") from None
  except (zlib.error, gzip.BadGzipFile):
    raise DamagedError("the compressed data is damaged") from None
  except (zipfile.BadZipFile, struct.error, ValueError, OverflowError, RuntimeError):
    raise DamagedError("not a zip archive, or damaged; download it again") from None
  except OSError as error:
    raise DamagedError(f"cannot be read: {input_files.reason(error)}") from None


def _pieces(stream: Any) -> Iterator[bytes]:
  # read1 returns the bytes before damaged data; read would lose them.
  return iter(functools.partial(stream.read1, _PIECE_BYTES), b"")


def lines(chunks: Iterable[bytes]) -> Iterator[str]:
  """Yields the lines in UTF-8 text, without line endings.

  Lines end with LF or CR LF. A byte order mark at the start is dropped. A line that is not UTF-8,
  contains NUL or exceeds LINE_BYTES is replaced by a `BadLine`.

  Raises:
    DamagedError: If reading from `chunks` raises DamagedError. In this case, the incomplete last
      line is not yielded.
  """
  remainder, first = b"", True
  for chunk in chunks:
    if first:
      chunk, first = chunk.removeprefix(b"\xef\xbb\xbf"), False
    end = chunk.rfind(b"\n") + 1
    if end:
      yield from _decode_lines(remainder + chunk[:end])
      remainder = b""
    if len(remainder) <= LINE_BYTES:  # Stop buffering a line that is already too long.
      remainder += chunk[end:]
  if remainder:
    yield from _decode_lines(remainder + b"\n")


def _decode_lines(block: bytes) -> Iterator[str]:
  """Decodes the lines of a block that ends with LF."""
  if len(block) <= LINE_BYTES and b"\0" not in block:
    with contextlib.suppress(UnicodeDecodeError):
      yield from block.decode("utf-8").replace("\r\n", "\n")[:-1].split("\n")
      return
  for line in block[:-1].split(b"\n"):
    if len(line) > LINE_BYTES:
      yield BadLine("the line is too long")
    elif b"\0" in line:
      yield BadLine("the line contains NUL")
    else:
      try:
        text: str = line.removesuffix(b"\r").decode("utf-8")
      except UnicodeDecodeError:
        text = BadLine("the line is not UTF-8")
      yield text


def unpack(
  archive: pathlib.Path, folder: pathlib.Path, choose: Callable[[str], str | None], max_bytes: int
) -> list[pathlib.Path]:
  """Unpacks selected members of an archive into a folder. Writes either all of them or none.

  Members are first written to a temporary subfolder and renamed into place at the end. Links and
  other special members of a tar archive are skipped.

  Args:
    archive: A .zip archive, or a tar archive with any compression.
    folder: The target folder.
    choose: Maps a member's name to its path below the folder, or to None to skip the member.
    max_bytes: Maximum total size of the unpacked members, in bytes.

  Returns:
    The paths of the unpacked files, in archive order.

  Raises:
    InputError: If the archive is damaged, contains none of the selected members, exceeds
      `max_bytes`, contains the same path twice, or contains a path outside the folder. If a file
      already exists with different content, or the disk is full.
  """
  input_files.check(archive)
  folder.mkdir(parents=True, exist_ok=True)
  names: list[str] = []
  try:
    with tempfile.TemporaryDirectory(prefix=".unpacked.", dir=folder) as stage:
      for name, size, open_member in _sized_members(archive):
        if (target := choose(pathlib.PurePosixPath(name).as_posix())) is None:
          continue
        path, max_bytes = pathlib.Path(stage, target), max_bytes - size
        if max_bytes < 0 or not path.resolve().is_relative_to(pathlib.Path(stage).resolve()):
          raise errors.InputError(
            f"{archive}: not safe to unpack: the path {name!r} is outside the folder, or the "
            "archive contains more bytes than expected; nothing was unpacked"
          )
        path.parent.mkdir(parents=True, exist_ok=True)
        with open_member() as stream, path.open("xb") as out:
          shutil.copyfileobj(stream, out)
        names.append(target)
      if not names:
        raise errors.InputError(f"{archive}: contains none of the expected files")
      for name in names:
        check_replaceable(folder / name, pathlib.Path(stage, name))
      for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        os.replace(pathlib.Path(stage, name), folder / name)
  except errors.InputError:
    raise
  except Exception as error:  # Damaged archives raise many different exceptions.
    raise errors.InputError(
      f"{archive}: cannot be unpacked into {folder} ({input_files.reason(error)}); fix this "
      "problem; if the archive is damaged, remove it to download it again"
    ) from None
  finally:
    with contextlib.suppress(OSError):  # rmdir fails if the folder contains files.
      folder.rmdir()
  return [folder / name for name in names]


def _sized_members(archive: pathlib.Path) -> Iterator[tuple[str, int, Callable[[], IO[bytes]]]]:
  """Yields the name and size of each file, and a function that opens the file.

  zipfile and tarfile never read more bytes of a file than the size that the archive states.
  """
  if archive.suffix == ".zip":
    with zipfile.ZipFile(archive) as zipped:
      for info in zipped.infolist():
        if not info.is_dir():
          yield info.filename, info.file_size, functools.partial(zipped.open, info)
  else:
    with tarfile.open(archive) as source:
      for member in filter(tarfile.TarInfo.isreg, source):
        opener: Any = functools.partial(source.extractfile, member)
        yield member.name, member.size, opener


def check_replaceable(path: pathlib.Path, new: pathlib.Path) -> None:
  """Raises InputError if a file exists at `path` and its content differs from the new file."""
  if path.exists() and not filecmp.cmp(path, new, shallow=False):
    raise errors.InputError(f"{path} differs from the published file; remove it to fetch it again")
