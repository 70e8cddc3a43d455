"""Outputs: atomic, of one writer, never in place of an input or of a foreign file."""

import errno
import itertools
import os
import pathlib
import subprocess
import sys
import threading
import time
from concurrent import futures

import line_files
import memory_store
import pytest

from vmsst import errors, storage
from vmsst.io import input_files, stored_settings
from vmsst.jobs import atomic_files, outputs, work_folders


def names_below(folder):
  return sorted(path.name for path in folder.rglob("*"))


def test_names_of_files_that_are_not_utf_8_are_written_and_read(tmp_path):
  name = os.fsdecode(b"caf\xe9 \xc3\xa9")
  atomic_files.write_json(tmp_path / "names_below.json", {name: name})
  assert input_files.read_json(tmp_path / "names_below.json") == {name: name}
  atomic_files.write_text(tmp_path / "names_below.txt", name)
  assert (tmp_path / "names_below.txt").read_bytes() == b"caf\xe9 \xc3\xa9"


def test_the_new_content_is_there_or_the_old(tmp_path):
  path = tmp_path / "new" / "x.json"
  atomic_files.write_json(path, {"ä": 1})
  assert path.read_text(encoding="utf-8") == '{\n "ä": 1\n}'
  with pytest.raises(ZeroDivisionError), atomic_files.atomic_text(path) as stream:  # noqa: PT012
    stream.write("half")
    raise ZeroDivisionError
  assert path.read_text(encoding="utf-8").startswith('{\n "ä"')
  with atomic_files.atomic_text(str(path)) as stream:
    stream.writelines(["a\n", "b\n"])
  assert path.read_bytes() == b"a\nb\n"
  assert path.stat().st_mode & 0o777 == 0o666 & ~os.umask(os.umask(0o022))
  path.chmod(0o600)
  atomic_files.write_bytes(path, b"new")
  assert path.stat().st_mode & 0o777 == 0o600
  assert names_below(tmp_path) == ["new", "x.json"]


def test_a_full_disk_or_an_unusable_place_is_named_and_leaves_what_was_there(tmp_path):
  path = tmp_path / "x"
  path.write_bytes(b"old")
  with (
    line_files.largest_file(100_000),
    pytest.raises(OSError, match=r"\[Errno \d+\] .*/x'$") as caught,
    atomic_files.atomic_file(path) as stream,
  ):
    stream.write(b"a" * 200_000)
  assert caught.value.errno == errno.EFBIG
  assert path.read_bytes() == b"old"
  with (  # noqa: PT012
    line_files.largest_file(100_000),
    pytest.raises(errors.InputError, match=r"folder cannot be written: .*File too large"),
    work_folders.atomic_folder(tmp_path / "folder") as folder,
  ):
    (folder / "good").write_bytes(b"a")
    (folder / "bad").write_bytes(b"a" * 200_000)
  (tmp_path / "y").mkdir()
  for place in (path / "z", tmp_path / "y"):
    with pytest.raises(OSError, match=rf"(x|{place.name})'") as caught:
      atomic_files.write_bytes(place, b"a")
    assert ".vmsst-part" not in str(caught.value)
  assert names_below(tmp_path) == ["x", "y"]


DIE = """
import os, signal, sys
from vmsst.jobs import atomic_files
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
  assert len(names_below(tmp_path)) == len(foreign) + 2
  atomic_files.write_text(tmp_path / "z", "")
  assert len(names_below(tmp_path)) == len(foreign) + 2
  writers[1].communicate()
  assert path.read_bytes() == b"half" * 10_000
  assert names_below(tmp_path) == sorted([*foreign, "x", "z"])


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


@pytest.fixture
def working(tmp_path, monkeypatch):
  """Returns the working folder, with an encoder's folder and two texts."""
  monkeypatch.chdir(tmp_path)
  (tmp_path / "run").mkdir()
  (tmp_path / "run" / "weights").write_text("w")
  (tmp_path / "a.txt").write_text("a\n")
  (tmp_path / "out.part").write_text("b\n")
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
  for given in ("run", "run/checkpoint_5", "run/checkpoint_5/"):
    with pytest.raises(errors.InputError, match="would overwrite the input"):
      outputs.check([url + given], file=f"{url}run/weights")
    outputs.check([url + given], file=f"{url}run/new")
  outputs.check([f"{url}run/checkpoint_5"], folder=f"{url}run")


def test_a_file_in_a_store_must_be_writable(monkeypatch):
  store = memory_store.installed(monkeypatch)
  outputs.check(["gs://bucket/a.txt"], file="gs://bucket/new/file")
  assert store.find("") == []
  for folder in ("gs://bucket", "gs://bucket/new/"):
    with pytest.raises(errors.InputError, match=f"{folder} is a folder; give a file as output"):
      outputs.check([], file=folder)

  def refuse(*args, **options):
    raise PermissionError("read-only")

  monkeypatch.setattr(memory_store.MemoryStore, "pipe_file", refuse)
  with pytest.raises(errors.InputError, match=r"bucket/new/\.write.* cannot be written: .*only"):
    outputs.check([], file="gs://bucket/new/file")


@pytest.mark.parametrize(
  ("inputs", "output", "message"),
  [
    ([], {"file": ""}, "is empty"),
    ([], {"file": "run"}, "run is a folder; give a file"),
    ([], {"file": "a.txt/x/y"}, "a.txt is not a folder"),
    (["gs://bucket/run"], {"file": "gs://bucket/run"}, "gs://bucket/run would overwrite the input"),
    ([], {"folder": ""}, "is empty"),
    ([], {"folder": "a.txt/x"}, "a.txt is not a folder"),
    ([], {"folder": "-"}, "- is not a folder"),
    (["run"], {"folder": "run"}, "would overwrite the input"),
    (["run[1]"], {"folder": "run[1]"}, "would overwrite the input"),  # no pattern, as it exists
    (["run", "gs://bucket/run/"], {"folder": "gs://bucket/run"}, "gs://bucket/run would overwrite"),
    (["-", "-"], {}, "standard input"),
  ],
)
def test_paths_that_cannot_be_written_are_refused(working, inputs, output, message):
  (working / "run[1]").mkdir()
  with pytest.raises(errors.InputError, match=message):
    outputs.check(inputs, **output)
  outputs.check(["gs://bucket/run"], folder="gs://bucket/run/new")


def test_folders_are_checked_for_permission_and_for_what_is_in_the_way(working, monkeypatch):
  (working / "run" / "report.md").mkdir()
  with pytest.raises(errors.InputError, match=r"run/report\.md is a folder, not a file; delete it"):
    outputs.check([], folder="run", files=["report.json", "report.md"])
  outputs.check([], folder="run", files=["report.json"])
  monkeypatch.setattr(os, "access", lambda path, mode: False)  # as if not run by root
  for folder, protected in (("run", "run"), ("run/new/deep", str(working / "run"))):
    with pytest.raises(errors.InputError, match=f"because {protected} is write-protected"):
      outputs.check([], folder=folder)


def test_only_regular_files_are_replaced(working):
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
  assert not [path.name for path in working.iterdir() if "vmsst" in path.name]


@pytest.fixture
def store(monkeypatch):
  return memory_store.installed(monkeypatch)


@pytest.fixture(params=["local", "store"])
def place(request, tmp_path):
  """A folder on disk, or in an object store."""
  if request.param == "local":
    return str(tmp_path)
  request.getfixturevalue("store")
  return "gs://bucket/place"


def refused(output, *, is_folder=False):
  """Asserts that another thread cannot own an output."""

  def own():
    with work_folders.owned(output, is_folder=is_folder):
      pass

  with futures.ThreadPoolExecutor(1) as pool:
    message = rf"out is being written by .*process {os.getpid()} on "
    with pytest.raises(errors.InputError, match=message):
      pool.submit(own).result()


@pytest.mark.parametrize("is_folder", [False, True])
def test_an_output_has_one_writer(tmp_path, is_folder):
  output = f"{tmp_path}/out"
  with work_folders.owned(output, is_folder=is_folder):
    refused(output, is_folder=is_folder)
    with work_folders.owned(output, is_folder=is_folder):  # this thread again
      pass
    refused(output, is_folder=is_folder)
  with work_folders.owned(output, is_folder=is_folder), work_folders.owned(f"{output}/below"):
    pass
  assert not storage.names(output)
  assert ".out.vmsst" not in storage.names(tmp_path)


def test_links_lead_to_the_same_output(tmp_path):
  (tmp_path / "link").symlink_to("out")
  with work_folders.owned(tmp_path / "link"):
    refused(tmp_path / "out")
  with work_folders.owned("/dev/null"), work_folders.owned("/dev/null"):
    pass


def test_a_new_folder_may_be_a_link_but_no_mounted_disk(tmp_path, monkeypatch):
  (tmp_path / "link").symlink_to("empty")
  (tmp_path / "empty").mkdir()
  with work_folders.atomic_folder(outputs.new_folder(tmp_path / "link")) as folder:
    (folder / "x").write_text("x")
  assert (tmp_path / "empty" / "x").read_text() == "x"
  assert (tmp_path / "link").is_symlink()
  monkeypatch.setattr(os.path, "ismount", lambda path: str(path) == str(tmp_path / "disk"))
  with pytest.raises(
    errors.InputError, match="disk is the mount point of a disk: give a new folder"
  ):
    outputs.new_folder(tmp_path / "disk")


def test_of_two_writers_of_a_new_folder_one_wins(tmp_path):
  """Both start before either has written."""
  barrier, failed = threading.Barrier(2), []

  def write(name):
    try:
      barrier.wait()
      with work_folders.atomic_folder(tmp_path / "out") as folder:
        for number in range(5):
          (folder / f"{number}").write_text(name)
    except errors.InputError as error:
      failed.append(str(error))

  threads = [threading.Thread(target=write, args=(name,)) for name in "ab"]
  for thread in threads:
    thread.start()
  for thread in threads:
    thread.join()
  assert len(failed) == 1
  assert len(failed[0].splitlines()) == 1
  content = {path.name: path.read_text() for path in (tmp_path / "out").iterdir()}
  assert len(content) == 5
  assert len(set(content.values())) == 1
  assert ".out.vmsst" not in storage.names(tmp_path)


FILES = ["d/state/x", "d/SHA256SUMS", "model", "a.json", "b.json"]


def write_folder(url):
  with work_folders.atomic_folder(storage.path(url)) as folder:
    for name in FILES:
      atomic_files.write_text(folder / name, name)
  assert not folder.exists()


def refuse_from(monkeypatch, count, *names):
  """Makes a store refuse objects after some, and then these operations too."""
  put = memory_store.MemoryStore.put_file
  written = []

  def refuse(*args, **kwargs):
    raise TimeoutError("no answer")

  def put_some(self, local, remote, **options):
    if len(written) == count:
      for name in names:
        monkeypatch.setattr(memory_store.MemoryStore, name, refuse)
      refuse()
    written.append(remote.removeprefix("gs://bucket/x/"))
    put(self, local, remote, **options)

  monkeypatch.setattr(memory_store.MemoryStore, "put_file", put_some)
  return written


def test_a_folder_of_a_store_is_written_as_a_whole(store, monkeypatch):
  url = "gs://bucket/x"
  with monkeypatch.context() as patch:
    written = refuse_from(patch, None)
    write_folder(url)
  assert written == FILES
  assert store.find("bucket") == sorted(f"/bucket/x/{name}" for name in FILES)
  assert input_files.read_bytes(f"{url}/d/state/x") == b"d/state/x"
  storage.check_finished(url)
  with pytest.raises(errors.InputError, match=f"{url} exists already"):
    write_folder(url)


@pytest.mark.parametrize("count", [0, 2, 4])
def test_an_unfinished_folder_is_recognized_and_replaced(store, monkeypatch, count):
  url = "gs://bucket/x"
  with monkeypatch.context() as patch:
    refuse_from(patch, count)
    with pytest.raises(errors.InputError, match=f"{url}/.* cannot be written: .*: no answer"):
      write_folder(url)
  assert not store.find("bucket")  # an error leaves nothing
  with monkeypatch.context() as patch:
    refuse_from(patch, count, "rm")  # as after a kill
    with pytest.raises(errors.InputError, match="no answer"):
      write_folder(url)
  assert len(store.find("bucket")) == count + 1
  with pytest.raises(errors.InputError, match=f"{url} is not finished: wait .* or rerun"):
    storage.check_finished(url)
  write_folder(url)
  assert store.find("bucket") == sorted(f"/bucket/x/{name}" for name in FILES)


def test_a_folder_that_another_command_has_not_finished_is_no_place_for_a_new_one(store):
  """`vmsst embed` leaves its lock and complete files if it is killed."""
  url = "gs://bucket/x"
  for name in (".vmsst/lock-000001", "vectors-00000.npy", "more/notes.txt"):
    store.pipe_file(f"{url}/{name}", b"{}")
  before = store.find("bucket")
  with pytest.raises(errors.InputError, match=f"{url} exists already"):
    write_folder(url)
  assert {*store.find("bucket")} >= {x for x in before if "lock" not in x}
  store.pipe_file(f"{url}/.vmsst/upload.json", b"7")
  with pytest.raises(errors.InputError, match=r"upload\.json is damaged; delete it"):
    write_folder(url)


A = {"name": "/a", "digest": "1" * 64}


@pytest.mark.parametrize(
  ("stored", "given", "message"),
  [
    ({"x": 1, "y": [1, {"z": None}]}, {"y": [1, {"z": None}], "x": 1}, ""),
    ({"sides": [A, A]}, {"sides": [A, {**A, "name": "/moved"}]}, ""),
    ({"encoder": {"name": "/a"}}, {"encoder": {"name": "/a"}}, ""),
    ({"x": "a"}, {}, 'x is "a", not unset'),
    ({}, {"x": [1]}, "x is unset, not [1]"),
    ({"encoder": A}, {"encoder": {**A, "digest": "22"}}, "encoder is /a (111111111111), not /a (2"),
    ({"encoder": A}, {"encoder": {"name": "/b"}}, "encoder is /a (111111111111), not /b"),
    ({"encoder": {"name": "/a"}}, {"encoder": {"name": "/b"}}, "encoder is /a, not /b"),
    ({"sides": [A]}, {"sides": [A, A]}, "sides is "),
    ({"x": 1, "y": 2}, {"x": 3, "y": 4}, "x is 1, not 3; y is 2, not 4"),
  ],
)
def test_stored_settings_differ_by_content_not_by_name(stored, given, message):
  differences = stored_settings.differences(stored, given)
  assert differences.startswith(message)
  assert bool(differences) == bool(message)
