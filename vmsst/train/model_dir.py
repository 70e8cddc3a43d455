"""The folder of a run: creates and locks it, and explains faults of its disk."""

import contextlib
import errno
import os
import pathlib
import re
import shutil
from collections.abc import Iterator

import jax

from vmsst.errors import InputError
from vmsst.io import locks, storage, work_folders
from vmsst.train import progress

_RERUN = "Fix this and rerun the same command"
_DISK = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO, errno.ESTALE}


@contextlib.contextmanager
def opened(name: str, model_dir: str, *, lock: bool = False) -> Iterator[locks.Lock]:
  """Makes a folder for the output of a command; removes it if nothing was written.

  Turns errors of disks and data inside into an InputError with one message.

  Args:
    name: The folder's name in messages, such as MODEL_DIR.
    model_dir: Absolute path, or URL in an object store.
    lock: Whether to lock the folder, for checkpoints, against other runs; see `vmsst.io.locks`.

  Yields:
    The lock of the folder; without `lock`, of nothing.

  Raises:
    InputError: The path is relative or not writable; another run, which the message names, uses
      the folder; the disk is full, read-only or broken; or TensorFlow could not read a file.
  """
  if not storage.is_url(model_dir) and not os.path.isabs(model_dir):
    raise InputError(
      f"{name} must be an absolute path, got {model_dir!r}; try {os.path.abspath(model_dir)!r}"
    )
  if lock and model_dir.startswith("s3://"):
    raise InputError(
      f"{name} {model_dir}: checkpoints cannot be written to s3://; set a local path or gs://"
    )
  path = storage.path(model_dir)
  with _explained(model_dir), contextlib.ExitStack() as stack:
    held = locks.Lock()
    try:
      if jax.process_index() == 0:
        if isinstance(path, pathlib.Path):
          for folder in [x for x in (*reversed(path.parents), path) if not x.exists()]:
            stack.callback(work_folders.remove_if_empty, os.fspath(folder))
          path.mkdir(parents=True, exist_ok=True)
        elif not lock:
          storage.check_writable(model_dir)
        if lock:
          held = stack.enter_context(
            locks.held(os.fspath(path / ".lock"), wait=progress.print_once)
          )
    except locks.InUseError as error:
      raise InputError(
        f"{name} {path} is in use by another run ({error}); wait for it, stop it, or set another "
        f"{name}"
      ) from error
    except OSError as error:
      raise InputError(f"{name} {model_dir} cannot be written to: {error.strerror}") from error
    yield held


@contextlib.contextmanager
def _explained(model_dir: str) -> Iterator[None]:
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
      line = re.sub(r"\{\{.*?\}\}", "", error.message).strip().splitlines()[0]  # names of nodes
      line = re.sub(r" \[Op:.*", "", line).strip().rstrip(".")
      with contextlib.suppress(OSError):  # TensorFlow does not always report a full disk
        if shutil.disk_usage(model_dir).free < 1 << 16:
          line = f"{line} ({os.strerror(errno.ENOSPC)})"
      return f"TensorFlow failed: {line}. {_RERUN}"
    error = error.__cause__
  return None
