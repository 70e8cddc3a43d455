import io
import os
import zipfile

import memory_store
import opus_tree
import pytest
from fsspec.implementations import memory

from vmsst import errors
from vmsst.data import formats
from vmsst.languages import language
from vmsst.opus import releases

ROWS = [("Hallo Welt", "hello world"), ("grün & blau", "green & blue"), ("ja <3", "yes\u2028yes")]


def _release(path, codes=("de", "en")):
  kind = str(path).removesuffix(".gz")[-3:]
  pair = releases.order(*map(language, codes))
  return releases.Release("X", "v1", str(path), kind, pair, os.path.getsize(path), codes)


def _read(release):
  """Rows as (number, source, target), and faults as (path in the folder, reason)."""
  rows, faults = [], []
  folder = os.path.dirname(release.path)
  for item in releases.read(release):
    if isinstance(item, formats.Row):
      rows.append((item.number, *item.texts))
    else:
      faults.append((os.path.relpath(item.location, folder), item.what))
  return rows, faults


def _zip(path, german, english, **extra_members):
  members = {"X.de-en.de": german, "X.de-en.en": english, **extra_members}
  path.write_bytes(opus_tree.zipped(members))
  return _release(path)


NUMBERED = [(i, *row) for i, row in enumerate(ROWS, 1)]


@pytest.mark.parametrize(
  ("kind", "layout"), [("zip", "folders"), ("tmx", "loose"), ("tsv", "flat"), ("zip", "flat")]
)
def test_every_format_and_layout_gives_the_rows(tmp_path, kind, layout):
  # The second file has Czech before Bulgarian, but the dataset sorts the languages of a pair.
  swapped = [(english, german) for german, english in ROWS]
  releases_on_disk = [
    opus_tree.Part("WMT-News", "v2019", ("de", "en"), ROWS, kind, layout),
    opus_tree.Part("WMT-News", "v2019", ("cs", "bg"), swapped, kind, layout),
  ]
  opus_tree.write(tmp_path, releases_on_disk)
  first, second = releases.scan(str(tmp_path))[0]
  assert (first.name, second.name) == ("WMT-News.v2019.cs-bg", "WMT-News.v2019.de-en")
  assert (first.pair, second.format) == ((language("bg"), language("cs")), kind)
  assert second.size == os.path.getsize(tmp_path / releases_on_disk[0].path)
  expected = NUMBERED
  if kind == "tmx":  # Its segments have single spaces.
    expected = [(i, a, " ".join(b.split())) for i, a, b in NUMBERED]
  assert _read(first) == _read(second) == (expected, [])


def test_codes_formats_and_files_that_are_left_out(tmp_path):
  def part(codes, kind="zip", version="v1"):
    return opus_tree.Part("OPUS-Ted", version, codes, ROWS, kind)

  pairs = [("en", "pt"), ("en", "pt_BR"), ("en", "zh_cn"), ("en", "zh_TW"), ("en", "sr_Latn")]
  odd = [("en", "qx"), ("ze_en", "zh"), ("no", "nb"), ("en", "be_Latn")]
  releases_on_disk = [part(codes) for codes in pairs + odd]
  releases_on_disk += [
    part(("en", "pt"), "tmx"),
    part(("en", "fr"), "tsv"),
    part(("en", "fr"), "tmx"),
  ]
  opus_tree.write(tmp_path / "elsewhere", releases_on_disk)
  root = tmp_path / "root"
  root.mkdir()
  (root / "de-en.tmx.gz").write_bytes(b"")
  os.symlink(tmp_path / "elsewhere", root / "deep")
  os.symlink(root, root / "loop")
  scanned, faults = releases.scan(str(root))
  assert {release.name: release.format for release in scanned} == {
    "Ted.v1.en-zh_cn": "zip", "Ted.v1.en-zh_TW": "zip",
    "Ted.v1.en-fr": "tmx", "Ted.v1.en-pt": "zip", "Ted.v1.en-pt_BR": "zip",
    "Ted.v1.en-sr_Latn": "zip",
  }  # fmt: skip
  assert sorted((os.path.basename(fault.location), fault.what) for fault in faults) == [
    ("de-en.tmx.gz", "neither the folders nor the file name specify the corpus and its version"),
    ("en-be_Latn.txt.zip", "unknown language code 'be_Latn'"),
    ("en-qx.txt.zip", "unknown language code 'qx'"),
    ("no-nb.txt.zip", "both languages are Norwegian Bokmål"),
    ("ze_en-zh.txt.zip", "unknown language code 'ze_en'"),
  ]
  with pytest.raises(errors.InputError, match="no OPUS release in this folder"):
    releases.scan(str(tmp_path / "none"))


def test_bad_lines_are_left_out_and_the_others_kept(tmp_path):
  long = b"x" * 10_000_000
  german = b"\xef\xbb\xbfeins\r\nzw\xffei\ndr\0ei\n" + long + b"\nf\xc3\xbcnf\r\n\nsieben"
  english = b"one\ntwo\r\nthree\nfour\nfive\nsix\n" + long
  rows = [(1, "eins", "one"), (5, "fünf", "five"), (6, "", "six")]
  utf8, nul, size = "the line is not UTF-8", "the line contains NUL", "the line is too long"
  faults = [(f"a.zip/X.de-en.de:{line}", what) for line, what in ((2, utf8), (3, nul), (4, size))]
  faults.append(("a.zip/X.de-en.en:7", size))
  assert _read(_zip(tmp_path / "a.zip", german, english)) == (rows, faults)
  tabs = b"\xef\xbb\xbfeins\tone\tx\r\nzw\xffei\ttwo\ndrei\n" + long + b"\na\tb\0\nja\tyes\tx"
  (tmp_path / "b.tsv").write_bytes(tabs)
  columns = "expected source TAB target; write 3 columns on every line"
  faults = [(f"b.tsv:{i}", what) for i, what in enumerate((utf8, columns, size, nul), 2)]
  assert _read(_release(tmp_path / "b.tsv")) == ([(1, "eins", "one"), (6, "ja", "yes")], faults)
  # A lone CR is no line end.
  assert _read(_zip(tmp_path / "c.zip", b"d\re", b"e\r\n")) == ([(1, "d\re", "e")], [])


def test_one_side_ends_before_the_other(tmp_path):
  why = "ends before the other file; check that both are aligned line by line"
  release = _zip(tmp_path / "a.zip", b"a\nb\nc\n", b"x\ny\n")
  assert _read(release) == ([(1, "a", "x"), (2, "b", "y")], [("a.zip/X.de-en.en:2", why)])
  release = _zip(tmp_path / "c.zip", b"", b"")
  assert _read(release) == ([], [("c.zip", "contains no pair in the two languages")])


def test_damaged_archives_are_reported(tmp_path):
  damaged = "not a zip archive, or damaged; download it again"
  members = {"X.de-en.de": b"a\nb\n", "X.de-en.en": b"xx\nyy\n"}
  uncompressed = io.BytesIO()
  with zipfile.ZipFile(uncompressed, "w") as archive:
    for name, data in members.items():
      archive.writestr(name, data)
  for content, what in {
    uncompressed.getvalue().replace(b"xx\nyy", b"xx\nzy"): damaged,  # Its checksum shows it.
    b"<html>not found</html>": damaged,
    opus_tree.zipped(members)[:-30]: damaged,
    opus_tree.zipped({"X.de-en.de": b"a\n"}): "0 members end with .en; exactly one must",
    opus_tree.zipped(
      {**members, "Y.de-en.de": b"a\n", "Y.de-en.en": b"b\n"}
    ): "2 members end with .de",
  }.items():
    (tmp_path / "a.zip").write_bytes(content)
    rows, faults = _read(_release(tmp_path / "a.zip"))
    assert not rows
    assert what in faults[0][1]


def test_a_lost_connection_is_not_taken_for_the_end_of_a_file(tmp_path, monkeypatch):
  store = memory_store.installed(monkeypatch)
  opus_tree.write(tmp_path, [opus_tree.Part("Europarl", "v8", ("de", "en"), ROWS)])
  store.put(str(tmp_path), "gs://data/opus", recursive=True)
  ((release,), _) = releases.scan("gs://data/opus")
  assert len(list(releases.read(release))) == len(ROWS)

  def readinto(self, buffer):
    raise ConnectionResetError("lost")

  monkeypatch.setattr(memory.MemoryFile, "readinto", readinto)
  with pytest.raises(errors.InputError, match="cannot be read: ConnectionResetError: lost"):
    list(releases.read(release))
