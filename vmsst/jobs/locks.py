"""Locks of local outputs: one process at a time writes a file, a folder or a run.

A lock is a kernel lock (flock) of a file, so it ends with its process, even if the process is
killed. Object stores have no locks: one writer per output is up to the user.
"""

import contextlib
import errno
import fcntl
import logging
import os
import socket
import time
from collections.abc import Iterator

from vmsst import errors

_log = logging.getLogger(__name__)
_NO_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL}


class InUseError(errors.InputError):
  """Another process owns the lock; the message names it."""


@contextlib.contextmanager
def held(path: str) -> Iterator[None]:
  """Locks a local file, and removes it at the end; file systems without locks are not locked.

  Raises:
    InUseError: another process owns the lock.
    OSError: the file cannot be created.
  """
  descriptor = _locked_file(path)
  try:
    yield
  finally:
    try:
      with contextlib.suppress(OSError):
        os.unlink(path)
    finally:
      os.close(descriptor)


def lock_file(descriptor: int) -> bool:
  """Locks an open file or folder until it is closed; returns False if another process has.

  Raises:
    OSError: the file system has no locks, or the file cannot be locked.
  """
  try:
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
  except BlockingIOError:
    return False
  return True


def is_at(path: str | os.PathLike[str], descriptor: int) -> bool:
  """Returns whether an open file or folder still has this path; links are not followed."""
  try:
    return os.path.samestat(os.lstat(path), os.fstat(descriptor))
  except FileNotFoundError:
    return False


def _locked_file(path: str) -> int:
  """Creates a file with the name of its owner, and locks it; returns its descriptor."""
  while True:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
    try:
      try:
        if not lock_file(descriptor):
          owner = os.pread(descriptor, 200, 0).decode(errors="replace")
          raise InUseError(owner or "another process")
      except OSError as error:
        if error.errno not in _NO_LOCKS:
          raise
        _log.warning("Cannot lock %s; do not write the same output with another command.", path)
      if is_at(path, descriptor):  # or its owner has removed it before it was locked here
        if os.fstat(descriptor).st_size:  # of an owner that was killed
          os.ftruncate(descriptor, 0)
        try:
          since = time.strftime("%Y-%m-%d %H:%M")
          owner = f"process {os.getpid()} on {socket.gethostname()}, since {since}"
          os.write(descriptor, owner.encode())
        except OSError:  # The disk is full.
          os.unlink(path)
          raise
        return descriptor
    except BaseException:
      os.close(descriptor)
      raise
    os.close(descriptor)
