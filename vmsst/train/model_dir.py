"""The folder of a run: creates and claims it, and explains faults of its disk."""

import contextlib
import errno
import os
import pathlib
import re
import shutil
import sys
import uuid
from collections.abc import Callable, Iterator

import jax

from vmsst import storage
from vmsst.errors import InputError
from vmsst.io import input_files
from vmsst.jobs import work_folders

RUN_ID = "run_id"
"""Object in the MODEL_DIR of a store with the id of the process that started last."""
_RERUN = "Fix this and rerun the same command"
_DISK = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO, errno.ESTALE}


@contextlib.contextmanager
def opened(name: str, model_dir: str, *, claim: bool = False) -> Iterator[Callable[[], None]]:
  """Makes a folder for the output of a command; removes it if nothing was written.

  Turns errors of disks and data inside into an InputError with one message.

  Args:
    name: The folder's name in messages, such as MODEL_DIR.
    model_dir: Absolute path, or URL in an object store.
    claim: Whether only this run may write checkpoints to the folder. A local folder is locked. In
      an object store, a run that starts later takes the folder over.

  Yields:
    A function that raises InputError if another run has taken the folder over.

  Raises:
    InputError: The path is relative or not writable; another run, which the message names, uses
      the folder; the disk is full, read-only or broken; or TensorFlow could not read a file.
  """
  if not storage.is_url(model_dir) and not os.path.isabs(model_dir):
    raise InputError(
      f"{name} must be an absolute path, got {model_dir!r}; try {os.path.abspath(model_dir)!r}"
    )
  if claim and model_dir.startswith("s3://"):
    raise InputError(
      f"{name} {model_dir}: checkpoints cannot be written to s3://; set a local path or gs://"
    )
  path = storage.path(model_dir)
  with _explained(model_dir), contextlib.ExitStack() as stack:
    check = _keep_claim
    try:
      if jax.process_index() == 0:
        if isinstance(path, pathlib.Path):
          for folder in [x for x in (*reversed(path.parents), path) if not x.exists()]:
            stack.callback(work_folders.remove_if_empty, os.fspath(folder))
          path.mkdir(parents=True, exist_ok=True)
          if claim:
            stack.enter_context(work_folders.owned(path, is_folder=True))
        elif claim:
          check = _store_run_id(path)
        else:
          storage.check_writable(model_dir)
    except OSError as error:
      raise InputError(f"{name} {model_dir} cannot be written to: {error.strerror}") from error
    yield check


def _keep_claim() -> None:
  """Accepts the claim: a lock, or the check of another process, keeps other runs out."""


def _store_run_id(model_dir: storage.Path) -> Callable[[], None]:
  """Writes a new run id to a folder of a store; returns a function that compares it."""
  run_id, url = uuid.uuid4().bytes, os.fspath(model_dir / RUN_ID)
  storage.write(url, run_id)

  def check() -> None:
    if not storage.is_file(model_dir / RUN_ID) or input_files.read_bytes(url) != run_id:
      raise InputError(
        f"{model_dir} now belongs to another run, which started later; set another MODEL_DIR"
      )

  return check


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
  tf = sys.modules.get("tensorflow")  # if it reads the data
  while error is not None:
    if fault := disk_fault(error):
      where = os.fspath(getattr(error, "filename", None) or model_dir)
      return f"{where} cannot be written: {fault}. {_RERUN}"
    if tf is not None and isinstance(error, tf.errors.OpError):
      line = re.sub(r"\{\{.*?\}\}", "", error.message).strip().splitlines()[0]  # names of nodes
      line = re.sub(r" \[Op:.*", "", line).strip().rstrip(".")
      with contextlib.suppress(OSError):  # TensorFlow does not always report a full disk
        if shutil.disk_usage(model_dir).free < 1 << 16:
          line = f"{line} ({os.strerror(errno.ENOSPC)})"
      return f"TensorFlow failed: {line}. {_RERUN}"
    error = error.__cause__
  return None
