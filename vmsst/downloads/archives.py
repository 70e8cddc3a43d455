"""Unpacks untrusted zip and tar files; nothing is written outside the target folder."""

import contextlib
import functools
import lzma
import os
import pathlib
import stat
import struct
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from typing import IO, Any

from vmsst import errors
from vmsst.files import input_files

Choose = Callable[[str], str | None]
"""Maps a member's name to its path below a folder, or to None to skip the member."""
Open = Callable[[], IO[bytes] | None]
"""Opens a member; returns None for a link or another special file."""

_CHUNK_BYTES = 1 << 18
_MOST_HEADER_BYTES = 1 << 20
_EXTENDED = (
  tarfile.XHDTYPE,
  tarfile.XGLTYPE,
  tarfile.SOLARIS_XHDTYPE,
  tarfile.GNUTYPE_LONGNAME,
  tarfile.GNUTYPE_LONGLINK,
)
_FAILURES = (
  tarfile.TarError,
  zipfile.BadZipFile,
  zlib.error,
  lzma.LZMAError,
  struct.error,
  ArithmeticError,
  EOFError,
  LookupError,
  MemoryError,
  OSError,
  RuntimeError,  # also NotImplementedError
  ValueError,
)


def unpack(
  archive: pathlib.Path, folder: pathlib.Path, choose: Choose, most: int
) -> list[pathlib.Path]:
  """Unpacks members of an archive into a folder, all of them or none.

  They are first written to a temporary folder inside it and then moved; existing files of the same
  names are replaced.

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
      file, or the disk is full.
  """
  input_files.check(archive)
  folder.mkdir(parents=True, exist_ok=True)
  try:
    with tempfile.TemporaryDirectory(prefix=".unpacked.", dir=folder) as stage:
      names = list(_unpacked(archive, pathlib.Path(stage), choose, most))
      if not names:
        raise errors.InputError(f"{archive}: contains none of the expected files")
      for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        os.replace(pathlib.Path(stage, name), folder / name)
  except errors.InputError:
    raise
  except _FAILURES as error:
    raise errors.InputError(
      f"{archive}: cannot be unpacked into {folder} ({input_files.reason(error)}); fix this, or "
      "remove a broken archive to download it again"
    ) from None
  finally:
    with contextlib.suppress(OSError):  # It has files.
      folder.rmdir()
  return [folder / name for name in names]


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

  @classmethod
  def frombuf(cls, *args: Any, **kwargs: Any) -> Any:
    """Returns the header in a block."""
    found = super().frombuf(*args, **kwargs)
    if found.type in _EXTENDED and found.size > _MOST_HEADER_BYTES:
      raise tarfile.ReadError(f"a header of {found.size:,} bytes")
    return found
