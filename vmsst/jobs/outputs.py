"""Writes outputs that are complete or absent, have a single writer and never overwrite an input.

A local file or folder is written under a temporary name, and renamed when it is complete. In an
object store, a file appears only when it is complete, but the files in a folder appear one by one.
The JSON files at the top of a folder are uploaded last, so their presence means that the folder is
complete.

Unfinished files are in a work folder. The path of the work folder is `.NAME.vmsst` next to the
output, or `.vmsst` inside an output folder that receives its files one by one. The command that
writes the output locks the work folder. Object stores have no locks, so users must start only one
writer per output.
"""

import contextlib
import errno
import glob
import json
import os
import pathlib
import re
import shutil
import stat
import tempfile
import threading
import uuid
from collections.abc import Iterator, Sequence
from typing import Any

from vmsst import errors, storage

STANDARD = "-"  # standard input or output, as a path
_LOCK = "lock"
_CHECKPOINT = re.compile(r"(^|/)checkpoint_\d+$")

_owned: set[tuple[int, str]] = set()
"""Pairs of a thread's identifier and a work folder that the thread has locked."""


@contextlib.contextmanager
def atomic_path(
  path: str | os.PathLike[str], work_folder: str | None = None
) -> Iterator[pathlib.Path]:
  """Yields the path of a temporary file, and renames the file to `path` at the end.

  After an error, the temporary file is removed and `path` is unchanged. A new file keeps the mode
  of the file that it replaces. If `path` is a symbolic link, its target is replaced. Devices, pipes
  and standard streams are written directly.

  Args:
    path: The file, local or in an object store. A missing folder is created.
    work_folder: Folder for the temporary file, on the same disk (default: the folder of the file).
      Ignored if the file is in an object store.

  Raises:
    OSError: If the file cannot be written.
    InputError: If the object store rejects the file.
  """
  if storage.is_url(path):
    with tempfile.TemporaryDirectory(prefix="vmsst-") as folder:
      partial = pathlib.Path(folder, os.path.basename(os.fspath(path).rstrip("/")))
      yield partial
      storage.upload(partial, os.fspath(path))
    return
  if is_stream(path):
    yield pathlib.Path(path)
    return
  target = pathlib.Path(os.path.realpath(path))
  target.parent.mkdir(parents=True, exist_ok=True)
  # A killed process leaves its temporary file behind. Without a work folder, the next writer uses
  # the same name, so it overwrites the file. In a work folder, the next job deletes the file.
  partial = target.with_name(f".{target.name}.vmsst-part")
  if work_folder:
    partial = pathlib.Path(work_folder, f".vmsst-part-{uuid.uuid4().hex}")
    partial.parent.mkdir(parents=True, exist_ok=True)
  partial.touch()
  try:
    yield partial
    sync_to_disk(partial)
    with contextlib.suppress(OSError):
      os.chmod(partial, stat.S_IMODE(os.stat(target).st_mode))
    os.replace(partial, target)
  except BaseException:
    partial.unlink(missing_ok=True)
    raise


def write_bytes(path: str | os.PathLike[str], content: bytes) -> None:
  """Writes a file atomically; see `atomic_path`."""
  with atomic_path(path) as partial:
    partial.write_bytes(content)


def write_text(path: str | os.PathLike[str], content: str) -> None:
  """Writes a UTF-8 file atomically; see `atomic_path`."""
  write_bytes(path, content.encode(errors="surrogateescape"))


def write_json(path: str | os.PathLike[str], content: Any) -> None:
  """Writes a JSON file atomically; see `atomic_path`."""
  write_text(path, json.dumps(content, indent=1, ensure_ascii=False))


def sync_to_disk(path: pathlib.Path) -> None:
  """Waits until the content of a file is on disk."""
  handle = os.open(path, os.O_RDONLY)
  try:
    os.fsync(handle)
  except OSError as error:
    if error.errno != errno.EINVAL:  # EINVAL: the file system has no fsync.
      raise
  finally:
    os.close(handle)


def is_stream(path: str | os.PathLike[str]) -> bool:
  """Returns whether a path is a device, a pipe or a standard stream, which cannot be replaced."""
  if path == STANDARD or storage.is_url(path):
    return path == STANDARD
  if os.path.abspath(path).startswith(("/dev/", "/proc/")):
    return not os.path.abspath(path).startswith("/dev/shm/")
  try:
    mode = os.stat(path).st_mode
  except (OSError, ValueError):
    return False
  return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))


# --------------------------------------------------------------------------------------------
# Work folders and locks


def work_path(output: str | os.PathLike[str], *, is_folder: bool = False) -> str:
  """Returns the absolute path or URL of the work folder of an output.

  Args:
    output: The output, local or in an object store.
    is_folder: Whether the output is a folder that receives its files one by one.
  """
  target = storage.absolute(output).rstrip("/")
  if is_folder:
    return f"{target}/{storage.UNFINISHED}"
  if not storage.is_url(target):
    target = os.path.realpath(target)
  folder, _, name = target.rpartition("/")
  return f"{folder}/.{name}{storage.UNFINISHED}"


@contextlib.contextmanager
def ownership(output: str | os.PathLike[str], *, is_folder: bool = False) -> Iterator[None]:
  """Locks an output, so that no other process or thread writes it.

  A thread can lock the same output several times, because a command and the functions that the
  command calls both lock the output. If the output folder is new and still empty at the end, the
  folder is removed.

  Args:
    output: The output. Outputs in an object store, devices, pipes and standard streams are not
      locked.
    is_folder: As in `work_path`.

  Raises:
    InputError: If another process or thread is writing the output.
    OSError: If the work folder cannot be created.
  """
  work_folder = work_path(output, is_folder=is_folder)
  key = threading.get_ident(), work_folder
  if storage.is_url(output) or (not is_folder and is_stream(output)) or key in _owned:
    yield
    return
  import filelock

  is_new = is_folder and not os.path.lexists(output)
  os.makedirs(work_folder, exist_ok=True)
  lock = filelock.FileLock(f"{work_folder}/{_LOCK}", timeout=0)
  try:
    lock.acquire()
  except filelock.Timeout:
    raise errors.InputError(
      f"{os.fspath(output)} is being written by another command; wait for it, or give another "
      "output"
    ) from None
  _owned.add(key)
  try:
    yield
  finally:
    _owned.remove(key)
    with contextlib.suppress(OSError):
      os.unlink(f"{work_folder}/{_LOCK}")
    lock.release()
    with contextlib.suppress(OSError):  # A folder that is not empty stays.
      os.rmdir(work_folder)
      if is_new:
        os.rmdir(output)


def clear(work_folder: str) -> None:
  """Removes all files from a work folder, except for the lock of this process."""
  if storage.is_url(work_folder):
    storage.remove(work_folder)
    return
  for name in storage.names(work_folder) - {_LOCK}:
    storage.remove(os.path.join(work_folder, name))
  with contextlib.suppress(OSError):  # If the folder still contains the lock, it stays.
    os.rmdir(work_folder)


@contextlib.contextmanager
def atomic_folder(target: storage.Path) -> Iterator[pathlib.Path]:
  """Yields a temporary local folder, and renames or uploads it to `target` at the end.

  After an error, `target` is absent. A killed process leaves a work folder behind, which the next
  writer replaces. In an object store, a killed process leaves an incomplete folder behind, which
  the user must delete. An incomplete folder lacks the JSON files at its top.

  Raises:
    InputError: If the folder cannot be written, the folder exists and is not empty, or another
      process is writing the folder.
  """
  try:
    if storage.is_url(target):
      check_new(target)
      with tempfile.TemporaryDirectory(prefix="vmsst-") as folder:
        local = pathlib.Path(folder)
        yield local
        names = [path.relative_to(local).as_posix() for path in local.rglob("*") if path.is_file()]
        # The JSON files at the top are uploaded last, because they mark a complete folder.
        names.sort(key=lambda name: (-name.count("/"), name.endswith(".json"), name))
        try:
          for name in names:
            storage.upload(local / name, f"{target}/{name}")
        except BaseException:
          with contextlib.suppress(Exception):  # Keep the original error.
            storage.remove(target)
          raise
      return
    with ownership(target):
      # The caller checked the folder before the lock; another command may have written it since.
      check_new(target)
      work_folder = work_path(target)
      clear(work_folder)
      partial = pathlib.Path(work_folder, "content")
      partial.mkdir()
      try:
        yield partial
        for path in filter(pathlib.Path.is_file, partial.rglob("*")):
          sync_to_disk(path)
        partial.rename(target)
      finally:
        shutil.rmtree(partial, ignore_errors=True)
  except OSError as error:
    raise errors.InputError(f"{target} cannot be written: {error}") from error


def check_new(target: storage.Path) -> None:
  """Raises InputError if a folder exists and is not empty."""
  if storage.names(target) or (target.exists() and not target.is_dir()):
    raise errors.InputError(f"{target} exists already; choose another folder or delete it")


def new_folder(output: str | os.PathLike[str]) -> storage.Path:
  """Returns the absolute path of a new folder; raises InputError as in `check_new`."""
  target = storage.path(storage.absolute(os.fspath(output).rstrip("/") or "/"))
  if not storage.is_url(target):
    target = pathlib.Path(os.path.realpath(target))
  check_new(target)
  return target


# --------------------------------------------------------------------------------------------
# Checks before a command starts


def check(inputs: Sequence[str], *, file: str | None = None, folder: str | None = None) -> None:
  """Raises InputError if a command would overwrite an input or cannot write its output.

  An output overwrites an input if both are the same file or folder, or if the output is an existing
  file in an input folder.

  Args:
    inputs: Files, folders and shell patterns to read; `-` is standard input. In object stores, only
      paths are compared.
    file: File to write, if any; `-` is standard output. In an object store, its folder must be
      writable.
    folder: Folder to write to, if any.
  """
  if inputs.count(STANDARD) > 1:
    raise errors.InputError(
      "standard input (-) is given twice, but it can be read only once; replace one with a file"
    )
  output = folder or file or STANDARD
  if output == STANDARD:
    return
  is_url, is_file = storage.is_url(output), not folder
  if is_url and is_file:
    if output.endswith("/") or "/" not in output.partition("://")[2]:
      raise errors.InputError(f"{output} is a folder; give a file as output")
  elif not is_url and os.path.lexists(output) and os.path.isdir(output) == is_file:
    fault, kind = ("a folder", "file") if is_file else ("not a folder", "folder")
    raise errors.InputError(f"{output} is {fault}; give a {kind} as output")
  elif not is_url and is_file and is_stream(output):
    return
  for path in inputs:
    is_pattern = not storage.is_url(path) and glob.has_magic(path) and not os.path.lexists(path)
    for match in glob.glob(path, recursive=True) if is_pattern else [path]:
      if match == STANDARD or storage.is_url(match) != is_url:
        continue
      parent = match.rstrip("/")
      # Files next to a checkpoint describe its encoder, so they are inputs, too.
      if _CHECKPOINT.search(parent):
        parent = os.path.dirname(storage.absolute(parent))
      if is_url:
        same, below = output.rstrip("/") == match.rstrip("/"), output.startswith(f"{parent}/")
      else:
        both = os.path.exists(output) and os.path.exists(match)
        same = both and os.path.samefile(output, match)
        below = os.path.realpath(output).startswith(f"{os.path.realpath(parent)}/")
      if same or (is_file and below and storage.exists(output)):
        raise errors.InputError(
          f"the output {output} would overwrite the input {match}; give another output"
        )
  if is_url and is_file:
    storage.check_writable(output.rpartition("/")[0])
