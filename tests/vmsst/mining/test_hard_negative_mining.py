import gzip
import hashlib
import json
import os
import pathlib
import unicodedata

import fake_encoders
import line_files
import numpy as np
import pytest

from vmsst import cli, errors
from vmsst.data import derived_files, readers
from vmsst.encoder import loading
from vmsst.languages import language
from vmsst.mining import hard_negative_mining

# Repeated sources and targets, exact or with other letters; empty sides; a TAB in a text.
PAIRS = [
  *((f"quelle {i}", f"source {i}") for i in range(12)),
  ("quelle 3", "another source"),
  ("QUELLE  3", "a third\tsource"),
  ("noch eine", "Ｓource 5"),
  ("und noch eine", "SOURCE  5"),
  ("", "alone"),
  ("allein", " "),
]


class QuietEncoder(fake_encoders.FakeEncoder):
  """Records the language and size of each call, which must not show its progress."""

  dimension = 6

  def __init__(self):
    super().__init__(fake_encoders.random_vector)
    self.batches = []

  def encode(self, sentences, *, language, batch_size, progress, on_cut=None):
    assert progress is False
    self.batches.append((language, len(sentences)))
    return super().encode(sentences).astype(np.float32)


def plain(text):
  return " ".join(unicodedata.normalize("NFKC", text).casefold().split())


def brute_force(pairs, count):
  """Returns, by loops over pairs, the nearest targets that no pair of each source has."""
  found = []
  for source, target in pairs:
    if not plain(source) or not plain(target):
      found.append([])
      continue
    known = {plain(y) for x, y in pairs if plain(x) == plain(source)}
    first = next(x for x, y in pairs if plain(x) == plain(source) and plain(y))
    rivals = {}
    for x, y in pairs:
      if plain(x) and plain(y) and plain(y) not in known:
        rivals.setdefault(plain(y), y)
    vectors = np.array([fake_encoders.random_vector(text) for text in [first, *rivals.values()]])
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    order = np.argsort(-(unit[1:] @ unit[0]), kind="stable")
    found.append([list(rivals.values())[i] for i in order[:count]])
  return found


@pytest.mark.parametrize("count", [3, 40])
def test_negatives_are_those_of_plain_loops(count):
  encoder = QuietEncoder()
  found = hard_negative_mining.hard_negatives(encoder, PAIRS, count, languages=("deu", "eng"))
  assert found == brute_force(PAIRS, count)
  assert found[3] == found[12] == found[13]
  assert not {"source 3", "another source", "a third\tsource"} & set(found[3])
  assert not {"source 5", "Ｓource 5", "SOURCE  5"} & set(found[5] + found[14])
  # Each distinct text once, in its language.
  assert encoder.batches == [("deu", 14), ("eng", 14)]


def test_of_equally_near_targets_the_first_come_first_and_there_may_be_none():
  same = np.ones([5, 3])
  found = hard_negative_mining.nearest_negatives(same[:2], same, [{0}, {1, 2}], 3)
  assert found.tolist() == [[1, 2, 3], [0, 3, 4]]
  blank = [("", "x"), ("y", "\u200b")]
  codes = ("de", "en")
  assert hard_negative_mining.hard_negatives(QuietEncoder(), blank, 2, languages=codes) == [[], []]
  found = hard_negative_mining.nearest_negatives(same[:3], same[:3], [{1}, set(), {0, 1, 2}], 3)
  assert found.tolist() == [[0, 2, -1], [0, 1, 2], [-1, -1, -1]]


@pytest.fixture
def folder(tmp_path, monkeypatch):
  """A run with two checkpoints, loaded as `QuietEncoder`, and bitext in two folders."""
  for step in (1, 2):
    (tmp_path / "run" / f"checkpoint_{step}" / "state").mkdir(parents=True)

  def load(path, **_):
    encoder = QuietEncoder()
    encoder.path = str(max(pathlib.Path(path).iterdir()))
    encoder.digest = hashlib.sha256(encoder.path.encode()).hexdigest()
    return encoder

  monkeypatch.setattr(loading, "load", load)
  rows = [json.dumps({"de": source, "en": target}) for source, target in PAIRS]
  line_files.write_lines(tmp_path / "a" / "x.de-en.jsonl", rows)
  line_files.write_lines(tmp_path / "b" / "train.fr", ["un", "deux"])
  line_files.write_lines(tmp_path / "b" / "train.en", ["one", "two"])
  return tmp_path


def mine(folder, *options):
  patterns = [str(folder / "a" / "*.jsonl"), str(folder / "b" / "train.en")]
  return cli.main(
    ["data", "mine-negatives", str(folder / "run"), str(folder / "out"), *patterns, *options]
  )


def test_files_hold_every_line_with_its_negatives(folder, capsys):
  assert mine(folder, "--count", "2") == 0
  assert "a/x.de-en.tsv.gz: 32 hard negatives of 18 pairs" in capsys.readouterr().out
  first, second = readers.find_bitext(str(folder / "out" / "*" / "*.tsv.gz"))
  assert first.paths == (str(folder / "out" / "a" / "x.de-en.tsv.gz"),)
  assert (second.source, second.target) == (language("fr"), language("en"))
  expected = [
    (*pair, *found, *[""] * (2 - len(found)))
    for pair, found in zip(PAIRS, brute_force(PAIRS, 2), strict=True)
  ]
  rows = list(readers.read_rows(first, 2))
  assert rows == [tuple(text.replace("\t", " ") for text in row) for row in expected]
  assert list(readers.read_rows(second, 2)) == [
    ("un", "one", "two", ""),
    ("deux", "two", "one", ""),
  ]
  assert list(readers.read_pairs(second)) == [("un", "one"), ("deux", "two")]
  description = json.loads((folder / "out" / derived_files.DESCRIPTION).read_text())
  assert description["count"] == 2
  assert description["encoder"]["name"] == str(folder / "run" / "checkpoint_2")
  assert description["files"]["b/train.fra-eng.tsv.gz"]["negatives"] == 2


def test_finished_files_are_left_alone_until_a_refresh(folder, capsys):
  assert mine(folder) == 0
  paths = [folder / "out" / "a" / "x.de-en.tsv.gz", folder / "out" / "b" / "train.fra-eng.tsv.gz"]
  contents = [path.read_bytes() for path in paths]
  paths[1].unlink()
  os.utime(paths[0], (0, 0))
  assert mine(folder) == 0
  assert [path.read_bytes() for path in paths] == contents
  assert paths[0].stat().st_mtime == 0
  (folder / "run" / "checkpoint_3" / "state").mkdir(parents=True)
  capsys.readouterr()
  assert mine(folder) == 1
  error = capsys.readouterr().err
  assert "checkpoint_2" in error
  assert "--refresh" in error
  assert mine(folder, "--refresh") == 0
  assert paths[0].stat().st_mtime > 0
  assert "checkpoint_3" in (folder / "out" / derived_files.DESCRIPTION).read_text()
  with open(folder / "b" / "train.en", "a", encoding="utf-8") as stream:
    stream.write("three\n")
  capsys.readouterr()
  assert mine(folder) == 1  # the text has changed
  assert "train.en" in capsys.readouterr().err


def test_a_refresh_replaces_only_what_was_made_here(folder, capsys):
  out = folder / "out"
  assert mine(folder) == 0
  path = out / "a" / "x.de-en.tsv.gz"
  content = path.read_bytes()
  again = ["data", "mine-negatives", str(folder / "run"), "--refresh"]

  def refused(place, bitext):
    assert cli.main([*again, str(place), str(bitext)]) == 1
    return capsys.readouterr().err

  assert "is an input and would be replaced" in refused(out, path)
  assert "is an input and would be replaced" in refused(out / "a" / "..", path)
  # After a refresh of one file, the others stay, or are made again if the encoder is another.
  assert cli.main([*again, str(out), str(folder / "a" / "*.jsonl")]) == 0
  assert mine(folder) == 0
  (folder / "run" / "checkpoint_3" / "state").mkdir(parents=True)
  assert cli.main([*again, str(out), str(folder / "a" / "*.jsonl")]) == 0
  stale = out / "b" / "train.fra-eng.tsv.gz"
  os.utime(stale, (0, 0))
  assert mine(folder) == 0
  assert stale.stat().st_mtime > 0
  assert path.read_bytes() == content
  # A failure keeps what is known of the old files.
  description = (out / derived_files.DESCRIPTION).read_bytes()
  (folder / "b" / "train.en").write_text("one\n", encoding="utf-8")
  assert "ends here with 1 lines" in refused(out, folder / "b" / "train.en")
  assert (out / derived_files.DESCRIPTION).read_bytes() == description
  for text in ('{"name": "mine"}', None):
    (out / derived_files.DESCRIPTION).unlink()
    if text:
      (out / derived_files.DESCRIPTION).write_text(text)
    error = refused(out, folder / "a" / "x.de-en.jsonl")
    assert ("not a description of derived files" if text else "is not listed in") in error
  assert path.read_bytes() == content


def test_what_was_finished_before_an_error_stays(folder, capsys):
  (folder / "b" / "train.en").write_text("one\n", encoding="utf-8")
  assert mine(folder) == 1
  assert "train.en:1: ends here with 1 lines" in capsys.readouterr().err
  made = sorted(str(x.relative_to(folder / "out")) for x in (folder / "out").rglob("*.*"))
  assert made == ["a/x.de-en.tsv.gz", "description.json"]
  gzip.decompress((folder / "out" / made[0]).read_bytes())
  assert list(json.loads((folder / "out" / made[1]).read_text())["files"]) == [made[0]]


def test_names_that_would_meet_and_wrong_options_are_refused(folder):
  (folder / "c" / "a").mkdir(parents=True)
  (folder / "c" / "a" / "x.de-en.tsv").write_text("a\tb\n", encoding="utf-8")
  run, out = str(folder / "run"), str(folder / "out")
  patterns = [str(folder / "**" / "x.de-en.*")]
  with pytest.raises(errors.InputError, match=r"would both be made into a.x\.de-en\.tsv\.gz"):
    hard_negative_mining.mine_files(run, patterns, out)
  with pytest.raises(errors.InputError, match="count is 0"):
    hard_negative_mining.mine_files(run, patterns, out, count=0)
  assert hard_negative_mining.mine_files(run, str(folder / "a" / "*.jsonl"), out, count=1)
  with pytest.raises(errors.InputError, match=r"bitext is .*x\.de-en\.jsonl .*, not .*"):
    hard_negative_mining.mine_files(run, str(folder / "c" / "a" / "*.tsv"), out, count=1)


def test_languages_that_are_given_come_into_the_name(folder):
  (folder / "b" / "de-en.v1.tsv").write_text("a\tb\nc\td\n", encoding="utf-8")
  made = hard_negative_mining.mine_files(
    str(folder / "run"),
    str(folder / "b" / "*.tsv"),
    str(folder / "out"),
    languages=("zh-TW", "en"),
  )
  (path,) = made
  assert readers.languages_in_name(path) == (language("zh-TW"), language("en"))


def test_a_bitext_that_changes_while_it_is_read_is_refused(tmp_path):
  path = line_files.write_tsv(tmp_path / "x.de-en.tsv", [("eins", "one")])
  made = []

  def make(bitext, place):
    made.append(pathlib.Path(place))
    made[0].touch()
    path.write_text("zwei\ttwo\n")
    return {"pairs": 1}

  with pytest.raises(errors.InputError, match=r"x\.de-en\.tsv has changed while it was read"):
    derived_files.make_files(
      readers.find_bitext(str(path)),
      str(tmp_path / "out"),
      settings={},
      relative_path=lambda bitext: "out.tsv",
      make=make,
    )
  assert made
  assert not list((tmp_path / "out").iterdir())
