"""The folder of a run: checks that it is writable, and locks it."""

import contextlib
import errno
import fcntl
import os
import pathlib
import re
import shutil
import socket
import time
from collections.abc import Iterator

from absl import logging

from vmsst.errors import InputError

_LOCK = ".lock"
_RERUN = "Fix this and rerun the same command"
_DISK = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO, errno.ESTALE}
_NO_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL}


def check_model_dir(model_dir: str) -> None:
  """Creates `model_dir`.

  Raises:
    InputError: It is relative or not writable.
  """
  if "://" in model_dir:
    return
  if not os.path.isabs(model_dir):
    raise InputError(
      f"MODEL_DIR must be an absolute path, got {model_dir!r}; try {os.path.abspath(model_dir)!r}"
    )
  try:
    pathlib.Path(model_dir).mkdir(parents=True, exist_ok=True)
    probe = pathlib.Path(model_dir) / f".write_test_{os.getpid()}"
    probe.touch()
    probe.unlink()
  except OSError as error:
    raise InputError(f"MODEL_DIR {model_dir} cannot be written to: {error.strerror}") from error


@contextlib.contextmanager
def only_run(model_dir: str) -> Iterator[None]:
  """Locks `model_dir` against other runs.

  The lock is a kernel lock on a file that remains, so it ends with the process, even if that is
  killed. Remote folders (`gs://...`) and file systems without locks are not locked.

  Raises:
    InputError: Another run uses the folder; the message names it.
  """
  if "://" in model_dir:
    yield
    return
  with (pathlib.Path(model_dir) / _LOCK).open("a+", encoding="utf-8") as file:
    try:
      fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
      if error.errno not in _NO_LOCKS:
        file.seek(0)
        raise InputError(
          f"MODEL_DIR {model_dir} is in use by another run ({file.read().strip()}); wait for it, "
          "stop it, or set another MODEL_DIR"
        ) from error
      logging.warning("Cannot lock %s; do not start a second run there.", model_dir)
    file.truncate(0)
    file.write(
      f"process {os.getpid()} on {socket.gethostname()}, since {time.strftime('%Y-%m-%d %H:%M')}\n"
    )
    file.flush()
    yield


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
