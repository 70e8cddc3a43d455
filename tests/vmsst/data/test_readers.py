import gzip
import json

import line_files
import pytest

from vmsst import errors
from vmsst.data import readers
from vmsst.languages import language

PAIRS = [("Hallo Welt", "hello world"), ("grün", "green"), ("", "empty"), ("ja  ja", "yes yes")]

TMX = """<?xml version="1.0" encoding="UTF-8"?>
<!DOCTYPE tmx SYSTEM "tmx14.dtd">
<tmx version="1.4"><header/><body>
<tu><tuv xml:lang="de-DE"><seg>Hallo
 <bpt i="1">&lt;b&gt;</bpt>Welt<ept i="1">&lt;/b&gt;</ept></seg></tuv>
<tuv xml:lang="EN"><seg>hello <hi>world</hi></seg></tuv>
<tuv xml:lang="fr"><seg>salut</seg></tuv></tu>
<tu><tuv xml:lang="en"><seg>green &amp; blue</seg></tuv>
<tuv xml:lang="de"><seg>grün</seg></tuv></tu>
<tu><tuv xml:lang="fr"><seg>rien</seg></tuv></tu>
<tu><tuv lang="de"><seg>allein</seg></tuv></tu>
</body></tmx>
"""


def _read(path, **options):
  (bitext,) = readers.find_bitext(str(path), **options)
  return list(readers.read_pairs(bitext))


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_every_format_gives_the_same_pairs(tmp_path, suffix):
  records = {
    "b": [{"translation": {"en": b, "de": a}} for a, b in PAIRS],
    "c": [{"deu": a, "eng": b, "id": 1} for a, b in PAIRS],
    "d": [{"src": a, "tgt": b} for a, b in PAIRS],
  }
  texts = {
    f"{name}.de-en.jsonl": "".join(json.dumps(row) + "\n" for row in rows)
    for name, rows in records.items()
  }
  texts["a.de-en.tsv"] = "\ufeff" + "".join(f"{a}\t{b}\r\n" for a, b in PAIRS) + "\r\n"
  for name, text in texts.items():
    path = line_files.write_text(tmp_path / f"{name}{suffix}", text)
    assert _read(path, fields=("src", "tgt") if name[0] == "d" else None) == PAIRS
  for column, code in enumerate(("de", "en")):
    lines = [pair[column] for pair in PAIRS]
    path = line_files.write_lines(tmp_path / f"e.de-en.{code}{suffix}", lines)
  assert _read(path) == PAIRS  # Either file stands for both.
  tmx = line_files.write_text(tmp_path / f"f.de-en.tmx{suffix}", TMX)
  assert _read(tmx) == [("Hallo Welt", "hello world"), ("grün", "green & blue"), ("allein", "")]


def test_json_without_languages_has_a_pair_and_its_hard_negatives_in_fields_of_any_name(tmp_path):
  record = {"anchor": "how old?", "id": 5, "positive": "my age", "negative": "an apple"}
  reordered = {"negative": "b", "positive": "", "anchor": "c"}
  path = tmp_path / "triplets.jsonl"
  line_files.write_text(path, f"{json.dumps(record)}\n{json.dumps(reordered)}\n")
  (bitext,) = readers.find_bitext(str(path), languages=("und", "und"))
  rows = [("how old?", "my age", "an apple"), ("c", "", "b")]
  assert [row.texts for row in readers.read_rows(bitext)] == rows
  assert list(readers.read_pairs(bitext)) == [row[:2] for row in rows]


def test_languages_come_from_the_name_or_are_given(tmp_path):
  for name, expected in {
    "deu-eng.tsv.gz": ("deu", "eng"),
    "swh-eng.lafand.tsv.gz": ("swh", "eng"),
    "Europarl.v8.fr-en.tsv": ("fra", "eng"),
    "x.zh-TW-en.tmx": ("cmn", "eng"),
    "x.pt_br-zh_tw.tsv": ("por", "cmn"),
    "x.sr_Latn-ca_valencia.tsv": ("srp", "cat"),
  }.items():
    assert tuple(x.iso639_3 for x in readers.languages_in_name(name)) == expected
  assert readers.languages_in_name("x.zh-TW-en.tmx")[0] == language("zh-TW") != language("zh")
  for name in ("train-dev.tsv", "de-en.fr-en.tsv", "x.en-qx.tsv"):
    with pytest.raises(errors.InputError, match="the name contains"):
      readers.languages_in_name(name)


def test_moses_files_with_any_code_of_opus(tmp_path):
  for code in ("pt_br", "zh_CN"):
    names = [f"Ted.en-{code}.{suffix}" for suffix in ("en", code)]
    paths = [line_files.write_text(tmp_path / name, "a\n") for name in names]
    for path in paths:
      for pair in (None, ("en", code)):
        (bitext,) = readers.find_bitext(str(path), languages=pair)
        assert bitext.target == language(code)
        assert bitext.paths == tuple(map(str, paths))
  for name, message in (("x.de-en.de", "needs one counterpart"), ("x.zip", "unknown format")):
    path = line_files.write_text(tmp_path / name, "a\n")
    with pytest.raises(errors.InputError, match=message):
      readers.find_bitext(str(path))


def test_moses_languages_without_a_pair_in_the_name(tmp_path):
  for code in ("de", "en"):
    line_files.write_text(tmp_path / f"train.{code}", "a\n")
  (bitext,) = readers.find_bitext(str(tmp_path / "train.*"))
  assert (bitext.source, bitext.target) == (language("de"), language("en"))
  line_files.write_text(tmp_path / "train.fr", "a\n")
  with pytest.raises(errors.InputError, match="files in French, German, English; add or rename"):
    readers.find_bitext(str(tmp_path / "train.en"))
  (bitext,) = readers.find_bitext(str(tmp_path / "train.*"), languages=("fr", "de"))
  assert bitext.paths == (str(tmp_path / "train.fr"), str(tmp_path / "train.de"))
  (tmp_path / "train.de.gz").write_bytes(gzip.compress(b"a\n"))
  with pytest.raises(errors.InputError, match=r"both .*train.de and .*train.de.gz"):
    readers.find_bitext(str(tmp_path / "train.*"), languages=("fr", "de"))


@pytest.mark.parametrize(
  "score", ["5", ".75", "-3.2e-06", "9.5E-1", "\u22121", " 0.9 ", "95 %", "1.234,5", "1/2", "-NaN"]
)
def test_scores_before_pairs_are_skipped_in_every_notation(tmp_path, score):
  path = line_files.write_tsv(tmp_path / "m.de-en.tsv", [(score, "ja", "yes"), (1, "nein", "no")])
  assert _read(path) == [("ja", "yes"), ("nein", "no")]


@pytest.mark.parametrize("text", ["1 apple", "-", "", "5e", "1990s"])
def test_a_column_with_a_text_is_no_column_of_scores(tmp_path, text):
  path = line_files.write_text(tmp_path / "x.de-en.tsv", f"{text}\tja\tyes\n1\tnein\tno\n\n")
  assert _read(path) == [(text, "ja"), ("1", "nein")]


BROKEN = {
  "columns.de-en.tsv": (b"a\tb\nc;d\n", "tsv:2: expected source TAB target; write 2 columns"),
  "numbers.de-en.tsv": (
    b"2.4\ta\n",
    r"tsv:1: expected score \(most lines begin with a number\) TAB",
  ),
  "header.de-en.tsv": (
    b"score\ta\tb\n" + 9 * b"1.5\ta\tb\n",
    r"tsv:1: expected score .* 3 columns",
  ),
  "utf8.de-en.tsv": (b"a\tb\nc\xff\td\n", r"utf8.de-en.tsv:2: the line is not UTF-8"),
  "empty.de-en.tsv": (b"", r"empty.de-en.tsv: contains no pair of German and English"),
  "cut.de-en.tsv.gz": (gzip.compress(b"a\tb\n" * 99)[:-9], r"cut.de-en.tsv.gz:100: truncated"),
  "a.de-en.jsonl": (b'{"de": "x", "en": "y"}\n{"de": \n', r"a.de-en.jsonl:2: not JSON"),
  "b.de-en.jsonl": (b'{"de": "x", "fr": "y"}\n', r"jsonl:1: 'English' has no text; .*'fr'"),
  "label.de-en.jsonl": (b'{"de": "x", "en": "y", "label": 0}\n', "jsonl:1: .*0.0.*; remove them"),
  "outer.de-en.jsonl": (
    b'{"translation": {"de": "x", "en": "y"}, "id": 1, "x": 0}',
    "'x'. may be scores",
  ),
  "f.de-en.tmx": (b"<tmx><tu><tuv></tu></tmx>", r"f.de-en.tmx:1: ill-formed XML"),
  "j.de-en.tmx": (b"<tmx>\n<tu></tmx>", r"j.de-en.tmx:2: truncated"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_files_are_named_with_the_line(tmp_path, name):
  content, message = BROKEN[name]
  (tmp_path / name).write_bytes(content)
  with pytest.raises(errors.InputError, match=message):
    _read(tmp_path / name)


def test_missing_files_and_sides_of_unequal_length_are_named(tmp_path):
  with pytest.raises(errors.InputError, match=r"no file matches '.*/nope/\*\.tsv'"):
    readers.find_bitext(str(tmp_path / "nope" / "*.tsv"))
  line_files.write_lines(tmp_path / "x.de-en.de", "abc")
  for english, message in (("ab", "en:2: ends before the other"), ("abcde", "de:3: ends before")):
    line_files.write_lines(tmp_path / "x.de-en.en", english)
    with pytest.raises(errors.InputError, match=message):
      _read(tmp_path / "x.de-en.de")


def test_rows_with_another_number_of_columns_are_named(tmp_path):
  path = line_files.write_text(tmp_path / "x.de-en.tsv", "a\tb\tc\td\ne\tf\tg\n")
  (file,) = readers.find_bitext(str(path))
  message = r"x\.de-en\.tsv:2: expected source .*; write 4 columns on every line"
  with pytest.raises(errors.InputError, match=message):
    list(readers.read_rows(file))
