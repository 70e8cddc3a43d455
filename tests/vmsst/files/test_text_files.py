import gzip
import io

import memory_store
import pytest

from vmsst import errors
from vmsst.files import text_files

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


def test_a_file_that_shrinks_is_an_error(tmp_path):
  path = tmp_path / "x.txt"
  path.write_text("one\ntwo\n")
  lines = text_files.Lines(str(path))
  path.write_text("one\n")
  with pytest.raises(errors.InputError, match=r"x\.txt:2: the file has changed; open it again"):
    _ = lines[1]


def test_a_file_that_is_not_text_is_an_error(tmp_path):
  (tmp_path / "x.gz").write_bytes(gzip.compress(b"a\nb\n")[:-6])
  with pytest.raises(errors.InputError, match="truncated gzip file"):
    text_files.Lines(str(tmp_path / "x.gz"))


class LostConnection(Exception):
  """An error of a store's client, which is not an OSError."""


def test_a_store_that_fails_while_it_is_read_is_named(monkeypatch):
  class Broken(io.BytesIO):
    def readinto(self, buffer):
      if self.tell():
        raise LostConnection("no\nanswer")
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

  def refuse(*args, **kwargs):
    raise LostConnection

  monkeypatch.setattr(memory_store.MemoryStore, "open", refuse)
  with pytest.raises(errors.InputError, match=r"gs://bucket/a.txt cannot be read: LostConnection"):
    next(text_files.read_lines("gs://bucket/a.txt"))
