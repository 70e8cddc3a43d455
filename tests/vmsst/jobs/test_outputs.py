"""Outputs are atomic, have one writer and never overwrite an input or a foreign file."""

import errno
import os
import pathlib
from concurrent import futures

import line_files
import memory_store
import pytest

from vmsst import errors, storage
from vmsst.io import input_files
from vmsst.jobs import outputs


def names_below(folder):
  return sorted(path.name for path in folder.rglob("*"))


def test_a_file_has_its_old_or_its_new_content(tmp_path):
  path = tmp_path / "new" / "x.json"
  outputs.write_json(path, {"ä": 1})
  assert path.read_text(encoding="utf-8") == '{\n "ä": 1\n}'
  with pytest.raises(ZeroDivisionError), outputs.atomic_path(path) as partial:  # noqa: PT012
    partial.write_text("half")
    raise ZeroDivisionError
  assert path.read_text(encoding="utf-8").startswith('{\n "ä"')
  with outputs.atomic_path(str(path)) as partial:
    partial.write_text("a")
  assert path.read_bytes() == b"a"
  assert path.stat().st_mode & 0o777 == 0o666 & ~os.umask(os.umask(0o022))
  path.chmod(0o600)
  outputs.write_bytes(path, b"new")
  assert path.stat().st_mode & 0o777 == 0o600
  assert names_below(tmp_path) == ["new", "x.json"]


def test_a_full_disk_or_an_unusable_path_leaves_the_old_file(tmp_path):
  path = tmp_path / "x"
  path.write_bytes(b"old")
  with (
    line_files.largest_file(100_000),
    pytest.raises(OSError, match=rf"^\[Errno {errno.EFBIG}\] File too large$"),
  ):
    outputs.write_bytes(path, b"a" * 200_000)
  assert path.read_bytes() == b"old"
  with (
    line_files.largest_file(100_000),
    pytest.raises(errors.InputError, match=r"folder cannot be written: .*File too large"),
    outputs.atomic_folder(tmp_path / "folder") as folder,
  ):
    (folder / "bad").write_bytes(b"a" * 200_000)
  (tmp_path / "y").mkdir()
  for target, name in ((path / "z", "x"), (tmp_path / "y", "y")):
    with pytest.raises(OSError, match=rf"/{name}'$"):
      outputs.write_bytes(target, b"a")
  assert names_below(tmp_path) == ["x", "y"]


@pytest.fixture
def working(tmp_path, monkeypatch):
  """Returns the working folder, with the folder of an encoder and a text with two links."""
  monkeypatch.chdir(tmp_path)
  (tmp_path / "run").mkdir()
  (tmp_path / "run" / "weights").write_text("w")
  (tmp_path / "a.txt").write_text("a\n")
  os.link("a.txt", "hard.txt")
  os.symlink("a.txt", "soft.txt")
  return tmp_path


def test_an_output_that_is_an_input_is_refused(working):
  inputs = ["-", "a.txt", str(working / "run"), "gs://bucket/run"]
  for output in ("a.txt", "./run/../a.txt", "hard.txt", "soft.txt", "run/weights"):
    with pytest.raises(errors.InputError, match="would overwrite the input"):
      outputs.check(inputs, file=output)
  for output in ("new", "new/deep/file", "run/new", "-", "/dev/null"):
    outputs.check(["a.txt", "run", "-"], file=output)
    assert not (working / "new").exists()


@pytest.mark.parametrize("url", ["", "gs://bucket/"])
def test_files_next_to_a_checkpoint_and_in_a_folder_of_a_store_are_inputs(
  working, monkeypatch, url
):
  store = memory_store.installed(monkeypatch)
  (working / "run" / "checkpoint_5").mkdir()
  store.pipe_file("gs://bucket/run/weights", b"w")
  for path in ("run", "run/checkpoint_5", "run/checkpoint_5/"):
    with pytest.raises(errors.InputError, match="would overwrite the input"):
      outputs.check([url + path], file=f"{url}run/weights")
    outputs.check([url + path], file=f"{url}run/new")
  outputs.check([f"{url}run/checkpoint_5"], folder=f"{url}run")


@pytest.mark.parametrize(
  ("inputs", "output", "message"),
  [
    ([], {"file": "run"}, "run is a folder; give a file"),
    (["gs://bucket/run"], {"file": "gs://bucket/run"}, "gs://bucket/run would overwrite the input"),
    ([], {"folder": "a.txt"}, "a.txt is not a folder"),
    (["run"], {"folder": "run"}, "would overwrite the input"),
    (["-", "-"], {}, "standard input"),
  ],
)
def test_paths_that_cannot_be_written_are_refused(working, inputs, output, message):
  with pytest.raises(errors.InputError, match=message):
    outputs.check(inputs, **output)


def test_only_regular_files_are_replaced(working):
  def write(path):
    outputs.write_text(path, "one\ntwo\n")

  write("a.txt")
  assert pathlib.Path("hard.txt").read_text() == "a\n"  # The hard link still has the old content.
  write("soft.txt")
  assert os.readlink("soft.txt") == "a.txt"
  os.mkfifo("pipe")
  reading = os.open("pipe", os.O_RDONLY | os.O_NONBLOCK)
  write("pipe")
  assert os.read(reading, 100) == b"one\ntwo\n"
  assert pathlib.Path("pipe").is_fifo()
  with open("standard output", "wb") as stream:  # as with a redirection in a shell
    write(f"/dev/fd/{stream.fileno()}")
    assert os.fstat(stream.fileno()).st_ino == os.stat("standard output").st_ino
  assert pathlib.Path("standard output").read_text() == "one\ntwo\n"
  assert not [path.name for path in working.iterdir() if "vmsst" in path.name]


def refused(output, *, is_folder=False):
  """Asserts that another thread cannot own an output."""

  def own():
    with outputs.ownership(output, is_folder=is_folder):
      pass

  message = "out is being written by another command"
  with futures.ThreadPoolExecutor(1) as pool, pytest.raises(errors.InputError, match=message):
    pool.submit(own).result()


@pytest.mark.parametrize("is_folder", [False, True])
def test_an_output_has_one_writer(tmp_path, is_folder):
  output = f"{tmp_path}/out"
  (tmp_path / "link to out").symlink_to("out")
  with outputs.ownership(output, is_folder=is_folder):
    refused(output, is_folder=is_folder)
    refused(tmp_path / "link to out", is_folder=is_folder)
    with outputs.ownership(output, is_folder=is_folder):  # again in the same thread
      pass
    refused(output, is_folder=is_folder)
  with outputs.ownership(output, is_folder=is_folder), outputs.ownership(f"{output}/below"):
    pass
  assert not storage.names(output)
  assert ".out.vmsst" not in storage.names(tmp_path)
  with outputs.ownership("/dev/null"), outputs.ownership("/dev/null"):
    pass


FILES = ["d/state/x", "d/SHA256SUMS", "model", "a.json", "b.json"]


def test_a_folder_of_a_store_is_written_with_its_json_files_last(monkeypatch):
  store, url, written = memory_store.installed(monkeypatch), "gs://bucket/x", []
  put, limit = memory_store.MemoryStore.put_file, [3]

  def put_some(self, local, remote, **options):
    if len(written) == limit[0]:
      raise TimeoutError("no answer")
    written.append(remote.removeprefix(f"{url}/"))
    put(self, local, remote, **options)

  def write_folder():
    with outputs.atomic_folder(storage.path(url)) as folder:
      for name in FILES:
        outputs.write_text(folder / name, name)
    assert not folder.exists()

  monkeypatch.setattr(memory_store.MemoryStore, "put_file", put_some)
  with pytest.raises(errors.InputError, match=f"{url}/.* cannot be written: .*: no answer"):
    write_folder()
  assert not store.find("bucket")  # An error leaves nothing.
  written.clear()
  limit[0] = None
  write_folder()
  assert written == FILES
  assert input_files.read_bytes(f"{url}/d/state/x") == b"d/state/x"
  with pytest.raises(errors.InputError, match=f"{url} exists already"):
    write_folder()
