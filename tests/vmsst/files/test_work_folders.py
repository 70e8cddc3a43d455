import os
import threading
from concurrent import futures

import memory_store
import pytest

from vmsst import errors
from vmsst.files import atomic_files, input_files, locks, storage, work_folders


@pytest.fixture
def store(monkeypatch):
  monkeypatch.setattr(locks, "RENEW_SECONDS", 0.02)
  monkeypatch.setattr(locks, "STALE_SECONDS", 0.3)
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
def test_an_output_has_one_writer(place, is_folder):
  output = f"{place}/out"
  with work_folders.owned(output, is_folder=is_folder):
    refused(output, is_folder=is_folder)
    with work_folders.owned(output, is_folder=is_folder):  # this thread again
      pass
    refused(output, is_folder=is_folder)
  with work_folders.owned(output, is_folder=is_folder), work_folders.owned(f"{output}/below"):
    pass
  assert not storage.names(output)
  assert ".out.vmsst" not in storage.names(place)


def test_links_lead_to_the_same_output(tmp_path):
  (tmp_path / "link").symlink_to("out")
  with work_folders.owned(tmp_path / "link"):
    refused(tmp_path / "out")
  with work_folders.owned("/dev/null"), work_folders.owned("/dev/null"):
    pass


@pytest.mark.parametrize("part", [".part", ".search", ".vmsst-part"])
def test_foreign_files_of_similar_names_are_neither_read_nor_changed(tmp_path, part):
  foreign, linked = tmp_path / f"out{part}", tmp_path / f"out{part}-0a"
  foreign.write_text("foreign")
  linked.symlink_to(foreign)
  with work_folders.owned(tmp_path / "out"):
    atomic_files.write_text(tmp_path / "out", "two")
  with work_folders.atomic_folder(tmp_path / "folder") as folder:
    (folder / "x").touch()
  assert foreign.read_text() == linked.read_text() == "foreign"
  assert {path.name for path in tmp_path.iterdir()} == {"out", "folder", foreign.name, linked.name}


def test_of_two_writers_of_a_new_folder_one_wins(place):
  """Both start before either has written."""
  barrier, failed = threading.Barrier(2), []

  def write(name):
    try:
      barrier.wait()
      with work_folders.atomic_folder(storage.path(f"{place}/out")) as folder:
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
  content = {
    name: input_files.read_bytes(f"{place}/out/{name}") for name in storage.names(f"{place}/out")
  }
  assert len(content) == 5
  assert len(set(content.values())) == 1
  assert ".out.vmsst" not in storage.names(place)


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
    with pytest.raises(errors.InputError, match=f"{url} cannot be written: .*: no answer"):
      write_folder(url)
  assert not store.find("bucket")  # an error leaves nothing
  with monkeypatch.context() as patch:
    refuse_from(patch, count, "rm_file")  # as after a kill
    with pytest.raises(errors.InputError, match="no answer"):
      write_folder(url)
  assert len(store.find("bucket")) == count + 1
  with pytest.raises(errors.InputError, match=f"{url} is not finished: wait .* or rerun"):
    storage.check_finished(url)
  write_folder(url)
  assert store.find("bucket") == sorted(f"/bucket/x/{name}" for name in FILES)
