"""Lines of text files: by number, in spans, and which are blank."""

import gzip
import hashlib
import io
import os
import tempfile

import line_files
import memory_store
import numpy as np
import pytest

from vmsst import errors
from vmsst.io import large_arrays, line_spans, npy_files, text_fields, text_files
from vmsst.jobs import atomic_files

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


@pytest.mark.parametrize("content", ["two\n", "one\nmore\n", ""])
def test_content_with_another_digest_is_an_error(tmp_path, content):
  path = tmp_path / "x.txt"
  path.write_text("one\n")
  digest = text_files.new_digest()
  digest.update(b"one\n")
  assert list(text_files.read_lines(str(path), digest.hexdigest())) == ["one"]
  assert len(text_files.Lines(str(path), digest.hexdigest())) == 1
  path.write_text(content)
  for read in (lambda *args: list(text_files.read_lines(*args)), text_files.Lines):
    with pytest.raises(errors.InputError, match=r"x\.txt has changed since the work on it started"):
      read(str(path), digest.hexdigest())


def test_a_named_pipe_without_a_writer_is_refused(tmp_path):
  os.mkfifo(tmp_path / "pipe")
  with pytest.raises(errors.InputError, match=r"pipe: not a file but a pipe"):
    next(text_files.read_lines(str(tmp_path / "pipe")))


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


TEXTS = [
  b"", b"\n", b"one", b"\xef\xbb\xbfone\r\n\ntwo", b"".join(b"line %d\n" % n for n in range(20)),
  b"".join(b"x" * n + b"\n" for n in range(9)) + b"end",
]  # fmt: skip


@pytest.mark.parametrize("lines", [1, 2, 7, 100])
@pytest.mark.parametrize("zipped", [False, True])
def test_spans_have_the_lines_of_their_files(tmp_path, lines, zipped):
  paths, expected = [], []
  for number, content in enumerate(TEXTS):
    path = tmp_path / f"{number}.txt{'.gz' * zipped}"
    path.write_bytes(gzip.compress(content) if zipped else content)
    paths.append(str(path))
    whole = list(text_files.read_lines(str(path)))
    expected += [whole[start : start + lines] for start in range(0, len(whole), lines)]
  cut = line_spans.cut(paths, lines, copies=str(tmp_path / "copies"))
  assert [span.read() for span in cut.spans] == expected
  assert cut.lines == sum(map(len, expected))
  firsts = {span.name: span.first for span in reversed(cut.spans)}
  assert set(firsts.values()) == {1}
  joined = b"\n".join(content.removesuffix(b"\n") for content in TEXTS if content) + b""
  assert cut.digest == hashlib.blake2b(joined, digest_size=16).hexdigest()
  if zipped:
    assert len(list((tmp_path / "copies").iterdir())) == len(TEXTS)
    line_spans.remove_copies(str(tmp_path / "copies"))
    assert not list((tmp_path / "copies").iterdir())


def test_changed_broken_and_equal_lines(tmp_path, monkeypatch):
  path = tmp_path / "x.txt"
  path.write_bytes(b"a\nb\nc\xff\n")
  first, second = line_spans.cut([str(path)], 2).spans
  assert str(second) == f"{path}, lines 3 to 3"
  with pytest.raises(errors.InputError, match=r"x\.txt:3: not UTF-8"):
    second.read()
  (tmp_path / "y").write_bytes(b"0\n0\na\nb\n")
  assert line_spans.cut([str(tmp_path / "y")], 2).spans[1].digest == first.digest
  path.write_bytes(b"a\nB\nc\n")
  with pytest.raises(errors.InputError, match=r"x\.txt has changed"):
    first.read()
  path.unlink()
  with pytest.raises(errors.InputError, match=r"x\.txt: cannot be opened"):
    first.read()
  # A line without an end is refused before it is all read.
  monkeypatch.setattr(text_files, "LINE_BYTES", 1 << 20)
  (tmp_path / "endless").symlink_to("/dev/zero")
  with pytest.raises(errors.InputError, match=r"endless:1: line longer than 1 MB: not a text file"):
    line_spans.cut([str(tmp_path / "endless")], 2, copies=str(tmp_path / "copies"))


def test_a_text_without_a_visible_character_is_blank():
  for text in (
    "", " \t\n\u00a0\u2028\u3000", "\u200b\u2060\ufeff\u200d\u00ad\u200f", "\x00\x1b\x7f\x85",
    "\ufe0f\u034f\u3164\u2800\U000e0041",
  ):  # fmt: skip
    assert text_fields.is_blank(text), ascii(text)
  for text in (".", "\u200ba\u200b", "\u0301", "\u263a\ufe0f", "\ufffd"):
    assert not text_fields.is_blank(text), ascii(text)


@pytest.mark.parametrize("count", [0, 1, 7, 500])
def test_records_are_sorted_and_few_are_in_memory(tmp_path, monkeypatch, count):
  monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
  monkeypatch.setattr(large_arrays, "_RECORDS", 64)
  rng = np.random.default_rng(count)
  record_N3 = rng.integers(0, 4, size=(count, 3)).astype(np.uint64)
  record_N3[:, 2] = rng.integers(0, 1 << 63, size=count)
  record_N3[::5] = np.array([2, 1, 256], np.uint64)  # Equal ones, whose last byte is 0.
  with large_arrays.Records(3) as records:
    for start in range(0, count, 11):
      records.add(record_N3[start : start + 11])
    blocks = list(records.sorted())
  assert [row for block in blocks for row in block.tolist()] == sorted(record_N3.tolist())
  assert max(map(len, blocks), default=0) <= 64 + 64
  assert not list(tmp_path.iterdir())


def test_scores_become_numbers_in_the_opposite_order_and_back():
  score_N = np.array([0.5, -np.inf, np.inf, -0.0, 0.0, 1e-310, -2.5, 3.0, -1e300])
  number_N = large_arrays.descending(score_N)
  np.testing.assert_array_equal(
    np.argsort(number_N, kind="stable"), np.argsort(-score_N, kind="stable")
  )
  np.testing.assert_array_equal(large_arrays.scores(number_N), score_N)


@pytest.mark.parametrize("most", [0, 1 << 20])
def test_arrays_are_those_of_numpy_in_memory_and_in_files(monkeypatch, tmp_path, most):
  monkeypatch.setattr(large_arrays, "_IN_MEMORY", most)
  monkeypatch.setattr(large_arrays, "_WRITTEN", bytes(100))
  monkeypatch.setattr(large_arrays.tempfile, "tempdir", str(tmp_path))
  for value, dtype in ((0, np.uint8), (-np.inf, np.float32), (True, bool), (-1, np.int64)):
    array_NK = large_arrays.full((37, 5), value, dtype)
    np.testing.assert_array_equal(array_NK, np.full((37, 5), value, dtype), strict=True)
    array_NK[3:5] = 1  # It can be changed.
    assert array_NK[4, 4] == 1
  for count in (0, 1, 1000):
    row_N = np.arange(count, dtype=np.float64)
    found_N = large_arrays.concatenated(iter(np.array_split(row_N, 7)), np.int64)
    np.testing.assert_array_equal(found_N, row_N.astype(np.int64), strict=True)
  assert not list(tmp_path.iterdir())


def test_large_arrays_take_no_memory_of_their_own(monkeypatch):
  monkeypatch.setattr(large_arrays, "_IN_MEMORY", 1000)
  array_N = large_arrays.full(1001, 0, np.uint8)
  joined_N = large_arrays.concatenated([np.zeros(1001)], np.uint8)
  for array in (array_N, joined_N):
    with open("/proc/self/maps", encoding="utf-8") as maps:
      start = f"{array.ctypes.data:x}-"
      (line,) = (line for line in maps if line.startswith(start))
    assert "(deleted)" in line  # A file without a name.


def test_a_full_disk_is_an_error_before_the_array_is_used():
  with line_files.largest_file(1 << 21), pytest.raises(OSError, match="File too large"):
    large_arrays.full(1 << 22, 0, np.uint8)


def test_a_full_disk_is_named_for_arrays_too(tmp_path):
  path = tmp_path / "x.npy"
  written = rf"9\d\d requested and \d+ written: '{path}'"
  with (
    line_files.largest_file(1 << 12),
    pytest.raises(OSError, match=written),
    atomic_files.atomic_file(path) as stream,
  ):
    np.save(stream, np.zeros(999))
  assert not any(tmp_path.iterdir())


def test_columns_are_numbers_and_csv_is_refused():
  for name, field, message in (
    ("x.csv", "1", r"x.csv: .csv files are not read"),
    ("x.json", None, r"x.json: .json files are not read"),
    ("x.tsv.gz", "german", r"x.tsv.gz: 'german' is not the number of a column"),
  ):
    with pytest.raises(errors.InputError, match=message):
      text_fields.parser(name, field)
  assert text_fields.parser("x.json", "text")('{"text": "a"}', 1) == "a"


def test_arrays_by_name_and_broken_files(tmp_path):
  path = tmp_path / "x.npz"
  np.savez(path, a=np.arange(3), b=np.eye(2))
  b, a = npy_files.read(path, ["b", "a"])
  np.testing.assert_array_equal(a, np.arange(3))
  np.testing.assert_array_equal(b, np.eye(2))
  with pytest.raises(errors.InputError, match=r"x\.npz: broken .*: delete it and rerun"):
    npy_files.read(path, ["c"])
  path.write_bytes(path.read_bytes()[:-9])
  with pytest.raises(errors.InputError, match=r"x\.npz: broken .*: delete it and rerun"):
    npy_files.read(path, ["a"])
