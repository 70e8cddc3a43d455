import gzip
import hashlib
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
  with pytest.raises(errors.InputError, match=r"x\.txt has changed since it was first read"):
    list(text_files.read_lines(str(path), digest.hexdigest()))


def test_a_store_that_fails_while_it_is_read_is_named(monkeypatch):
  class LostConnectionError(Exception):
    """An error of a store's client. It is not an OSError."""

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
  with pytest.raises(errors.InputError, match=r"gs://bucket/a.txt: cannot be read after line 1: "):
    next(lines)


def test_a_text_without_a_visible_character_is_blank():
  for text in (
    "", " \t\n\u00a0\u2028\u3000", "\u200b\u2060\ufeff\u200d\u00ad\u200f", "\x00\x1b\x7f\x85",
    "\ufe0f\u034f\u3164\u2800\U000e0041",
  ):  # fmt: skip
    assert text_files.is_blank(text), ascii(text)
  for text in (".", "\u200ba\u200b", "\u0301", "\u263a\ufe0f", "\ufffd"):
    assert not text_files.is_blank(text), ascii(text)


def test_columns_are_numbers_and_csv_is_refused():
  for name, field, message in (
    ("x.csv", "1", r"x.csv: .csv files are not supported"),
    ("x.json", None, r"x.json: .json files are not supported"),
    ("x.tsv.gz", "german", r"x.tsv.gz: 'german' is not a column number"),
  ):
    with pytest.raises(errors.InputError, match=message):
      next(text_files.texts(["a"], name, field))
  assert list(text_files.texts(['{"text": "a"}'], "x.json", "text")) == ["a"]


TEXTS = [
  b"", b"\n", b"one", b"\xef\xbb\xbfone\r\n\ntwo", b"".join(b"line %d\n" % n for n in range(20)),
  b"".join(b"x" * n + b"\n" for n in range(9)) + b"end",
]  # fmt: skip


@pytest.mark.parametrize("lines", [2, 100])
@pytest.mark.parametrize("zipped", [False, True])
def test_spans_have_the_lines_of_their_files(tmp_path, lines, zipped):
  paths, expected = [], []
  for number, content in enumerate(TEXTS):
    path = tmp_path / f"{number}.txt{'.gz' * zipped}"
    path.write_bytes(gzip.compress(content) if zipped else content)
    paths.append(str(path))
    whole = list(text_files.read_lines(str(path)))
    expected += [whole[start : start + lines] for start in range(0, len(whole), lines)]
  cut = text_files.cut(paths, lines)
  spans = text_files.unpack(cut.spans, str(tmp_path / "copies"))
  assert [span.read() for span in spans] == expected
  assert (tmp_path / "copies").exists() == zipped
  assert cut.identity["lines"] == sum(map(len, expected))
  firsts = {span.name: span.first for span in reversed(cut.spans)}
  assert set(firsts.values()) == {1}
  joined = b"\n".join(content.removesuffix(b"\n") for content in TEXTS if content) + b""
  assert cut.identity["digest"] == hashlib.blake2b(joined, digest_size=16).hexdigest()


def test_changed_broken_and_equal_lines(tmp_path, monkeypatch):
  path = tmp_path / "x.txt"
  path.write_bytes(b"a\nb\nc\xff\n")
  first, second = text_files.cut([str(path)], 2).spans
  assert str(second) == f"{path}, lines 3 to 3"
  with pytest.raises(errors.InputError, match=r"x\.txt:3: not UTF-8"):
    second.read()
  (tmp_path / "y").write_bytes(b"0\n0\na\nb\n")
  assert text_files.cut([str(tmp_path / "y")], 2).spans[1].digest == first.digest
  path.write_bytes(b"a\nB\nc\n")
  with pytest.raises(errors.InputError, match=r"x\.txt has changed"):
    first.read()
  path.unlink()
  with pytest.raises(errors.InputError, match=r"x\.txt: cannot be opened"):
    first.read()
  monkeypatch.setattr(text_files, "LINE_BYTES", 1 << 20)
  path.write_bytes(bytes(1 << 21))
  with pytest.raises(
    errors.InputError, match=r"x\.txt:1: line longer than 1 MB, so this is not a text file"
  ):
    text_files.cut([str(path)], 2)
  (tmp_path / "endless").symlink_to("/dev/zero")
  with pytest.raises(errors.InputError, match="endless: not a file"):
    text_files.cut([str(tmp_path / "endless")], 2)
