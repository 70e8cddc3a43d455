"""Unpacks untrusted zip, tar and gzip files; nothing is written outside the target folder."""

import bz2
import contextlib
import gzip
import lzma
import os
import pathlib
import re
import stat
import struct
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from vmsst import errors
from vmsst.files import input_files

Choose = Callable[[str], str | None]
"""Maps a member's name to its path below a folder, or to None to skip the member."""

_CHUNK_BYTES = 1 << 18
_MOST_HEADER_BYTES = 1 << 20
_EXTENDED = (
  tarfile.XHDTYPE,
  tarfile.XGLTYPE,
  tarfile.SOLARIS_XHDTYPE,
  tarfile.GNUTYPE_LONGNAME,
  tarfile.GNUTYPE_LONGLINK,
)
_OPENERS: dict[str, Callable[..., Any]] = {
  ".gz": gzip.open,
  ".tgz": gzip.open,
  ".bz2": bz2.open,
  ".xz": lzma.open,
}
_BROKEN = (
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
    archive: A .zip, .tar, .tar.gz, .tgz, .tar.bz2, .tar.xz, or a .gz of one file, whose member has
      its name without ".gz".
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
  if not archive.stat().st_size:
    raise errors.InputError(f"{archive}: empty; remove it to download it again")
  with _made(folder), tempfile.TemporaryDirectory(prefix=".unpacked.", dir=folder) as stage:
    names: dict[str, None] = {}
    for target, stream in _members(archive, choose, most):
      if target in names:
        raise errors.InputError(f"{archive}: two members are {target}; nothing was unpacked")
      names[target] = None
      _copy(stream, pathlib.Path(stage, target), archive)
    if not names:
      raise errors.InputError(f"{archive}: contains none of the expected files")
    for name in names:
      try:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        os.replace(pathlib.Path(stage, name), folder / name)
      except OSError as error:
        raise errors.InputError(
          f"{folder / name}: {error.strerror} while unpacking {archive}; fix this and rerun the "
          "same command"
        ) from None
  return [folder / name for name in names]


def safe_name(name: str, archive: pathlib.Path) -> str:
  """Returns a member's normalized name; raises InputError if it can lead out of a folder."""
  path = pathlib.PureWindowsPath(name)  # also splits at "/"
  if path.anchor or ".." in path.parts or ":" in name or not name.isprintable():
    raise errors.InputError(
      f"{archive}: untrusted: it names a member {name!r}, outside of itself; nothing was unpacked"
    )
  return path.as_posix()


@contextlib.contextmanager
def _made(folder: pathlib.Path) -> Iterator[None]:
  """Creates a folder, which an error removes again if it is empty."""
  folder.mkdir(parents=True, exist_ok=True)
  try:
    yield
  except BaseException:
    with contextlib.suppress(OSError):
      folder.rmdir()
    raise


class _Reader(Protocol):
  def read(self, size: int, /) -> bytes: ...


class _Header(tarfile.TarInfo):
  """A header of a tar; raises ReadError if an extended header could fill the memory."""

  @classmethod
  def frombuf(cls, *args: Any, **kwargs: Any) -> Any:
    """Returns the header in a block."""
    found = super().frombuf(*args, **kwargs)
    if found.type in _EXTENDED and found.size > _MOST_HEADER_BYTES:
      raise tarfile.ReadError(f"a header of {found.size:,} bytes")
    return found


class _Limited:
  """A stream of decompressed bytes that raises InputError after `most` bytes."""

  def __init__(self, stream: _Reader, archive: pathlib.Path, most: int):
    self._stream = stream
    self._archive = archive
    self._left = most

  def read(self, size: int, /) -> bytes:
    data = self._stream.read(size)
    self._left -= len(data)
    if self._left < 0:
      raise _too_large(self._archive)
    return data


def _members(archive: pathlib.Path, choose: Choose, most: int) -> Iterator[tuple[str, _Reader]]:
  """Yields chosen members by their paths; read each before the next."""
  with _readable(archive), contextlib.ExitStack() as stack:
    if archive.suffix == ".zip":
      yield from _zip_members(stack.enter_context(zipfile.ZipFile(archive)), archive, choose, most)
      return
    opener = _OPENERS.get(archive.suffix, open)
    content = _Limited(stack.enter_context(opener(archive, "rb")), archive, most)
    if re.search(r"\.(tgz|tar(\.(gz|bz2|xz))?)$", archive.name):
      with tarfile.open(fileobj=content, mode="r|", tarinfo=_Header) as tar:  # type: ignore[call-overload]
        yield from _tar_members(tar, archive, choose)
    elif archive.suffix == ".gz" and (target := choose(archive.stem)):
      yield target, content


def _zip_members(
  source: zipfile.ZipFile, archive: pathlib.Path, choose: Choose, most: int
) -> Iterator[tuple[str, _Reader]]:
  for member in source.infolist():
    target = choose(safe_name(member.filename, archive))
    if target is None or member.is_dir():
      continue
    kind = stat.S_IFMT(member.external_attr >> 16)
    if kind not in (0, stat.S_IFREG) or member.flag_bits & 1:
      raise _special(archive, member.filename)
    most -= member.file_size  # zipfile reads no more than that
    if most < 0:
      raise _too_large(archive)
    with source.open(member) as stream:
      yield target, stream


def _tar_members(
  source: tarfile.TarFile, archive: pathlib.Path, choose: Choose
) -> Iterator[tuple[str, _Reader]]:
  while (member := source.next()) is not None:
    # Else those of a bomb would fill the memory.
    source.members.clear()  # type: ignore[attr-defined]
    target = choose(safe_name(member.name, archive))
    if target is None or member.isdir():
      continue
    stream = source.extractfile(member) if member.isreg() else None
    if stream is None:
      raise _special(archive, member.name)
    yield target, stream


def _special(archive: pathlib.Path, name: str) -> errors.InputError:
  return errors.InputError(
    f"{archive}: {name!r} is a link, encrypted or not a regular file; nothing was unpacked"
  )


def _too_large(archive: pathlib.Path) -> errors.InputError:
  return errors.InputError(
    f"{archive}: untrusted: it contains more bytes than expected; nothing was unpacked"
  )


def _copy(stream: _Reader, path: pathlib.Path, archive: pathlib.Path) -> None:
  def read() -> bytes:
    with _readable(archive):
      return stream.read(_CHUNK_BYTES)

  try:
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "xb") as out:
      while chunk := read():
        out.write(chunk)
  except OSError as error:
    raise errors.InputError(
      f"{path.parent}: {error.strerror} while unpacking {archive}; fix this and rerun the same "
      "command"
    ) from None


@contextlib.contextmanager
def _readable(archive: pathlib.Path) -> Iterator[None]:
  try:
    yield
  except errors.InputError:
    raise
  except _BROKEN as error:
    raise errors.InputError(
      f"{archive}: broken or not such an archive ({error}); remove it to download it again"
    ) from None
