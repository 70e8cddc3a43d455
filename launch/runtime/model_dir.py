"""The folder of a run: creates and locks it, and removes it if the run fails before any result."""

import contextlib
import errno
import os
import pathlib
import re
import shutil
import socket
from collections.abc import Iterator
from typing import Any

import jax

from vmsst import errors
from vmsst.errors import InputError
from vmsst.files import locks, storage
from vmsst.launch.runtime import progress

_LOCK = ".lock"
# What a run writes before its first result.
_STARTUP = re.compile(
  r"\.lock(-\d+)?|\.write_test_.*|config\.gin|model-info\.txt|encoder\.json|vocabulary\..*"
  "|train|training_eval|inference_eval"
)
_RERUN = "Fix this and rerun the same command"
_DISK = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO, errno.ESTALE}


class Folder:
  """The output folder of a command that has begun.

  Attributes:
    has_results: Whether the folder holds results of this command, which a failure must keep.
    lock: The lock of the folder, or None.
  """

  def __init__(self, path: storage.Path):
    self.has_results = False
    self.lock: locks.Lock | None = None
    self._path = path
    self._new_folders: list[Any] = []
    if isinstance(path, pathlib.Path):  # object stores have no folders
      # Innermost first.
      self._new_folders = [p for p in (path, *path.parents) if not p.exists()]
    self._before = storage.names(path)

  def check_owned(self) -> None:
    """Raises InputError if another run has taken over the folder; asks the object store."""
    if self.lock is not None:
      self.lock.check()

  def clean_up(self) -> None:
    """Removes what this command wrote, unless there are results; keeps all other files."""
    new = storage.names(self._path) - self._before
    if self.has_results or any(not _STARTUP.fullmatch(name) for name in new):
      return
    with contextlib.suppress(OSError):
      for name in sorted(new):
        storage.remove(self._path / name)
    self.remove_if_empty()

  def remove_if_empty(self) -> None:
    """Removes the folders that this command created, innermost first, up to one that has files."""
    for folder in self._new_folders:
      try:
        folder.rmdir()
      except FileNotFoundError:
        continue
      except OSError:
        return


@contextlib.contextmanager
def opened(name: str, model_dir: str, *, lock: bool = False) -> Iterator[Folder]:
  """Creates `model_dir`; on an error inside, removes what was written, unless there are results.

  The process that creates the folder is the first of the run; the others only check that they can
  write.

  Args:
    name: The folder's name in messages, such as MODEL_DIR.
    model_dir: Absolute path, or URL in an object store.
    lock: Whether to lock the folder against other runs; see `vmsst.files.locks`.

  Raises:
    InputError: The path is relative or not writable, or another run, which the message names, uses
      the folder.
  """
  errors.check_text(name, model_dir)
  if not storage.is_url(model_dir) and not os.path.isabs(model_dir):
    raise InputError(
      f"{name} must be an absolute path, got {model_dir!r}; try {os.path.abspath(model_dir)!r}"
    )
  path = storage.path(model_dir)
  folder = Folder(path)
  first = jax.process_index() == 0
  try:
    try:
      if first and isinstance(path, pathlib.Path):
        path.mkdir(parents=True, exist_ok=True)
      _check_writable(path)
    except OSError as error:
      raise InputError(f"{name} {model_dir} cannot be written to: {error.strerror}") from error
    with _locked(name, path) if lock and first else contextlib.nullcontext() as folder.lock:
      try:
        yield folder
      except BaseException:
        if first:
          folder.clean_up()
        raise
  except BaseException:
    if first:
      folder.remove_if_empty()
    raise


def _check_writable(folder: storage.Path) -> None:
  """Raises an error unless a file can be created in `folder`, or where it would be created.

  Raises:
    OSError: A local folder is not writable.
    InputError: An object store is not.
  """
  if not isinstance(folder, pathlib.Path):
    storage.check_writable(os.fspath(folder))
    return
  name = f".write_test_{socket.gethostname()}_{os.getpid()}"
  probe = next(path for path in (folder, *folder.parents) if path.exists()) / name
  probe.touch()
  probe.unlink()


@contextlib.contextmanager
def _locked(name: str, folder: storage.Path) -> Iterator[locks.Lock]:
  try:
    with locks.held(os.fspath(folder / _LOCK), wait=progress.print_once) as lock:
      yield lock
  except locks.InUseError as error:
    raise InputError(
      f"{name} {folder} is in use by another run ({error}); wait for it, stop it, or set another "
      f"{name}"
    ) from error


@contextlib.contextmanager
def explained(model_dir: str) -> Iterator[None]:
  """Turns disk and data errors inside into an InputError with one message.

  Raises:
    InputError: The disk is full, read-only or broken, or TensorFlow could not read a file.
  """
  try:
    yield
  except InputError:
    raise
  except Exception as error:
    message = _explanation(error, model_dir)
    if message is None:
      raise
    raise InputError(message) from error


def disk_fault(error: BaseException) -> str | None:
  """Returns the operating system's message if `error` is a disk error, else None.

  TensorStore and TensorFlow quote this message in their own errors.
  """
  if isinstance(error, OSError) and error.errno in _DISK:
    return error.strerror
  return next((text for text in map(os.strerror, sorted(_DISK)) if text in str(error)), None)


def _explanation(error: BaseException | None, model_dir: str) -> str | None:
  import tensorflow as tf

  while error is not None:
    if fault := disk_fault(error):
      where = os.fspath(getattr(error, "filename", None) or model_dir)
      return f"{where} cannot be written: {fault}. {_RERUN}"
    if isinstance(error, tf.errors.OpError):
      line = _first_line(error.message)
      if _is_full(model_dir):
        line = f"{line} ({os.strerror(errno.ENOSPC)})"
      return f"TensorFlow failed: {line}. {_RERUN}"
    error = error.__cause__
  return None


def _is_full(model_dir: str) -> bool:
  """Returns whether the disk is full, which TensorFlow does not always report."""
  try:
    return shutil.disk_usage(model_dir).free < 1 << 16
  except OSError:
    return False


def _first_line(message: str) -> str:
  """Returns the first line of a TensorFlow message, without node names."""
  line = re.sub(r"\{\{.*?\}\}", "", message).strip().splitlines()[0]
  return re.sub(r" \[Op:.*", "", line).strip().rstrip(".")
