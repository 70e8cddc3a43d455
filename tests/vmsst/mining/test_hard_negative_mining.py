import json
import unicodedata

import fake_encoders
import line_files
import numpy as np
import pytest

from vmsst.data import readers
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


def test_files_have_every_line_with_its_negatives(tmp_path):
  rows = [json.dumps({"de": source, "en": target}) for source, target in PAIRS]
  path = line_files.write_lines(tmp_path / "x.de-en.jsonl", rows)
  (bitext,) = readers.find_bitext(str(path))
  output = tmp_path / hard_negative_mining.file_name(bitext)
  output.parent.mkdir()
  facts = hard_negative_mining.write_negatives(QuietEncoder(), bitext, output, count=2)
  assert facts == {"pairs": 18, "negatives": 32}
  (mined,) = readers.find_bitext(str(output))
  assert [row.texts for row in readers.read_rows(mined, 2)] == [
    tuple(text.replace("\t", " ") for text in (*pair, *negatives, *[""] * (2 - len(negatives))))
    for pair, negatives in zip(PAIRS, brute_force(PAIRS, 2), strict=True)
  ]


def test_names_have_the_folder_and_the_languages():
  for path, languages, name in (
    ("/a/x.de-en.jsonl.gz", None, "a/x.de-en.tsv.gz"),
    ("/b/de-en.v1.tsv", ("zh-TW", "en"), "b/de_en_v1.cmn_Hant-eng.tsv.gz"),
    ("/c/train.fr", ("fr", "en"), "c/train.fra-eng.tsv.gz"),
  ):
    pair = tuple(map(language, languages or ("de", "en")))
    assert hard_negative_mining.file_name(readers.BitextFile((path,), "tsv", *pair)) == name
