"""Lines of text files: by number, in spans, and which are blank."""

import gzip
import io
import os

import memory_store
import pytest

from vmsst import errors
from vmsst.io import text_files

CONTENT = "\ufeffone\r\n\nzwölf\nlast"


@pytest.mark.parametrize("name", ["x.txt", "x.txt.gz"])
def test_lines_by_number_are_those_read_in_order(tmp_path, name):
  path = tmp_path / name
  raw = CONTENT.encode()
  path.write_bytes(gzip.compress(raw) if name.endswith(".gz") else raw)
  lines = text_files.Lines(str(path))
  assert len(lines) == 4
  assert [lines[row] for row in (3, 0, 2, 1, 0)] == ["last", "one", "zwölf", "", "one"]
  assert [lines[row] for row in range(4)] == list(text_files.read_lines(str(path)))


def test_a_file_that_is_written_to_is_an_error_and_one_that_is_replaced_is_not(tmp_path):
  path = tmp_path / "x.txt"
  path.write_text("one\ntwo\n")
  lines = text_files.Lines(str(path))
  (tmp_path / "new").write_text("six\nten\n")
  os.replace(tmp_path / "new", path)
  assert lines[1] == "two"
  for content in ("one\n", "one\ntwo\n"):
    lines = text_files.Lines(str(path))
    path.write_text(content)
    os.utime(path, ns=(1, 1))
    with pytest.raises(errors.InputError, match=r"x\.txt:2: the file has changed; open it again"):
      _ = lines[1]
    path.write_text("one\ntwo\n")


def test_content_with_another_digest_is_an_error(tmp_path):
  path, digest = tmp_path / "x.txt", text_files.new_digest()
  path.write_text("one\n")
  digest.update(b"one\n")
  assert list(text_files.read_lines(str(path), digest.hexdigest())) == ["one"]
  assert len(text_files.Lines(str(path), digest.hexdigest())) == 1
  path.write_text("one\nmore\n")
  for read in (lambda *args: list(text_files.read_lines(*args)), text_files.Lines):
    with pytest.raises(errors.InputError, match=r"x\.txt has changed since the work on it started"):
      read(str(path), digest.hexdigest())


def test_a_store_that_fails_while_it_is_read_is_named(monkeypatch):
  class LostConnectionError(Exception):
    """An error of a store's client, which is not an OSError."""

  class Broken(io.BytesIO):
    def readinto(self, buffer):
      if self.tell():
        raise LostConnectionError("no\nanswer")
      buffer[:4] = b"one\n"
      self.seek(4)
      return 4

  memory_store.installed(monkeypatch)
  monkeypatch.setattr(memory_store.MemoryStore, "open", lambda *args, **kwargs: Broken())
  monkeypatch.setattr(memory_store.MemoryStore, "size", lambda *args: 9)
  lines = text_files.read_lines("gs://bucket/a.txt")
  assert next(lines) == "one"
  with pytest.raises(errors.InputError, match=r"gs://bucket/a.txt: cannot be read, after line 1: "):
    next(lines)
