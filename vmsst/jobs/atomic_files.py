"""Atomic writes: a file or folder is complete or absent, even if the writer is killed.

Content is written under a temporary name next to its place, synced to disk, and renamed in one
step. Readers find the old content or the new, also after a kill; of several writers the last one
wins. Files of object stores are written on this machine, then uploaded: objects appear as a whole,
and folders have a work folder until then (see `work_folders`).

Temporary names are `.vmsst-part-` and random digits. They are created, never opened, and locked
while their writer lives, so that `remove_stale` removes those of killed writers only.
"""

import contextlib
import errno
import json
import os
import pathlib
import re
import stat
import tempfile
import uuid
from collections.abc import Iterator
from typing import IO, Any, TextIO

from vmsst import errors, storage
from vmsst.jobs import locks

_PARTIAL = ".vmsst-part-"
_cleaned: set[str] = set()
"""Folders without files of writers that were killed before this process wrote there."""
_STALE = re.compile(rf"{re.escape(_PARTIAL)}[0-9a-f]{{32}}")


@contextlib.contextmanager
def atomic_path(path: str | os.PathLike[str]) -> Iterator[pathlib.Path]:
  """Yields a path to write a file to and renames it to `path`; an error leaves nothing.

  The file keeps the mode of the one that it replaces. Devices, pipes and standard streams are
  written directly. A symbolic link stays, and the file that it leads to is replaced.

  Args:
    path: The file, local or in an object store. A missing folder is created.

  Raises:
    OSError: the file cannot be written; the error names `path`.
    InputError: the object store refuses it.
  """
  if storage.is_url(path):
    with tempfile.TemporaryDirectory(prefix="vmsst-") as folder:
      partial = pathlib.Path(folder, os.fspath(path).rstrip("/").rsplit("/", 1)[-1] or "object")
      yield partial
      storage.upload(partial, os.fspath(path))
    return
  if is_stream(path):
    with naming(path):
      yield pathlib.Path(path)
    return
  target = pathlib.Path(link_target(path))
  with naming(target):
    target.parent.mkdir(parents=True, exist_ok=True)
    partial, descriptor = _new_partial(target.parent)
    try:
      yield partial
      sync_to_disk(partial)
      replace(partial, target)
    except BaseException as error:
      with contextlib.suppress(OSError):
        partial.unlink()
      if isinstance(error, OSError) and error.filename == str(partial):
        error.filename = None
      raise
    finally:
      os.close(descriptor)


def _new_partial(folder: pathlib.Path) -> tuple[pathlib.Path, int]:
  """Creates a file of unique name in a folder, and locks it; returns its descriptor too."""
  if str(folder) not in _cleaned:
    _cleaned.add(str(folder))
    remove_stale(folder)
  while True:
    partial = folder / f"{_PARTIAL}{uuid.uuid4().hex}"
    descriptor = os.open(partial, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    with contextlib.suppress(OSError):  # a file system without locks
      locks.lock_file(descriptor)
    if locks.is_at(partial, descriptor):  # or `remove_stale` found it before it was locked
      return partial, descriptor
    os.close(descriptor)


def replace(partial: str | os.PathLike[str], path: str | os.PathLike[str]) -> None:
  """Renames a complete file to `path`; it gets the mode of the file that it replaces."""
  with contextlib.suppress(OSError):
    os.chmod(partial, stat.S_IMODE(os.stat(path).st_mode))
  os.replace(partial, path)


def remove_stale(folder: str | os.PathLike[str]) -> None:
  """Removes the temporary files that killed writers have left in a local folder."""
  if storage.is_url(folder) or not os.path.isdir(folder):
    return
  for name in filter(_STALE.fullmatch, os.listdir(folder)):
    path = os.path.join(folder, name)
    with contextlib.suppress(OSError):  # another process has removed it, or there are no locks
      descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
      try:
        if locks.lock_file(descriptor) and stat.S_ISREG(os.fstat(descriptor).st_mode):
          os.unlink(path)
      finally:
        os.close(descriptor)


@contextlib.contextmanager
def atomic_file(path: str | os.PathLike[str]) -> Iterator[IO[bytes]]:
  """Yields a binary file to write, which becomes `path` without an error; see `atomic_path`."""
  with atomic_path(path) as partial, open(partial, "wb") as stream:
    yield stream


@contextlib.contextmanager
def atomic_text(path: str | os.PathLike[str]) -> Iterator[TextIO]:
  """Yields a text file (UTF-8, LF) to write, which becomes `path`; see `atomic_path`."""
  with atomic_path(path) as partial, open(partial, "w", encoding="utf-8", newline="\n") as stream:
    yield stream


def write_bytes(path: str | os.PathLike[str], content: bytes) -> None:
  """Writes the content of a file atomically; see `atomic_path`."""
  with atomic_file(path) as stream:
    stream.write(content)


def write_text(path: str | os.PathLike[str], content: str) -> None:
  """Writes the content of a UTF-8 file atomically; see `atomic_path`."""
  write_bytes(path, content.encode(errors="surrogateescape"))


def write_json(path: str | os.PathLike[str], content: Any) -> None:
  """Writes a JSON file atomically; see `atomic_path`."""
  # JSON's escapes are those of Python: file names that are not UTF-8 are read back as they were.
  text = json.dumps(content, indent=1, ensure_ascii=False)
  write_bytes(path, text.encode(errors="backslashreplace"))


@contextlib.contextmanager
def naming(path: str | os.PathLike[str]) -> Iterator[None]:
  """Adds this path to an OSError without a file name, such as that of a full disk."""
  try:
    yield
  except OSError as error:
    if error.filename or not (error.errno or type(error) is OSError):
      raise
    number, reason = error.errno or errno.EIO, error.strerror or str(error)
    raise OSError(number, reason, os.fspath(path)) from None


@contextlib.contextmanager
def temporary_space() -> Iterator[None]:
  """Turns the error of a full disk of temporary files into InputError, which names the folder."""
  try:
    yield
  except OSError as error:
    if error.filename or error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
      raise
    raise errors.InputError(
      f"no space for temporary files in {tempfile.gettempdir()}: {error.strerror}; set TMPDIR to a "
      "folder with more space"
    ) from None


def is_stream(path: str | os.PathLike[str]) -> bool:
  """Returns whether a path is of a device, pipe or standard stream, which cannot be replaced."""
  inside = os.path.realpath(os.path.dirname(os.path.abspath(link_target(path))))
  if f"{inside}/".startswith(("/dev/", "/proc/")) and not inside.startswith("/dev/shm"):
    return True
  try:
    mode = os.stat(path).st_mode
  except (OSError, ValueError):
    return False
  return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))


def link_target(path: str | os.PathLike[str]) -> str:
  """Returns the path that symbolic links lead to; does not follow links in /dev and /proc."""
  target = os.fspath(path)
  for _ in range(40):
    inside = os.path.dirname(os.path.abspath(target))
    if not os.path.islink(target) or f"{inside}/".startswith(("/dev/", "/proc/")):
      break
    target = os.path.join(inside, os.readlink(target))
  return target


def sync_to_disk(path: pathlib.Path) -> None:
  """Waits until the content of a file is on disk."""
  handle = os.open(path, os.O_RDONLY)
  try:
    os.fsync(handle)
  except OSError as error:
    if error.errno != errno.EINVAL:  # a file system without fsync
      raise
  finally:
    os.close(handle)
