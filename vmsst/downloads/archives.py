"""Members of zip, tar and gzip files, from strangers: nothing lands outside a folder."""

import bz2
import contextlib
import dataclasses
import gzip
import lzma
import os
import pathlib
import shutil
import stat
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from vmsst import errors

Choose = Callable[[str], str | None]
"""Maps the name of a member to where it goes, relative to a folder, or None to leave it out."""

_CHUNK_BYTES = 1 << 18
_TARS: dict[str, Callable[..., Any]] = {
  ".tar.gz": gzip.open,
  ".tgz": gzip.open,
  ".tar.bz2": bz2.open,
  ".tar.xz": lzma.open,
  ".tar": open,
}
_BROKEN = (
  tarfile.TarError,
  zipfile.BadZipFile,
  zlib.error,
  lzma.LZMAError,
  EOFError,
  NotImplementedError,
  OSError,
)


def unpack(
  archive: pathlib.Path, folder: pathlib.Path, choose: Choose, most: int
) -> list[pathlib.Path]:
  """Puts members of an archive into a folder, all of them or none.

  They are first written to a folder beside it and then moved, so that each is whole; files of the
  same names are replaced.

  Args:
    archive: A .zip, .tar, .tar.gz, .tgz, .tar.bz2, .tar.xz, or a .gz of one file, whose member has
      its name without ".gz".
    folder: Where they go.
    choose: Which go, and where to.
    most: Bytes that may come out of the archive, of all members together.

  Returns:
    The files, in the order of the archive.

  Raises:
    InputError: the archive is broken, has none of the members or more than `most` bytes, names a
      member outside of itself or twice, a chosen member is a link or other special file, or the
      disk is full.
  """
  if not archive.stat().st_size:
    raise errors.InputError(f"{archive}: empty: remove it, to fetch it again")
  folder.mkdir(parents=True, exist_ok=True)
  stage = pathlib.Path(tempfile.mkdtemp(prefix=".unpacked.", dir=folder))
  try:
    names: dict[str, None] = {}
    for target, stream in _members(archive, choose, _Budget(archive, most)):
      if target in names:
        raise errors.InputError(f"{archive}: two members are {target}: nothing was unpacked")
      names[target] = None
      _copy(stream, stage / target, archive)
    if not names:
      raise errors.InputError(f"{archive}: nothing in it of what it should hold")
    for name in names:
      (folder / name).parent.mkdir(parents=True, exist_ok=True)
      os.replace(stage / name, folder / name)
  finally:
    shutil.rmtree(stage, ignore_errors=True)
  return [folder / name for name in names]


def safe_name(name: str, archive: pathlib.Path) -> str:
  """A member's name without "./"; raises InputError if it can lead out of a folder."""
  parts = [part for part in name.split("/") if part not in ("", ".")]
  absolute = name.startswith("/") or any(mark in name for mark in ("\\", ":", "\0"))
  if absolute or ".." in parts or not name.isprintable():
    raise errors.InputError(
      f"{archive}: it names a member {name!r}, outside of itself: it is not to be trusted, and "
      "nothing was unpacked"
    )
  return "/".join(parts)


class _Reader(Protocol):
  def read(self, size: int, /) -> bytes: ...


class _Budget:
  """How many bytes may still come out of an archive."""

  def __init__(self, archive: pathlib.Path, most: int):
    self._archive = archive
    self._left = most

  def spend(self, size: int) -> None:
    self._left -= size
    if self._left < 0:
      raise errors.InputError(
        f"{self._archive}: more comes out of it than it should hold: it is not to be trusted, and "
        "nothing was unpacked"
      )


@dataclasses.dataclass
class _Counted:
  """A stream whose bytes count."""

  stream: _Reader
  budget: _Budget

  def read(self, size: int, /) -> bytes:
    data = self.stream.read(size)
    self.budget.spend(len(data))
    return data


def _members(
  archive: pathlib.Path, choose: Choose, budget: _Budget
) -> Iterator[tuple[str, _Reader]]:
  """Chosen members, by where they go; each is to be read before the next."""
  name = archive.name
  with _readable(archive), contextlib.ExitStack() as stack:
    if name.endswith(".zip"):
      yield from _zip_members(archive, choose, budget)
      return
    for ending, opener in _TARS.items():
      if name.endswith(ending):
        content = _Counted(stack.enter_context(opener(archive, "rb")), budget)
        with tarfile.open(fileobj=content, mode="r|") as tar:  # type: ignore[call-overload]
          yield from _tar_members(tar, archive, choose)
        return
    if name.endswith(".gz") and (target := choose(name.removesuffix(".gz"))):
      yield target, _Counted(stack.enter_context(gzip.GzipFile(archive)), budget)


def _zip_members(
  archive: pathlib.Path, choose: Choose, budget: _Budget
) -> Iterator[tuple[str, _Reader]]:
  with zipfile.ZipFile(archive) as source:
    for member in source.infolist():
      target = choose(safe_name(member.filename, archive))
      if target is None or member.is_dir():
        continue
      kind = stat.S_IFMT(member.external_attr >> 16)
      if kind not in (0, stat.S_IFREG) or member.flag_bits & 1:
        raise errors.InputError(_special(archive, member.filename))
      with source.open(member) as stream:
        yield target, _Counted(stream, budget)


def _tar_members(
  source: tarfile.TarFile, archive: pathlib.Path, choose: Choose
) -> Iterator[tuple[str, _Reader]]:
  for member in source:
    target = choose(safe_name(member.name, archive))
    if target is None or member.isdir():
      continue
    stream = source.extractfile(member) if member.isreg() else None
    if stream is None:
      raise errors.InputError(_special(archive, member.name))
    yield target, stream


def _special(archive: pathlib.Path, name: str) -> str:
  return f"{archive}: {name!r} is a link, encrypted or no plain file: nothing was unpacked"


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
      f"{path.parent}: {error.strerror} while {archive} was unpacked: put that right and call again"
    ) from None


@contextlib.contextmanager
def _readable(archive: pathlib.Path) -> Iterator[None]:
  try:
    yield
  except _BROKEN as error:
    raise errors.InputError(
      f"{archive}: broken or no such archive ({error}): remove it, to fetch it again"
    ) from None
