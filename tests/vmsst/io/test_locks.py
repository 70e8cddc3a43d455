import json
import os
import subprocess
import sys
import time

import line_files
import memory_store
import pytest

from vmsst import errors
from vmsst.io import locks, storage

FOLDER = "gs://bucket/run"
PATH = f"{FOLDER}/.lock"


@pytest.fixture(autouse=True)
def store(monkeypatch):
  monkeypatch.setattr(locks, "RENEW_SECONDS", 0.02)
  monkeypatch.setattr(locks, "STALE_SECONDS", 0.3)
  return memory_store.installed(monkeypatch)


def leave(number=1, **fields):
  """Writes the lock of another process."""
  record = {"owner": "process 7 on elsewhere", "renewals": 0, **fields}
  storage.create(f"{FOLDER}/.lock-{number:06d}", json.dumps(record).encode())


def names():
  return sorted(storage.names(FOLDER))


def test_a_lock_keeps_others_out_while_its_owner_renews_it():
  with locks.held(PATH) as lock:
    assert names() == [".lock-000001"]
    messages = []
    with (
      pytest.raises(locks.InUseError, match=rf"process {os.getpid()} on "),
      locks.held(PATH, messages.append),
    ):
      pass
    assert len(messages) == 1
    lock.check()
  assert names() == []
  with locks.held(PATH) as lock:
    storage.remove(f"{FOLDER}/.lock-000001")
    with pytest.raises(errors.InputError, match="was deleted; this run stops"):
      lock.check()
    time.sleep(0.1)  # for a renewal, which must not create it again
    assert names() == []


@pytest.mark.parametrize("record", [{}, {"machine": "another boot", "process": os.getpid()}])
def test_a_silent_lock_is_taken_over_after_a_while(record):
  leave(4, **record)  # A process of another machine may live, whatever its number.
  began = time.monotonic()
  with locks.held(PATH) as lock:
    assert time.monotonic() - began >= locks.STALE_SECONDS
    assert names() == [".lock-000005"]
    lock.check()
  assert names() == []


def test_processes_of_this_machine_are_known_to_run_or_to_have_ended_at_once(monkeypatch):
  monkeypatch.setattr(locks, "STALE_SECONDS", 600)
  other = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
  started = locks._start_time(other.pid)
  leave(machine=locks._machine(), process=other.pid, started=started)
  with pytest.raises(locks.InUseError, match="process 7 on elsewhere"), locks.held(PATH):
    pass
  other.communicate(b"\n")
  with locks.held(PATH):
    assert names() == [".lock-000002"]


def test_an_owner_that_was_silent_learns_that_it_has_lost(monkeypatch):
  monkeypatch.setattr(locks, "RENEW_SECONDS", 60)
  with locks.held(PATH) as paused:
    monkeypatch.setattr(locks, "RENEW_SECONDS", 0.02)
    with locks.held(PATH) as winner:
      winner.check()
      with pytest.raises(errors.InputError, match=r"now belongs to another run \(process"):
        paused.check()
      paused.close()
      winner.check()  # the loser removed only its own lock


def test_a_lock_whose_response_was_lost_is_owned(monkeypatch):
  create = storage.create

  def created_but_lost(url, content):
    assert create(url, content)
    return create(url, content)  # the client tries again

  monkeypatch.setattr(storage, "create", created_but_lost)
  with locks.held(PATH) as lock:
    lock.check()
  assert names() == []


def test_a_local_lock_keeps_others_out_and_leaves_nothing(tmp_path):
  path = str(tmp_path / "lock")
  with (
    locks.held(path),
    pytest.raises(locks.InUseError, match=rf"process {os.getpid()} on "),
    locks.held(path),
  ):
    pass
  assert list(tmp_path.iterdir()) == []
  (tmp_path / "lock").symlink_to(tmp_path / "foreign")
  with pytest.raises(OSError, match="symbolic"), locks.held(path):
    pass
  assert not (tmp_path / "foreign").exists()
  full = locks.held(str(tmp_path / "full"))
  with line_files.largest_file(0), pytest.raises(OSError, match="File too large"), full:
    pass
  assert not (tmp_path / "full").exists()


@pytest.mark.parametrize("content", [b"", b"[]", b"\xff"])
def test_a_broken_lock_becomes_stale(content):
  storage.create(f"{FOLDER}/.lock-000001", content)
  with locks.held(PATH):
    assert names() == [".lock-000002"]


def test_of_processes_that_start_together_at_most_one_gets_the_lock(monkeypatch):
  """The second lists no lock, then the first creates one and a third removes the stale one."""
  numbers = locks._numbers
  calls = []

  def listed(path):
    calls.append(1)
    if len(calls) == 1:
      found = numbers(path)
      leave(2)  # by a process that saw a stale `.lock-000001`, removed since
      return found
    return numbers(path)

  monkeypatch.setattr(locks, "_numbers", listed)
  with pytest.raises(locks.InUseError, match="process 7 on elsewhere"), locks.held(PATH):
    pass
  assert names() == [".lock-000002"]
