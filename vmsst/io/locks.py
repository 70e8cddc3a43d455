"""Locks of outputs: one process at a time writes a file, a folder or a run.

On a local disk a lock is a kernel lock (flock) of a file, which ends with its process, even if that
is killed. Object stores have none: there a lock is an object `NAME-N` with the name of its owner,
which the store creates only if it does not exist. Its owner rewrites it all the time. A process
that sees it unchanged for longer than an owner may be silent, by its own clock, takes over by
creating `NAME-N+1`; the store lets only one do so. An owner whose number is not the highest has
lost the lock. No clocks are compared.
"""

import contextlib
import errno
import fcntl
import json
import logging
import os
import re
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

from vmsst import errors
from vmsst.io import interrupts, storage

RENEW_SECONDS = 20.0
"""Time between renewals of a lock in an object store."""
STALE_SECONDS = 120.0
"""A lock in an object store that does not change for this long has no owner any more."""

_NO_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL}


class InUseError(errors.InputError):
  """Another process owns the lock; the message names it."""


class Lock:
  """A lock that this process owns."""

  def check(self) -> None:
    """Raises InputError if another process has taken over, because this one was silent too long."""


@contextlib.contextmanager
def held(path: str, wait: Callable[[str], None] = logging.warning) -> Iterator[Lock]:
  """Yields the lock with a path, and removes it at the end.

  If another machine owns a lock in an object store, waits up to STALE_SECONDS for a renewal, which
  shows that the owner is alive; of processes of this machine that is known at once. File systems
  without locks are not locked.

  Args:
    path: A local file, or the start of a name in an object store.
    wait: Shows a message before waiting.

  Raises:
    InUseError: another process owns it.
    OSError: the file cannot be created.
    InputError: the object store refuses it.
  """
  if storage.is_url(path):
    with contextlib.closing(_StoreLock.acquired(path, wait)) as lock:
      yield lock
    return
  descriptor = _locked_file(path)
  try:
    yield Lock()
  finally:
    with contextlib.suppress(OSError):
      os.unlink(path)
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
          raise InUseError(_file_owner(descriptor))
      except OSError as error:
        if error.errno not in _NO_LOCKS:
          raise
        logging.warning("Cannot lock %s; do not write the same output with another command.", path)
      if is_at(path, descriptor):  # or its owner has removed it before it was locked here
        if os.fstat(descriptor).st_size:  # of an owner that was killed
          os.ftruncate(descriptor, 0)
        try:
          os.write(descriptor, _this_process()["owner"].encode())
        except OSError:  # The disk is full.
          os.unlink(path)
          raise
        return descriptor
    except BaseException:
      os.close(descriptor)
      raise
    os.close(descriptor)


def _file_owner(descriptor: int) -> str:
  """Returns the owner of a locked file, who writes its name at once."""
  for _ in range(20):
    if owner := os.pread(descriptor, 200, 0).decode(errors="replace").strip():
      return owner
    time.sleep(0.05)
  return "another process"


class _StoreLock(Lock):
  """A lock in an object store, until it is closed or another process takes over."""

  def __init__(self, path: str, number: int, record: dict[str, Any]):
    """Renews the lock `number`, which `acquired` has created, in a thread."""
    self._path = path
    self._number = number
    self._record = record
    self._ended = threading.Event()
    self._thread = threading.Thread(target=self._renew, daemon=True, name="store lock")
    self._thread.start()

  @classmethod
  def acquired(cls, path: str, wait: Callable[[str], None]) -> "_StoreLock":
    """Creates the lock of this process; raises InUseError if another process owns it."""
    record = {"id": uuid.uuid4().hex, "renewals": 0, **_this_process()}
    stale = _numbers(path)
    if stale:
      _wait_for_silence(path, max(stale), wait)
    number = max(stale, default=0) + 1
    content = json.dumps(record).encode()
    if not storage.create(_url(path, number), content):
      holder = _read(_url(path, number))
      if not holder or holder.get("id") != record["id"]:  # else the response was lost
        raise InUseError(_owner(path, number))
    # Another process may have created one at the same time, after the owner of a stale one removed
    # it: the later of the two sees both.
    now = _numbers(path)
    if others := now - stale - {number}:
      _remove(_url(path, number))
      raise InUseError(_owner(path, max(others)))
    for old in stale & now:
      _remove(_url(path, old))
    return cls(path, number, record)

  def check(self) -> None:
    """See `Lock`."""
    newest = max(_numbers(self._path), default=0)
    if newest > self._number:
      raise errors.InputError(
        f"{self._path} now belongs to another run ({_owner(self._path, newest)}), because this run "
        f"did not renew its lock for {STALE_SECONDS:.0f} s; this run stops"
      )
    if newest < self._number:
      raise errors.InputError(
        f"{_url(self._path, self._number)}, the lock of this run, was deleted; this run stops"
      )

  def close(self) -> None:
    """Gives up the lock."""
    self._ended.set()
    self._thread.join()
    with contextlib.suppress(Exception):  # then it becomes stale
      _remove(_url(self._path, self._number))

  def _renew(self) -> None:
    while not self._ended.wait(RENEW_SECONDS):
      self._record["renewals"] += 1
      try:
        if max(_numbers(self._path), default=0) != self._number:
          return  # `check` raises
        url = _url(self._path, self._number)
        storage.filesystem(url).pipe_file(url, json.dumps(self._record).encode())
      except Exception as error:  # the next attempt may succeed
        logging.warning("Cannot renew the lock %s: %s", self._path, storage.reason(error))


def _wait_for_silence(path: str, number: int, wait: Callable[[str], None]) -> None:
  """Returns when a lock has no owner any more; raises InUseError if it has one."""
  url = _url(path, number)
  first = _read(url)
  if first is None or (running := _is_running(first)) is False:
    return
  if running:
    raise InUseError(_owner(path, number))
  wait(
    f"{path} is locked by {first.get('owner')}; waiting up to {STALE_SECONDS:.0f} s to see "
    "whether it is still running"
  )
  end = time.monotonic() + STALE_SECONDS
  while time.monotonic() < end:
    time.sleep(min(RENEW_SECONDS / 4, STALE_SECONDS / 4))
    interrupts.check()
    now = _read(url)
    if now is None:
      return
    if now != first:
      raise InUseError(_owner(path, number))


def _this_process() -> dict[str, Any]:
  """Returns what identifies this process to people and to others on this machine."""
  since = time.strftime("%Y-%m-%d %H:%M")
  return {
    "owner": f"process {os.getpid()} on {socket.gethostname()}, since {since}",
    "machine": _machine(),
    "process": os.getpid(),
    "started": _start_time(os.getpid()),
  }


def _is_running(record: dict[str, Any]) -> bool | None:
  """Returns whether the owner is running; None if it is not another process of this machine."""
  machine, process = _machine(), record.get("process")
  if not machine or record.get("machine") != machine or not isinstance(process, int):
    return None
  # Its own lock may be one that it could not remove.
  return None if process == os.getpid() else _start_time(process) == record.get("started")


def _machine() -> str | None:
  """Returns an id of this boot of this machine and of the processes visible here, if known."""
  try:
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
      return f"{file.read().strip()} {os.readlink('/proc/self/ns/pid')}"
  except OSError:
    return None


def _start_time(process: int) -> str | None:
  """Returns when a process of this machine started, in ticks since boot; None if it has ended."""
  try:
    with open(f"/proc/{process}/stat", encoding="utf-8", errors="replace") as file:
      fields = file.read().rpartition(")")[2].split()
  except OSError:
    return None
  return None if fields[0] in "ZX" else fields[19]


def _numbers(path: str) -> set[int]:
  folder, _, name = path.rpartition("/")
  matches = (re.fullmatch(rf"{re.escape(name)}-(\d+)", entry) for entry in storage.names(folder))
  return {int(match[1]) for match in matches if match}


def _url(path: str, number: int) -> str:
  return f"{path}-{number:06d}"


def _owner(path: str, number: int) -> str:
  return str((_read(_url(path, number)) or {}).get("owner", "another process"))


def _read(url: str) -> dict[str, Any] | None:
  """Returns the record of a lock; None if it was removed, {} if it is broken."""
  try:
    record = json.loads(storage.filesystem(url).cat_file(url))
  except FileNotFoundError:
    return None
  except ValueError:
    return {}
  return record if isinstance(record, dict) else {}


def _remove(url: str) -> None:
  with contextlib.suppress(FileNotFoundError):
    storage.filesystem(url).rm_file(url)
