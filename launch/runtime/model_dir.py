"""The folder of a run: it can be written to, and one run at a time writes there."""

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
_AGAIN = "Put that right and give the same command again"
_DISK = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO, errno.ESTALE}
_NO_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL}


def check_model_dir(model_dir: str) -> None:
  """Makes `model_dir`.

  Raises:
    InputError: it is relative or cannot be written to.
  """
  if "://" in model_dir:
    return
  if not os.path.isabs(model_dir):
    raise InputError(
      f"MODEL_DIR must be an absolute path, got {model_dir!r}: try {os.path.abspath(model_dir)!r}"
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
  """Keeps other runs out of `model_dir` meanwhile.

  The lock is the kernel's, on a file that stays: it ends with the process, however that ends. A
  remote folder (`gs://...`) and a file system without locks have none.

  Raises:
    InputError: another run is there; the message names it.
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
          f"MODEL_DIR {model_dir} is in use by another run ({file.read().strip()}): wait for it, "
          "stop it, or give this one a MODEL_DIR of its own"
        ) from error
      logging.warning("%s cannot be locked: do not start a second run there.", model_dir)
    file.truncate(0)
    file.write(
      f"process {os.getpid()} on {socket.gethostname()}, since {time.strftime('%Y-%m-%d %H:%M')}\n"
    )
    file.flush()
    yield


@contextlib.contextmanager
def explained(model_dir: str) -> Iterator[None]:
  """Says in one message what the disk, or a file of the data, did to a run.

  Raises:
    InputError: for a full, read-only or broken disk, and for what TensorFlow could not read.
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
  """What the operating system says of a disk that `error` comes from; None: it is of another kind.

  TensorStore and TensorFlow quote it in errors of their own.
  """
  if isinstance(error, OSError) and error.errno in _DISK:
    return error.strerror
  return next((text for text in map(os.strerror, sorted(_DISK)) if text in str(error)), None)


def _explanation(error: BaseException | None, model_dir: str) -> str | None:
  import tensorflow as tf

  while error is not None:
    if fault := disk_fault(error):
      where = os.fspath(getattr(error, "filename", None) or model_dir)
      return f"{where} cannot be written: {fault}. {_AGAIN}"
    if isinstance(error, tf.errors.OpError):
      line = _first_line(error.message)
      if _is_full(model_dir):
        line = f"{line} ({os.strerror(errno.ENOSPC)})"
      return f"TensorFlow could not go on: {line}. {_AGAIN}"
    error = error.__cause__
  return None


def _is_full(model_dir: str) -> bool:
  """Whether next to nothing can be written there: TensorFlow does not always say so."""
  try:
    return shutil.disk_usage(model_dir).free < 1 << 16
  except OSError:
    return False


def _first_line(message: str) -> str:
  """The first line of a message of TensorFlow, without the names of its nodes."""
  line = re.sub(r"\{\{.*?\}\}", "", message).strip().splitlines()[0]
  return re.sub(r" \[Op:.*", "", line).strip().rstrip(".")
