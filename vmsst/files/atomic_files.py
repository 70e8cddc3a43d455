"""Files and folders that are there as a whole or not at all, whatever ends who writes them.

What is written goes beside its place, reaches the disk there, and then takes its name in one step.
A reader, and a process that starts after a kill, finds the old content or the new.
"""

import contextlib
import errno
import json
import os
import pathlib
import re
import shutil
import uuid
from collections.abc import Iterator
from typing import IO, Any, TextIO

from vmsst import errors

PARTIAL = ".part"
"""What the name of a file that is being written has behind it, perhaps with a number."""
_UNFINISHED = re.compile(rf"{re.escape(PARTIAL)}(-[0-9a-f]+)?$")


@contextlib.contextmanager
def atomic_path(path: str | os.PathLike[str], *, shared: bool = False) -> Iterator[pathlib.Path]:
  """A path to write a file to, which becomes `path` when all went well; else nothing is left.

  A process that is killed leaves `NAME.part`, which the next one overwrites.

  Args:
    path: The file, or one of an object store as an etils.epath.Path. Its folder is made if need be.
    shared: Several processes may write the file at a time: the last one's stays. What one leaves
      that is killed has a name of its own.

  Raises:
    OSError: it cannot be written; the error names `path`.
  """
  place: Any = path if _is_remote(path) else pathlib.Path(path)
  partial = place.with_name(f"{place.name}{PARTIAL}{f'-{uuid.uuid4().hex}' if shared else ''}")
  with naming(place):
    if not _is_remote(place) and place.exists() and not (place.is_file() or place.is_dir()):
      yield place  # a pipe or /dev/null has no content to keep
      return
    try:
      place.parent.mkdir(parents=True, exist_ok=True)
      yield partial
      if not _is_remote(partial):
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
  """A binary file to write, which is at `path` when all went well; see `atomic_path`."""
  with atomic_path(path, shared=shared) as partial, _opened(partial) as stream:
    yield stream


@contextlib.contextmanager
def atomic_text(path: str | os.PathLike[str]) -> Iterator[TextIO]:
  """A UTF-8 file with LF to write, which is at `path` when all went well; see `atomic_path`."""
  with atomic_path(path) as partial, open(partial, "w", encoding="utf-8", newline="\n") as stream:
    yield stream


def write_bytes(path: str | os.PathLike[str], content: bytes) -> None:
  """Replaces the content of a file in one step; see `atomic_path`."""
  with atomic_file(path) as stream:
    stream.write(content)


def write_text(path: str | os.PathLike[str], content: str) -> None:
  """Replaces the content of a UTF-8 file in one step; see `atomic_path`."""
  write_bytes(path, content.encode())


def write_json(path: str | os.PathLike[str], content: Any) -> None:
  """Replaces a JSON file in one step; see `atomic_path`."""
  write_text(path, json.dumps(content, indent=1, ensure_ascii=False))


@contextlib.contextmanager
def atomic_folder(target: pathlib.Path) -> Iterator[pathlib.Path]:
  """Gives a folder to write into, which becomes `target` at the end; an error leaves nothing.

  Raises:
    InputError: the folder cannot be written.
  """
  partial = target.with_name(f"{target.name}.{os.getpid()}.partial")
  try:
    partial.mkdir(parents=True)
    yield partial
    for path in partial.rglob("*"):
      if path.is_file():
        _reach_disk(path)
    partial.rename(target)
  except OSError as error:
    raise errors.InputError(f"{target} cannot be written: {error}") from error
  finally:
    shutil.rmtree(partial, ignore_errors=True)


@contextlib.contextmanager
def naming(path: str | os.PathLike[str]) -> Iterator[None]:
  """Gives an OSError that says no file, such as that of a full disk, the name of this one."""
  try:
    yield
  except OSError as error:
    if error.errno and not error.filename:
      raise OSError(error.errno, error.strerror, os.fspath(path)) from None
    raise


def remove_partial(folder: str | os.PathLike[str]) -> None:
  """Removes what killed processes have left unfinished anywhere below a folder."""
  for where, _, names in os.walk(folder):
    for name in filter(_UNFINISHED.search, names):
      os.remove(os.path.join(where, name))


def _opened(path: Any) -> IO[bytes]:
  return path.open("wb") if _is_remote(path) else open(path, "wb")


def _is_remote(path: str | os.PathLike[str]) -> bool:
  return "://" in os.fspath(path)


def _reach_disk(path: pathlib.Path) -> None:
  handle = os.open(path, os.O_RDONLY)
  try:
    os.fsync(handle)
  except OSError as error:
    if error.errno != errno.EINVAL:  # of a file system that knows no such thing
      raise
  finally:
    os.close(handle)
