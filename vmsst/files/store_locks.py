"""Locks of folders in object stores, which have no kernel locks.

A lock is an object `.lock-N` with the name of its owner. The store creates it only if it does not
exist. Its owner rewrites it all the time. A process that sees it unchanged for longer than an owner
may be silent, by its own clock, takes over by creating `.lock-N+1`; the store lets only one do so.
An owner whose number is not the highest has lost the lock. No clocks are compared.
"""

import contextlib
import json
import os
import re
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

from absl import logging

from vmsst import errors
from vmsst.files import storage

RENEW_SECONDS = 20.0
"""Time between renewals of a lock."""
STALE_SECONDS = 120.0
"""A lock that does not change for this long has no owner any more."""

_NAME = re.compile(r"\.lock-(\d+)")


class InUseError(Exception):
  """Another process owns the lock; the message names it."""


class StoreLock:
  """A lock that this process owns, until it is closed or another process takes over."""

  def __init__(self, folder: str, number: int, record: dict[str, Any]):
    """Renews the lock `number`, which `acquire` has created, in a thread."""
    self._folder = folder
    self._number = number
    self._record = record
    self._ended = threading.Event()
    self._thread = threading.Thread(target=self._renew, daemon=True, name="store lock")
    self._thread.start()

  def check(self) -> None:
    """Raises InputError if another process has taken over, because this one was silent too long."""
    newest = max(_numbers(self._folder), default=0)
    if newest > self._number:
      owner = (_read(_url(self._folder, newest)) or {}).get("owner", "another run")
      raise errors.InputError(
        f"{self._folder} now belongs to another run ({owner}), because this run did not renew its "
        f"lock for {STALE_SECONDS:.0f} s; this run stops"
      )
    if newest < self._number:
      raise errors.InputError(
        f"{_url(self._folder, self._number)}, the lock of this run, was deleted; this run stops"
      )

  def close(self) -> None:
    """Gives up the lock."""
    self._ended.set()
    self._thread.join()
    with contextlib.suppress(Exception):  # then it becomes stale
      _remove(_url(self._folder, self._number))

  def _renew(self) -> None:
    while not self._ended.wait(RENEW_SECONDS):
      self._record["renewals"] += 1
      try:
        if max(_numbers(self._folder), default=0) != self._number:
          return  # `check` raises
        _write(_url(self._folder, self._number), self._record)
      except Exception as error:  # the next attempt may succeed
        logging.warning("Cannot renew the lock of %s: %s", self._folder, storage.reason(error))


@contextlib.contextmanager
def acquired(folder: str, wait: Callable[[str], None] = logging.info) -> Iterator[StoreLock]:
  """Yields the lock of a folder in an object store.

  If another process owns it, waits up to STALE_SECONDS for a renewal, which shows that the owner is
  alive. A lock of a process of this machine that has ended is taken over at once.

  Args:
    folder: URL of the folder.
    wait: Shows a message before waiting.

  Raises:
    InUseError: another process owns it.
  """
  record = {"id": uuid.uuid4().hex, "renewals": 0, **_this_process()}
  lock = StoreLock(folder, _take(folder, record, wait), record)
  try:
    yield lock
  finally:
    lock.close()


def _take(folder: str, record: dict[str, Any], wait: Callable[[str], None]) -> int:
  """Creates the lock of this process; returns its number."""
  stale = _numbers(folder)
  if stale:
    _wait_for_silence(folder, max(stale), wait)
  number = max(stale, default=0) + 1
  url = _url(folder, number)
  # The client repeats a request whose answer was lost, and finds its own lock.
  if not storage.create(url, json.dumps(record).encode()) and _read(url) != record:
    raise InUseError(_owner(folder, number))
  # Another process may have created one at the same time, after the owner of a stale one removed
  # it: the later of the two sees both.
  others = _numbers(folder) - stale - {number}
  if others:
    _remove(_url(folder, number))
    raise InUseError(_owner(folder, max(others)))
  for old in stale:
    _remove(_url(folder, old))
  return number


def _wait_for_silence(folder: str, number: int, wait: Callable[[str], None]) -> None:
  """Returns when a lock has no owner any more; raises InUseError if it has one."""
  url = _url(folder, number)
  first = _read(url)
  if first is None or _has_ended(first):
    return
  wait(
    f"{folder} is locked by {first.get('owner')}; waiting up to {STALE_SECONDS:.0f} s to see "
    "whether it is still running"
  )
  end = time.monotonic() + STALE_SECONDS
  while time.monotonic() < end:
    time.sleep(min(RENEW_SECONDS / 4, STALE_SECONDS / 4))
    now = _read(url)
    if now is None:
      return
    if now != first:
      raise InUseError(_owner(folder, number))


def _this_process() -> dict[str, Any]:
  """Returns what identifies this process to people and to others on this machine."""
  since = time.strftime("%Y-%m-%d %H:%M")
  return {
    "owner": f"process {os.getpid()} on {socket.gethostname()}, since {since}",
    "machine": _machine(),
    "process": os.getpid(),
    "started": _start_time(os.getpid()),
  }


def _has_ended(record: dict[str, Any]) -> bool:
  """Returns whether the owner is known to have ended: it was a process of this machine."""
  machine = _machine()
  if not machine or record.get("machine") != machine:
    return False
  process = record.get("process")
  return isinstance(process, int) and _start_time(process) != record.get("started")


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


def _numbers(folder: str) -> set[int]:
  found = map(_NAME.fullmatch, storage.names(folder))
  return {int(name[1]) for name in found if name}


def _url(folder: str, number: int) -> str:
  return f"{folder.rstrip('/')}/.lock-{number:06d}"


def _owner(folder: str, number: int) -> str:
  return str((_read(_url(folder, number)) or {}).get("owner", "of unknown name"))


def _read(url: str) -> dict[str, Any] | None:
  """Returns the record of a lock; None if it was removed, {} if it is broken."""
  try:
    record = json.loads(storage.filesystem(url).cat_file(url))
  except FileNotFoundError:
    return None
  except ValueError:
    return {}
  return record if isinstance(record, dict) else {}


def _write(url: str, record: dict[str, Any]) -> None:
  storage.filesystem(url).pipe_file(url, json.dumps(record).encode())


def _remove(url: str) -> None:
  with contextlib.suppress(FileNotFoundError):
    storage.filesystem(url).rm_file(url)
