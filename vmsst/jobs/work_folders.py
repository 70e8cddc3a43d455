"""Work folders: the lock and the unfinished files of an output, which no other program uses.

An output that appears at once has `.NAME.vmsst` next to it, and a folder whose files appear one by
one has `.vmsst` in it. The command that writes the output owns the work folder: another command
with the same output is refused. It is removed when the output is complete; what a killed command
has left in it is resumed or replaced by the next one.
"""

import contextlib
import json
import os
import pathlib
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator

from vmsst import errors, storage
from vmsst.io import input_files
from vmsst.jobs import atomic_files, locks

_LOCK = "lock"
_CONTENT = "content"
_UPLOAD = f"{storage.UNFINISHED}/upload.json"
"""Lists the files of an upload until it is complete."""

_owned: set[tuple[int, str]] = set()
"""Threads and the work folders that they have locked."""


def work_path(output: str | os.PathLike[str], *, is_folder: bool = False) -> str:
  """Returns the absolute path or URL of the work folder of an output.

  Args:
    output: The output, local or in an object store.
    is_folder: Whether it is a folder whose files appear one by one.
  """
  target = storage.absolute(output).rstrip("/")
  if is_folder:
    return f"{target}/{storage.UNFINISHED}"
  if not storage.is_url(target):
    target = atomic_files.link_target(target)
  folder, _, name = target.rpartition("/")
  return f"{folder}/.{name}{storage.UNFINISHED}"


@contextlib.contextmanager
def owned(output: str | os.PathLike[str], *, is_folder: bool = False) -> Iterator[None]:
  """Locks an output, so that this process alone writes it, and removes an empty work folder.

  A thread may own an output several times: a function that writes it locks it too.

  Args:
    output: The output. Objects of a store, devices, pipes and standard streams are not locked.
    is_folder: As in `work_path`.

  Raises:
    InputError: another process writes the output; the message names it.
    OSError: the work folder cannot be created.
  """
  work = work_path(output, is_folder=is_folder)
  key = threading.get_ident(), work
  is_stream = not storage.is_url(output) and not is_folder and atomic_files.is_stream(output)
  if storage.is_url(output) or is_stream or key in _owned:
    yield
    return
  with contextlib.ExitStack() as stack:
    try:
      _lock(work, stack)
    except locks.InUseError as error:
      raise errors.InputError(
        f"{os.fspath(output)} is being written by another command ({error}); wait for it, or give "
        "another output"
      ) from None
    except OSError as error:
      raise OSError(error.errno, error.strerror, os.fspath(output)) from None
    atomic_files.remove_stale(os.path.dirname(work))
    _owned.add(key)
    stack.callback(_owned.remove, key)
    yield


def _lock(work: str, stack: contextlib.ExitStack) -> None:
  """Locks a work folder until a stack is closed, which also removes it if it is empty."""
  stack.callback(remove_if_empty, work)
  while True:
    os.makedirs(work, exist_ok=True)
    # The previous owner may remove the folder between the two steps.
    with contextlib.suppress(FileNotFoundError):
      stack.enter_context(locks.held(f"{work}/{_LOCK}"))
      return


def remove_if_empty(folder: str) -> None:
  """Removes a folder without files; object stores have none."""
  if not storage.is_url(folder):
    with contextlib.suppress(OSError):  # It has files, or does not exist.
      os.rmdir(folder)


def clear(work: str) -> None:
  """Removes what is in a work folder, except for the lock of this process, and the empty folder."""
  names = storage.files_below(work) if storage.is_url(work) else storage.names(work)
  storage.remove_files(work, [name for name in names if name != _LOCK])
  remove_if_empty(work)


@contextlib.contextmanager
def atomic_folder(target: storage.Path) -> Iterator[pathlib.Path]:
  """Yields a local folder to write into, which becomes `target`; an error leaves nothing.

  A killed process leaves a work folder, which the next one replaces; in an object store also the
  objects that it has uploaded.

  Raises:
    InputError: the folder cannot be written, exists and is not empty, or another process writes it.
  """
  try:
    if storage.is_url(target):
      with tempfile.TemporaryDirectory(prefix="vmsst-") as folder:
        yield pathlib.Path(folder)
        upload(pathlib.Path(folder), os.fspath(target))
      return
    with owned(target):
      check_new(target)  # Another command may have written it since it was checked.
      work = work_path(target)
      clear(work)
      partial = pathlib.Path(work, _CONTENT)
      partial.mkdir()
      try:
        yield partial
        for path in partial.rglob("*"):
          if path.is_file():
            atomic_files.sync_to_disk(path)
        partial.rename(target)
      finally:
        remove_folder(partial)
  except OSError as error:
    raise errors.InputError(f"{target} cannot be written: {error}") from error


def check_new(target: storage.Path) -> None:
  """Raises InputError unless `atomic_folder` may write a folder."""
  if not is_new(target):
    raise errors.InputError(f"{target} exists already: choose another folder or delete it")


def is_new(target: storage.Path) -> bool:
  """Returns whether `atomic_folder` may write a folder: it is absent, empty or unfinished."""
  if not storage.is_url(target):
    return not target.exists() or (target.is_dir() and not any(target.iterdir()))
  return storage.names(target) <= {storage.UNFINISHED} or storage.is_file(target / _UPLOAD)


def upload(folder: pathlib.Path, url: str) -> None:
  """Writes the files below a local folder to a new one in an object store; an error leaves nothing.

  Files at the top are written after those in subfolders, JSON files last.

  Raises:
    InputError: the folder exists, or the store refuses an object.
  """
  inside = [path.relative_to(folder) for path in folder.rglob("*") if path.is_file()]
  inside.sort(key=lambda path: (-len(path.parts), path.suffix == ".json", path))
  names = [path.as_posix() for path in inside]
  target = storage.path(url)
  check_new(target)
  _remove_upload(target)  # left by a process that was killed
  try:
    storage.write(f"{url}/{_UPLOAD}", json.dumps(names).encode())
    for name in names:
      storage.upload(folder / name, f"{url}/{name}")
  except BaseException:
    with contextlib.suppress(Exception):  # The first error is the reason.
      _remove_upload(target)
    raise
  storage.remove(target / _UPLOAD)


def _remove_upload(target: storage.Path) -> None:
  """Removes the files of an unfinished upload, and no others."""
  if storage.is_file(target / _UPLOAD):
    names = input_files.read_json(target / _UPLOAD)
    if not isinstance(names, list):
      raise errors.InputError(f"{target / _UPLOAD} is damaged; delete it and the upload's files")
    storage.remove_files(target, [x for x in storage.files_below(target) if x in [*names, _UPLOAD]])


def remove_folder(folder: str | os.PathLike[str]) -> None:
  """Removes the folder of a failed write, which other threads may still be writing into.

  When one array of a checkpoint cannot be written, the writes of the others continue for a moment
  and create the folder again. So it is removed until it stays away, for 10 seconds at most.
  """
  end = time.monotonic() + 10
  while os.path.lexists(folder) and time.monotonic() < end:
    shutil.rmtree(folder, ignore_errors=True)
    time.sleep(0.1)
