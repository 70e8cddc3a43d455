"""Files and folders in object stores, and what of them is the same on this machine."""

import gzip
import os
import pathlib

import memory_store
import pytest

from vmsst import errors, storage
from vmsst.data import readers
from vmsst.io import input_files, text_files
from vmsst.jobs import outputs


@pytest.fixture
def store(monkeypatch):
  return memory_store.installed(monkeypatch)


def test_urls_and_local_paths_are_told_apart(tmp_path):
  for url in ("gs://bucket/x", "s3://bucket", "memory://a"):
    assert storage.is_url(url)
  for local in ("/a/b", "a", pathlib.Path("a"), "/search/path/gs://bucket/x", "C:/x", ""):
    assert not storage.is_url(local)
  assert storage.absolute("~/x") == str(pathlib.Path.home() / "x")
  storage.check_local(tmp_path, "the output")
  with pytest.raises(errors.InputError, match="gs://b/a: the output cannot be in an object store"):
    storage.check_local("gs://b/a", "the output")


def test_paths_of_stores_and_of_this_machine_do_the_same(store, tmp_path):
  for root in ("gs://bucket/run", str(tmp_path)):
    folder = storage.path(root)
    outputs.write_text(folder / "inner" / "a.txt", "one\n")
    outputs.write_json(folder / "b.json", {"x": 1})
    assert os.fspath(folder / "b.json") == f"{root}/b.json"
    assert storage.names(folder) == {"inner", "b.json"}
    assert storage.names(folder / "nowhere") == set()
    assert sorted(storage.files_below(folder)) == ["b.json", "inner/a.txt"]
    assert storage.files_below(folder / "nowhere") == []
    assert (folder / "inner" / "a.txt").read_text() == "one\n"
    assert (folder / "inner").is_dir()
    assert (folder / "b.json").is_file()
    assert input_files.read_json(f"{root}/b.json") == {"x": 1}
    assert input_files.sha256(f"{root}/b.json") == input_files.sha256(folder / "b.json")
    with storage.local_copy(folder / "inner") as local:
      assert (local / "a.txt").read_bytes() == b"one\n"
    with storage.local_copy(root if root.startswith("/") else "gs://bucket") as local:
      assert any(path.name == "b.json" for path in local.rglob("*"))
    with pytest.raises(errors.InputError, match=rf"{root}/c\.json.* cannot be read"):
      input_files.read_json(f"{root}/c.json")
    storage.rename(folder / "inner", folder / "moved")
    assert storage.names(folder) == {"moved", "b.json"}
    assert (folder / "moved" / "a.txt").read_text() == "one\n"
    storage.remove(folder / "moved")
    storage.remove(folder / "b.json")
    storage.remove(folder / "b.json")
    assert storage.names(folder) == set()


def test_files_are_found_by_pattern_in_stores_and_on_this_machine(store, tmp_path):
  for root in ("gs://bucket/a[b]", str(tmp_path)):
    folder = storage.path(root)
    for name in ("x.txt", "y.txt.gz", ".z.txt", "in/deep/x.txt", "in/x.tsv"):
      outputs.write_text(folder / name, "text")
    for pattern, found in (
      ("*.txt", [".z.txt", "x.txt"]), ("*.txt*", [".z.txt", "x.txt", "y.txt.gz"]),
      ("*/x.*", ["in/x.tsv"]), ("*/deep", ["in/deep"]), ("**/x.txt", ["in/deep/x.txt", "x.txt"]),
      ("x.txt", ["x.txt"]), ("nothing/*", []),
    ):  # fmt: skip
      assert storage.find(folder, pattern) == [folder / name for name in found]
    outputs.write_text(folder / "news [2024].tsv", "text")
    for pattern, name in (("news [2024].tsv", "news [2024].tsv"), ("?.txt", "x.txt")):
      if root.startswith("/"):  # The folder of the store is a pattern itself.
        assert storage.matches(f"{root}/{pattern}") == [f"{root}/{name}"]
    assert storage.is_file(folder / "x.txt")
    assert not storage.is_file(folder / "in")
    assert not storage.is_file(folder / "nothing")
  assert sorted(storage.files_below("gs://bucket/a[b]/in/")) == ["deep/x.txt", "x.tsv"]


def test_only_what_is_named_is_removed(store):
  for name in ("a1/x", "a1/y", "a[1]/x", "a[1]/y", "a[1]/in/z"):
    store.pipe_file(f"gs://bucket/{name}", b"")
  storage.remove("gs://bucket/a[1]/x")
  storage.remove("gs://bucket/a[1]/in/z")
  assert storage.files_below("gs://bucket") == ["a1/x", "a1/y", "a[1]/y"]
  storage.remove("gs://bucket/a[1]")
  storage.remove("gs://bucket/a1/y")
  assert storage.files_below("gs://bucket") == ["a1/x"]


def test_close_ranges_are_read_in_one_request(store, monkeypatch):
  content = bytes(range(200))
  store.pipe_file("gs://bucket/a", content)
  monkeypatch.setattr(storage, "_GAP", 10)
  requests = []

  def counted(self, path, start=None, end=None, **options):
    requests.append((start, end))
    return content[start:end]

  monkeypatch.setattr(memory_store.MemoryStore, "cat_file", counted)
  starts = [30, 3, 16, 0, 31, 190, 3]
  found = storage.read_ranges("gs://bucket/a", starts, 3)
  assert found == [content[start : start + 3] for start in starts]
  assert requests == [(0, 19), (30, 34), (190, 193)]
  assert storage.read_ranges("gs://bucket/a", [], 3) == []


@pytest.mark.parametrize(
  "use",
  [
    storage.names, storage.version, storage.remove, storage.check_writable,
    lambda url: storage.download(url, pathlib.Path("nowhere")),
    lambda url: list(text_files.read_lines(url)), input_files.sha256, input_files.read_json,
  ],
)  # fmt: skip
def test_any_error_of_a_store_is_one_line(use, store, monkeypatch):
  storage.filesystem("gs://bucket")  # which has answered

  def fail(*args, **kwargs):
    raise TimeoutError("no\nanswer")

  for name in dir(memory_store.MemoryStore):
    if not name.startswith("_") and callable(getattr(memory_store.MemoryStore, name)):
      monkeypatch.setattr(memory_store.MemoryStore, name, fail)
  with pytest.raises(errors.InputError, match=r"gs://bucket/a.* cannot be .*: no answer"):
    use("gs://bucket/a")


def test_bitext_is_found_and_read_as_on_this_machine(store):
  for name, content in {
    "x.de-en.de": b"eins\nzwei\n",
    "x.de-en.en": b"one\ntwo\n",
    "inner/y.de-en.tsv.gz": gzip.compress(b"drei\tthree\n"),
  }.items():
    store.pipe_file(f"gs://bucket/data/{name}", content)
  found = readers.find_bitext(["gs://bucket/data/*.de", "gs://bucket/data/**/*.tsv.gz"])
  pairs = [list(readers.read_pairs(bitext)) for bitext in found]
  assert pairs == [[("eins", "one"), ("zwei", "two")], [("drei", "three")]]
  with pytest.raises(errors.InputError, match=r"no file matches 'gs://bucket/data/\*\.fr'; check"):
    readers.find_bitext("gs://bucket/data/*.fr")
