import errno
import itertools
import os
import resource
import subprocess
import sys
import time

import pytest

from vmsst import errors
from vmsst.files import atomic_files, input_files, work_folders


@pytest.fixture
def full_disk():
  """Makes writes beyond 100,000 bytes of a file fail as on a full disk."""
  soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
  resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
  yield
  resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def names(folder):
  return sorted(path.name for path in folder.rglob("*"))


def test_names_of_files_that_are_not_utf_8_are_written_and_read(tmp_path):
  name = os.fsdecode(b"caf\xe9 \xc3\xa9")
  atomic_files.write_json(tmp_path / "names.json", {name: name})
  assert input_files.read_json(tmp_path / "names.json") == {name: name}
  atomic_files.write_text(tmp_path / "names.txt", name)
  assert (tmp_path / "names.txt").read_bytes() == b"caf\xe9 \xc3\xa9"


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
  path.chmod(0o600)
  atomic_files.write_bytes(path, b"new")
  assert path.stat().st_mode & 0o777 == 0o600
  assert names(tmp_path) == ["new", "x.json"]


def test_a_full_disk_is_named_and_leaves_what_was_there(tmp_path, full_disk):
  path = tmp_path / "x"
  path.write_bytes(b"old")

  def fill():
    with atomic_files.atomic_file(path) as stream:
      stream.write(b"a" * 200_000)

  def fill_folder():
    with work_folders.atomic_folder(tmp_path / "folder") as folder:
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
    assert ".vmsst-part" not in str(caught.value)
  assert names(tmp_path) == ["file", "folder"]


DIE = """
import os, signal, sys
from vmsst.files import atomic_files
with atomic_files.atomic_file(sys.argv[1]) as stream:
  stream.write(b"half" * 10_000)
  stream.flush()
  print(flush=True)
  sys.stdin.read()
"""


def test_only_files_of_killed_writers_are_removed(tmp_path):
  path = tmp_path / "x"
  foreign = ["x.part", "x.part-0123456789abcdef0123456789abcdef", ".vmsst-part-", "y.vmsst-part"]
  for name in foreign:
    (tmp_path / name).touch()
  (tmp_path / f".vmsst-part-{'0' * 32}").symlink_to(path)
  foreign.append(f".vmsst-part-{'0' * 32}")
  writers = [
    subprocess.Popen(
      [sys.executable, "-c", DIE, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    for _ in range(2)
  ]
  for writer in writers:
    writer.stdout.readline()
  writers[0].kill()
  writers[0].communicate()
  assert len(names(tmp_path)) == len(foreign) + 2
  atomic_files.remove_stale(tmp_path)
  assert len(names(tmp_path)) == len(foreign) + 1
  writers[1].communicate()
  assert path.read_bytes() == b"half" * 10_000
  assert names(tmp_path) == sorted([*foreign, "x"])


def test_a_folder_that_another_thread_still_writes_into_is_removed(tmp_path, monkeypatch):
  folder = tmp_path / "out"
  numbers = iter(range(4))

  def write_late(_):
    for number in itertools.islice(numbers, 1):
      (folder / "arrays").mkdir(parents=True)
      (folder / "arrays" / str(number)).write_bytes(b"late")

  write_late(0)
  monkeypatch.setattr(time, "sleep", write_late)  # Another thread would write meanwhile.
  work_folders.remove_folder(folder)
  assert list(numbers) == list(tmp_path.iterdir()) == []
