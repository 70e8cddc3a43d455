import json
import os
import subprocess
import sys
import time

import memory_store
import pytest

from vmsst import errors
from vmsst.files import storage, store_locks

FOLDER = "gs://bucket/run"


@pytest.fixture(autouse=True)
def store(monkeypatch):
  monkeypatch.setattr(store_locks, "RENEW_SECONDS", 0.02)
  monkeypatch.setattr(store_locks, "STALE_SECONDS", 0.3)
  return memory_store.installed(monkeypatch)


def leave(number=1, **fields):
  """Writes the lock of another process."""
  record = {"owner": "process 7 on elsewhere", "renewals": 0, **fields}
  storage.create(f"{FOLDER}/.lock-{number:06d}", json.dumps(record).encode())


def locks():
  return sorted(storage.names(FOLDER))


def test_a_lock_keeps_others_out_while_its_owner_renews_it(monkeypatch):
  monkeypatch.setattr(store_locks, "STALE_SECONDS", 600)
  with store_locks.acquired(FOLDER) as lock:
    assert locks() == [".lock-000001"]
    messages = []
    with (
      pytest.raises(store_locks.InUseError, match=rf"process {os.getpid()} on "),
      store_locks.acquired(FOLDER, messages.append),
    ):
      pass
    assert len(messages) == 1
    lock.check()
  assert locks() == []
  with store_locks.acquired(FOLDER):
    assert locks() == [".lock-000001"]


def test_a_silent_lock_is_taken_over_after_a_while():
  leave(4)
  began = time.monotonic()
  with store_locks.acquired(FOLDER) as lock:
    assert time.monotonic() - began >= store_locks.STALE_SECONDS
    assert locks() == [".lock-000005"]
    lock.check()
  assert locks() == []


def test_a_lock_of_an_ended_process_of_this_machine_is_taken_over_at_once(monkeypatch):
  monkeypatch.setattr(store_locks, "STALE_SECONDS", 600)
  ended = subprocess.Popen([sys.executable, "-c", "pass"])
  ended.wait()
  leave(machine=store_locks._machine(), process=ended.pid, started="1")
  with store_locks.acquired(FOLDER):
    assert locks() == [".lock-000002"]


def test_another_machine_s_process_of_the_same_number_may_be_alive():
  leave(machine="another boot", process=os.getpid(), started="1")
  assert not store_locks._has_ended({"machine": "another boot", "process": 1, "started": "1"})
  with store_locks.acquired(FOLDER):  # after STALE_SECONDS
    pass


def test_an_owner_that_was_silent_learns_that_it_has_lost(monkeypatch):
  monkeypatch.setattr(store_locks, "RENEW_SECONDS", 60)
  with store_locks.acquired(FOLDER) as paused:
    monkeypatch.setattr(store_locks, "RENEW_SECONDS", 0.02)
    with store_locks.acquired(FOLDER) as winner:
      winner.check()
      with pytest.raises(errors.InputError, match=r"now belongs to another run \(process"):
        paused.check()
      paused.close()
      winner.check()  # the loser removed only its own lock


def test_a_removed_lock_is_noticed(store):
  with store_locks.acquired(FOLDER) as lock:
    storage.remove(f"{FOLDER}/.lock-000001")
    with pytest.raises(errors.InputError, match="was deleted; this run stops"):
      lock.check()


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff"])
def test_a_broken_lock_becomes_stale(content):
  storage.create(f"{FOLDER}/.lock-000001", content)
  with store_locks.acquired(FOLDER):
    assert locks() == [".lock-000002"]


def test_of_processes_that_start_together_at_most_one_gets_the_lock(monkeypatch):
  """The second lists no lock, then the first creates one and a third removes the stale one."""
  numbers = store_locks._numbers
  calls = []

  def listed(folder):
    calls.append(1)
    if len(calls) == 1:
      found = numbers(folder)
      leave(2)  # by a process that saw a stale `.lock-000001`, removed since
      return found
    return numbers(folder)

  monkeypatch.setattr(store_locks, "_numbers", listed)
  with (
    pytest.raises(store_locks.InUseError, match="process 7 on elsewhere"),
    store_locks.acquired(FOLDER),
  ):
    pass
  assert locks() == [".lock-000002"]
