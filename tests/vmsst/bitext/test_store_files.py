"""Bitext and texts in an object store."""

import gzip

import memory_store
import pytest

from vmsst import errors
from vmsst.bitext import readers
from vmsst.files import text_files


@pytest.fixture(autouse=True)
def store(monkeypatch):
  found = memory_store.installed(monkeypatch)
  for name, content in {
    "x.de-en.de": b"eins\nzwei\n",
    "x.de-en.en": b"one\ntwo\n",
    "inner/y.de-en.tsv.gz": gzip.compress(b"drei\tthree\n"),
  }.items():
    found.pipe_file(f"gs://bucket/data/{name}", content)
  return found


def test_bitext_is_found_and_read_as_on_this_machine():
  found = readers.find_bitext(["gs://bucket/data/*.de", "gs://bucket/data/**/*.tsv.gz"])
  assert [bitext.paths for bitext in found] == [
    ("gs://bucket/data/x.de-en.de", "gs://bucket/data/x.de-en.en"),
    ("gs://bucket/data/inner/y.de-en.tsv.gz",),
  ]
  pairs = [list(readers.read_pairs(bitext)) for bitext in found]
  assert pairs == [[("eins", "one"), ("zwei", "two")], [("drei", "three")]]
  assert found[0].text_bytes == len(b"eins\nzwei\none\ntwo\n")


def test_errors_name_the_url(store):
  with pytest.raises(errors.InputError, match=r"no file matches 'gs://bucket/data/\*\.fr'; check"):
    readers.find_bitext("gs://bucket/data/*.fr")
  with pytest.raises(errors.InputError, match="gs://bucket/none: cannot be opened: "):
    list(text_files.read_lines("gs://bucket/none"))
  store.pipe_file("gs://bucket/cut.gz", gzip.compress(b"one\n" * 1000)[:-20])
  with pytest.raises(errors.InputError, match=r"gs://bucket/cut\.gz: truncated gzip file"):
    list(text_files.read_lines("gs://bucket/cut.gz"))
  store.rm("gs://bucket/data/x.de-en.en")
  with pytest.raises(errors.InputError, match=r"its counterpart in English is missing"):
    readers.find_bitext("gs://bucket/data/*.de")
