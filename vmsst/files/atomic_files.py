"""Atomic writes: a file or folder is complete or absent, even if the writer is killed.

Content is written under a temporary name next to its place, synced to disk, and renamed in one
step. Readers find the old content or the new, also after a kill. Files of object stores are written
on this machine, then uploaded: objects appear as a whole, and folders have a marker until then.
"""

import contextlib
import errno
import json
import os
import pathlib
import re
import shutil
import stat
import tempfile
import time
import uuid
from collections.abc import Iterator
from typing import IO, Any, TextIO

from vmsst import errors
from vmsst.files import storage

PARTIAL = ".part"
"""Suffix of the name of an incomplete file, sometimes followed by a number."""
_UNFINISHED = re.compile(rf"{re.escape(PARTIAL)}(-[0-9a-f]+)?$")


@contextlib.contextmanager
def atomic_path(path: str | os.PathLike[str], *, shared: bool = False) -> Iterator[pathlib.Path]:
  """Yields a path to write a file to and renames it to `path`; an error leaves nothing.

  A killed process leaves `NAME.part`, which the next one overwrites. Devices, pipes and standard
  streams are written directly. A symbolic link stays, and the file that it leads to is replaced.

  Args:
    path: The file, local or in an object store. A missing folder is created.
    shared: Several processes may write the file at the same time: the last one wins. A killed
      process leaves a file of unique name.

  Raises:
    OSError: the file cannot be written; the error names `path`.
    InputError: the object store refuses it.
  """
  if storage.is_url(path):
    with storage.uploaded(os.fspath(path)) as partial:
      yield partial
    return
  if is_stream(path):
    with naming(path):
      yield pathlib.Path(path)
    return
  place = pathlib.Path(link_target(path))
  partial = place.with_name(f"{place.name}{PARTIAL}{f'-{uuid.uuid4().hex}' if shared else ''}")
  with naming(place):
    try:
      place.parent.mkdir(parents=True, exist_ok=True)
      yield partial
      _reach_disk(partial)
      partial.replace(place)
    except BaseException as error:
      with contextlib.suppress(OSError):
        partial.unlink()
      if isinstance(error, OSError) and error.filename == str(partial):
        error.filename = None
      raise


@contextlib.contextmanager
def atomic_file(path: str | os.PathLike[str], *, shared: bool = False) -> Iterator[IO[bytes]]:
  """Yields a binary file to write, which becomes `path` without an error; see `atomic_path`."""
  with atomic_path(path, shared=shared) as partial, open(partial, "wb") as stream:
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
def atomic_folder(target: storage.Path) -> Iterator[pathlib.Path]:
  """Yields a local folder to write into, which becomes `target`; an error leaves nothing.

  A killed process leaves a hidden folder, or in an object store a marked one, which the next one
  replaces; see `storage.upload_folder`.

  Raises:
    InputError: the folder cannot be written.
  """
  try:
    partial = _partial_folder(target)
    try:
      yield partial
      _complete(partial, target)
    finally:
      remove_folder(partial)
  except OSError as error:
    raise errors.InputError(f"{target} cannot be written: {error}") from error


def _partial_folder(target: storage.Path) -> pathlib.Path:
  if storage.is_url(target):
    return pathlib.Path(tempfile.mkdtemp(prefix="vmsst-"))
  partial = pathlib.Path(target.with_name(f".{target.name}.vmsst{PARTIAL}"))
  shutil.rmtree(partial, ignore_errors=True)
  partial.mkdir(parents=True)
  return partial


def _complete(partial: pathlib.Path, target: storage.Path) -> None:
  if storage.is_url(target):
    storage.upload_folder(partial, os.fspath(target))
    shutil.rmtree(partial)
    return
  for path in partial.rglob("*"):
    if path.is_file():
      _reach_disk(path)
  partial.rename(target)


def remove_folder(folder: str | os.PathLike[str]) -> None:
  """Removes the folder of a failed write, which other threads may still be writing into.

  When one array of a checkpoint cannot be written, the writes of the others continue for a moment
  and create the folder again. So it is removed until it stays away, for 10 seconds at most.
  """
  end = time.monotonic() + 10
  while os.path.lexists(folder) and time.monotonic() < end:
    shutil.rmtree(folder, ignore_errors=True)
    time.sleep(0.1)


@contextlib.contextmanager
def naming(path: str | os.PathLike[str]) -> Iterator[None]:
  """Adds this path to an OSError without a file name, such as that of a full disk."""
  try:
    yield
  except OSError as error:
    if error.errno and not error.filename:
      raise OSError(error.errno, error.strerror, os.fspath(path)) from None
    raise


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
  found = os.fspath(path)
  for _ in range(40):
    inside = os.path.dirname(os.path.abspath(found))
    if not os.path.islink(found) or f"{inside}/".startswith(("/dev/", "/proc/")):
      break
    found = os.path.join(inside, os.readlink(found))
  return found


def remove_partial(folder: str | os.PathLike[str]) -> None:
  """Removes incomplete files that killed processes have left anywhere below a folder."""
  for where, _, names in os.walk(folder):
    for name in filter(_UNFINISHED.search, names):
      os.remove(os.path.join(where, name))


def remove_work(folder: str | os.PathLike[str], own: re.Pattern[str]) -> None:
  """Removes the files of finished work, and their folder if it has nothing else.

  Args:
    folder: The folder, local or in an object store; it may be missing.
    own: Matches the names of the files.
  """
  storage.remove_files(folder, list(filter(own.fullmatch, storage.names(folder))))
  if not storage.is_url(folder):
    remove_partial(folder)
    with contextlib.suppress(OSError):  # It is missing or has other files.
      os.rmdir(folder)


def _reach_disk(path: pathlib.Path) -> None:
  handle = os.open(path, os.O_RDONLY)
  try:
    os.fsync(handle)
  except OSError as error:
    if error.errno != errno.EINVAL:  # a file system without fsync
      raise
  finally:
    os.close(handle)
