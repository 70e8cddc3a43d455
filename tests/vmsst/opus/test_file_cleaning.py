import collections
import itertools
import pathlib
import pickle
import tempfile

import benchmark_trees
import line_files
import numpy as np
import pytest
from naive_search import Naive

from vmsst import errors
from vmsst.data import readers
from vmsst.io import text_files
from vmsst.opus import cleaning, file_cleaning

GOOD = ("Das Wetter war an diesem Tag sehr schön.", "The weather was very nice on that day.")
ENGLISH = "The children are playing in the garden behind the house."
DROPPED = [
  ("empty", "", GOOD[1]),
  ("encoding", "Gr\ufffdn ist die Farbe", "Green is the color"),
  ("too_long", "lang " * 300, "long " * 300),
  ("copy", "Berlin, Paris, Rom", "Berlin. Paris. Rom"),
  ("ratio", "Nein, mein Freund.", "No " * 40),
  ("script", "123 45", "one two three"),
  ("held_out", "Wo ist der Bahnhof?", "Where is the station?"),
  ("duplicate", GOOD[0].upper(), f"«{GOOD[1]}»"),
  ("language", "Der Hund schläft im Garten hinter dem Haus.", "Le chien dort dans le jardin, là."),
  ("language", ENGLISH, "The kids play in the yard behind the house."),
]


def cleaned(*files, languages=None, held_out=()):
  """Returns the pairs that are kept, and the counts."""
  sentences = cleaning.EvaluationSentences.from_texts(("x", text) for text in held_out)
  bitexts = readers.find_bitext([str(file) for file in files], languages)
  # Worker processes get pickled arguments.
  bitexts, sentences = pickle.loads(pickle.dumps((bitexts, sentences)))
  with tempfile.NamedTemporaryFile() as file:
    counts = file_cleaning.clean(sentences, pathlib.Path(file.name), bitexts)
    return [tuple(line.split("\t")) for line in text_files.read_lines(file.name)], counts


def test_each_step_drops_its_pairs_in_all_files(tmp_path):
  first = line_files.write_tsv(tmp_path / "a.de-en.tsv", [(f" {GOOD[0]}", GOOD[1])])
  second = line_files.write_tsv(
    tmp_path / "b.de-en.tsv.gz", [pair for _, *pair in DROPPED] + [("Ja", "Yes")]
  )
  pairs, counts = cleaned(first, second, held_out=["where is the station"])
  assert pairs == [GOOD, ("Ja", "Yes")]  # Short texts are in no language for sure.
  assert counts == collections.Counter(reason for reason, *_ in DROPPED) | {"read": 12, "kept": 2}


def test_languages_that_are_not_known_pass(tmp_path):
  pairs = [(ENGLISH, GOOD[0]), ("今天天气很好。", "The weather is nice.")]
  bitext = line_files.write_tsv(tmp_path / "pairs.tsv", pairs)
  for languages in (("und", "und"), ("cha", "und")):
    assert cleaned(bitext, languages=languages)[0][:1] == pairs[:1]
  assert cleaned(bitext, languages=("und", "und"))[0] == pairs
  records = tmp_path / "pairs.jsonl"
  line_files.write_lines(records, [f'{{"anchor": "{ENGLISH}", "positive": "{GOOD[0]}"}}'])
  assert cleaned(records, languages=("und", "und"))[0] == pairs[:1]


def test_few_real_pairs_are_in_other_languages(data_root):
  files = [data_root / "bitext_news" / f"{code}-eng.tsv.gz" for code in ("ces", "jpn", "kaz")]
  for file in files:
    counts = cleaned(file)[1]
    assert counts["language"] <= 0.002 * counts["read"]
  # Most of these pairs are Slovak, as the README of the data says.
  counts = cleaned(data_root / "bitext_tatoeba" / "slv-eng.tsv.gz")[1]
  assert counts["language"] > 0.5 * counts["read"]


def test_held_out_sentences_are_of_files_and_evaluation_sets(tmp_path):
  root = benchmark_trees.write(tmp_path / "data")
  text = line_files.write_lines(tmp_path / "test.txt", ["Wo ist Tom?"])
  table = line_files.write_tsv(tmp_path / "test.tsv", [("Ein Test.", "A test.")])
  sentences = file_cleaning.held_out_sentences([str(root), str(text), str(table)])
  for sentence in ("wo ist tom", "ein test", "A TEST", "first 2"):
    assert sentences.sets(cleaning.sentence_key(sentence))
  assert not sentences.sets(cleaning.sentence_key("Wo ist Tim?"))


def test_further_columns_are_not_lost(tmp_path):
  bitext = line_files.write_tsv(tmp_path / "a.de-en.tsv", [(*GOOD, "a hard negative")])
  with pytest.raises(errors.InputError, match=r"a\.de-en\.tsv:1: extra columns after the pair"):
    cleaned(bitext)
  scored = line_files.write_tsv(tmp_path / "b.de-en.tsv", [(1.25, *GOOD)])
  assert cleaned(scored)[0] == [GOOD]  # as `vmsst mine` writes it


@pytest.mark.parametrize(("min_cosine", "min_margin"), [(0.4, None), (None, 1.2), (0.4, 1.2)])
def test_scores_equal_simple_loops(tmp_path, min_cosine, min_margin):
  rng = np.random.default_rng(0)
  distinct_ND = rng.normal(size=[9, 4])
  distinct_MD = distinct_ND + 0.5 * rng.normal(size=[9, 4])
  # Sentences repeat on both sides, but no pair does.
  rows = [*itertools.product(range(3), range(3)), *((i, i) for i in range(3, 9))]
  path = line_files.write_tsv(tmp_path / "x.tsv", [(f"s {i}", f"t {j}") for i, j in rows])
  vectors = [distinct_ND[[i for i, _ in rows]], distinct_MD[[j for _, j in rows]]]
  output = tmp_path / "y.tsv"
  counts = file_cleaning.drop_low_scores(output, str(path), vectors, min_cosine, min_margin)
  naive = Naive(distinct_ND, distinct_MD, 4, "ratio")
  low = [min_cosine is not None and naive.cosine[pair] < min_cosine for pair in rows]
  expected = [
    pair
    for pair, is_low in zip(rows, low, strict=True)
    if not is_low and (min_margin is None or naive.score(*pair) >= min_margin)
  ]
  assert output.read_text().splitlines() == [f"s {i}\tt {j}" for i, j in expected]
  assert 0 < len(expected) < len(rows)
  assert counts == {
    "kept": len(expected),
    "low_cosine": sum(low),
    "low_margin": len(rows) - sum(low) - len(expected),
  }
