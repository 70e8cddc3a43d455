import errno
import itertools
import os
import resource
import signal
import subprocess
import sys
import time

import pytest

from vmsst import errors
from vmsst.files import atomic_files


@pytest.fixture
def full_disk():
  """Makes writes beyond 100,000 bytes of a file fail as on a full disk."""
  soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
  resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
  yield
  resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def names(folder):
  return sorted(path.name for path in folder.rglob("*"))


def test_the_new_content_is_there_or_the_old(tmp_path):
  path = tmp_path / "new" / "x.json"
  atomic_files.write_json(path, {"ä": 1})
  assert path.read_text(encoding="utf-8") == '{\n "ä": 1\n}'

  def fail():
    with atomic_files.atomic_text(path) as stream:
      stream.write("half")
      raise ZeroDivisionError

  with pytest.raises(ZeroDivisionError):
    fail()
  assert path.read_text(encoding="utf-8").startswith('{\n "ä"')
  with atomic_files.atomic_text(str(path)) as stream:
    stream.writelines(["a\n", "b\n"])
  assert path.read_bytes() == b"a\nb\n"
  assert path.stat().st_mode & 0o777 == 0o666 & ~os.umask(os.umask(0o022))
  assert names(tmp_path) == ["new", "x.json"]


@pytest.mark.parametrize("shared", [False, True])
def test_a_full_disk_is_named_and_leaves_what_was_there(tmp_path, full_disk, shared):
  path = tmp_path / "x"
  path.write_bytes(b"old")

  def fill():
    with atomic_files.atomic_file(path, shared=shared) as stream:
      stream.write(b"a" * 200_000)

  def fill_folder():
    with atomic_files.atomic_folder(tmp_path / "folder") as folder:
      (folder / "good").write_bytes(b"a")
      (folder / "bad").write_bytes(b"a" * 200_000)

  with pytest.raises(OSError, match=r"\[Errno \d+\] .*/x'$") as caught:
    fill()
  assert caught.value.errno == errno.EFBIG
  assert path.read_bytes() == b"old"
  with pytest.raises(errors.InputError, match=r"folder cannot be written: .*File too large"):
    fill_folder()
  assert names(tmp_path) == ["x"]


def test_places_that_cannot_be_written_are_named_as_they_were_given(tmp_path):
  (tmp_path / "file").write_bytes(b"")
  (tmp_path / "folder").mkdir()
  for path in (tmp_path / "file" / "x", tmp_path / "folder"):
    with pytest.raises(OSError, match=rf"(file|{path.name})'") as caught:
      atomic_files.write_bytes(path, b"a")
    assert ".part'" not in str(caught.value)
  assert names(tmp_path) == ["file", "folder"]


def test_a_pipe_stays_one(tmp_path):
  path = tmp_path / "pipe"
  os.mkfifo(path)
  reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
  atomic_files.write_bytes(path, b"through")
  assert os.read(reader, 99) == b"through"
  os.close(reader)
  assert path.is_fifo()


DIE = """
import os, signal, sys
from vmsst.files import atomic_files
with atomic_files.atomic_file(sys.argv[1], shared=sys.argv[2] == "True") as stream:
  stream.write(b"half" * 10_000)
  stream.flush()
  os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_a_killed_process_leaves_is_overwritten_or_removed(tmp_path):
  path = tmp_path / "deep" / "x"
  atomic_files.write_bytes(path, b"old")
  for shared in (False, True, True):
    done = subprocess.run([sys.executable, "-c", DIE, path, str(shared)], check=False)
    assert done.returncode == -signal.SIGKILL
  assert path.read_bytes() == b"old"
  assert len(names(path.parent)) == 4
  atomic_files.write_bytes(path, b"new")
  assert len(names(path.parent)) == 3
  (path.parent / "y.parts").touch()
  atomic_files.remove_partial(tmp_path)
  assert names(path.parent) == ["x", "y.parts"]
  assert path.read_bytes() == b"new"


def test_a_folder_that_another_thread_still_writes_into_is_removed(tmp_path, monkeypatch):
  folder = tmp_path / "out"
  numbers = iter(range(4))

  def write_late(_):
    for number in itertools.islice(numbers, 1):
      (folder / "arrays").mkdir(parents=True)
      (folder / "arrays" / str(number)).write_bytes(b"late")

  write_late(0)
  monkeypatch.setattr(time, "sleep", write_late)  # Another thread would write meanwhile.
  atomic_files.remove_folder(folder)
  assert list(numbers) == list(tmp_path.iterdir()) == []
