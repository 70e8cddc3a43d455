"""Tests that no output destroys an input, and that failed work leaves no folders."""

import os
import pathlib

import memory_store
import pytest

from vmsst import errors
from vmsst.files import atomic_files, outputs


@pytest.fixture
def place(tmp_path, monkeypatch):
  """Returns the working folder, with an encoder's folder and two texts."""
  monkeypatch.chdir(tmp_path)
  (tmp_path / "run").mkdir()
  (tmp_path / "run" / "weights").write_text("w")
  (tmp_path / "a.txt").write_text("a\n")
  (tmp_path / "out.part").write_text("b\n")
  os.link("a.txt", "hard.txt")
  os.symlink("a.txt", "soft.txt")
  return tmp_path


@pytest.mark.parametrize(
  "output", ["a.txt", "./run/../a.txt", "hard.txt", "soft.txt", "run/weights"]
)
def test_an_output_that_is_an_input_is_refused(place, output):
  inputs = ["-", "a.txt", str(place / "run"), "gs://bucket/run"]
  with pytest.raises(errors.InputError, match="would overwrite the input"):
    outputs.check(inputs, file=output)


def test_a_file_in_a_store_must_be_writable(monkeypatch):
  store = memory_store.installed(monkeypatch)
  outputs.check(["gs://bucket/a.txt"], file="gs://bucket/new/file")
  assert store.find("") == []
  for folder in ("gs://bucket", "gs://bucket/new/"):
    with pytest.raises(errors.InputError, match=f"{folder} is a folder; give a file as output"):
      outputs.check([], file=folder)

  def refuse(*args, **options):
    raise PermissionError("read-only")

  monkeypatch.setattr(memory_store.MemoryStore, "put_file", refuse)
  with pytest.raises(
    errors.InputError, match=r"gs://bucket/new/\.write.* cannot be written: .*only"
  ):
    outputs.check([], file="gs://bucket/new/file")


@pytest.mark.parametrize("output", ["new", "new/deep/file", "run/new", "-", "/dev/null"])
def test_other_outputs_are_accepted(place, output):
  outputs.check(["a.txt", "run", "-"], file=output)
  assert not (place / "new").exists()


@pytest.mark.parametrize(
  ("inputs", "output", "message"),
  [
    ([], {"file": ""}, "is empty"),
    ([], {"file": "run"}, "run is a folder; give a file"),
    ([], {"file": "a.txt/x/y"}, "a.txt is not a folder"),
    (["gs://bucket/run"], {"file": "gs://bucket/run"}, "gs://bucket/run is also an input"),
    ([], {"folder": ""}, "is empty"),
    ([], {"folder": "a.txt"}, "a.txt is not a folder"),
    ([], {"folder": "a.txt/x"}, "a.txt is not a folder"),
    (["run"], {"folder": "run"}, "is also an input"),
    (["run[1]"], {"folder": "run[1]"}, "is also an input"),  # no pattern, as it exists
    (["run", "gs://bucket/run/"], {"folder": "gs://bucket/run"}, "gs://bucket/run is also an"),
    (["-", "-"], {}, "standard input"),
  ],
)
def test_paths_that_cannot_be_written_are_refused(place, inputs, output, message):
  (place / "run[1]").mkdir()
  with pytest.raises(errors.InputError, match=message):
    outputs.check(inputs, **output)
  outputs.check(["gs://bucket/run"], folder="gs://bucket/run/new")


def test_folders_are_checked_for_permission_and_for_what_is_in_the_way(place, monkeypatch):
  (place / "run" / "report.md").mkdir()
  with pytest.raises(errors.InputError, match=r"run/report\.md is a folder, not a file; delete it"):
    outputs.check([], folder="run", files=["report.json", "report.md"])
  outputs.check([], folder="run", files=["report.json"])
  monkeypatch.setattr(os, "access", lambda path, mode: False)  # as if not run by root
  for folder, protected in (("run", "run"), ("run/new/deep", str(place / "run"))):
    with pytest.raises(errors.InputError, match=f"because {protected} is write-protected"):
      outputs.check([], folder=folder)


def fail(output, folders, error, content=""):
  with outputs.no_empty_folders(output):
    for folder in folders:
      folder.mkdir(parents=True)
    if content:
      (folders[0] / "file").write_text(content)
    raise error


def test_failed_work_leaves_no_empty_folders(place):
  (place / "old" / "empty").mkdir(parents=True)
  for output in ("new/deep/file", "old/more/file", "old"):
    with pytest.raises(KeyboardInterrupt):
      fail(output, [place / output / "inner"], KeyboardInterrupt())
    assert not (place / "new").exists()
    assert [path.name for path in (place / "old").rglob("*")] == ["empty"]
  folder = place / "new" / "deep"
  with pytest.raises(OSError, match="disk"):
    fail("new/deep", [folder / "state", folder / "empty"], OSError("disk"), "resumable")
  assert sorted(path.name for path in (place / "new").rglob("*")) == ["deep", "file", "state"]


def test_only_regular_files_are_replaced(place):
  def write(path):
    atomic_files.write_text(path, "one\ntwo\n")

  write("a.txt")
  assert pathlib.Path("hard.txt").read_text() == "a\n"  # a new file, not the old one changed
  write("soft.txt")
  assert os.readlink("soft.txt") == "a.txt"
  os.symlink("missing/file", "dangling")
  write("dangling")
  assert pathlib.Path("missing/file").read_text() == "one\ntwo\n"
  os.symlink("/dev/null", "link to a device")
  write("link to a device")
  assert not pathlib.Path("/dev/null").is_file()
  os.mkfifo("pipe")
  reading = os.open("pipe", os.O_RDONLY | os.O_NONBLOCK)
  write("pipe")
  assert os.read(reading, 100) == b"one\ntwo\n"
  assert pathlib.Path("pipe").is_fifo()
  with open("standard output", "wb") as stream:  # as of a shell's redirection
    write(f"/dev/fd/{stream.fileno()}")
    assert os.fstat(stream.fileno()).st_ino == os.stat("standard output").st_ino
  assert pathlib.Path("standard output").read_text() == "one\ntwo\n"
  assert not [path.name for path in place.iterdir() if "vmsst" in path.name]
