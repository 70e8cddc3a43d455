import io

import memory_store
import pytest

from vmsst import errors
from vmsst.io import text_files


def test_content_with_another_digest_is_an_error(tmp_path):
  path, digest = tmp_path / "x.txt", text_files.new_digest()
  path.write_text("one\n")
  digest.update(b"one\n")
  assert list(text_files.read_lines(str(path), digest.hexdigest())) == ["one"]
  path.write_text("one\nmore\n")
  with pytest.raises(errors.InputError, match=r"x\.txt has changed since the work on it started"):
    list(text_files.read_lines(str(path), digest.hexdigest()))


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
