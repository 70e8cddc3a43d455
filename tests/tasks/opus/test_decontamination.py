import gzip

import numpy as np
import pytest

from vmsst import errors
from vmsst.evaluation import evaluation_texts
from vmsst.evaluation.benchmarks import BENCHMARKS
from vmsst.tasks.opus import cleaning
from vmsst.tasks.opus.decontamination import MAX_SETS, EvaluationSentences

TEXTS = [
  ("tatoeba", "Hello, world!"),
  ("tatoeba", "Wo ist Tom?"),
  ("ntrex", "hello world"),
  ("ntrex", "今天天气很好。"),
  ("sts", "…?!"),
]


def sets(held_out, text):
  return held_out.sets(cleaning.sentence_key(text))


@pytest.fixture(scope="module")
def held_out():
  return EvaluationSentences.of(TEXTS)


def test_sets_that_hold_a_sentence(held_out):
  assert sets(held_out, "HELLO WORLD") == ("ntrex", "tatoeba")
  assert sets(held_out, "«Wo ist Tom»") == ("tatoeba",)
  assert sets(held_out, "今天 天气很好") == ("ntrex",)
  for other in ("Hello, worlds!", "Wo ist Tim?", "Hello", "", "?", "…?!"):
    assert sets(held_out, other) == ()
  assert len(held_out) == 3
  assert held_out.counts == {"ntrex": 2, "sts": 0, "tatoeba": 2}


def test_digest_tells_content_not_order(held_out):
  assert EvaluationSentences.of(TEXTS[::-1] + TEXTS[:1]).digest == held_out.digest
  assert EvaluationSentences.of(TEXTS[:-2]).digest != held_out.digest
  renamed = [(name.replace("ntrex", "xtrex"), text) for name, text in TEXTS]
  assert EvaluationSentences.of(renamed).digest != held_out.digest


def test_saved_whole_and_loaded(held_out, tmp_path):
  path = tmp_path / "below" / "held_out.npz"
  held_out.save(path)
  assert [each.name for each in path.parent.iterdir()] == ["held_out.npz"]
  loaded = EvaluationSentences.load(path)
  assert loaded.digest == held_out.digest
  assert sets(loaded, "hello world") == ("ntrex", "tatoeba")
  EvaluationSentences.of([]).save(path)
  assert EvaluationSentences.load(path).sets(0) == ()


def test_pickles_and_other_arrays_are_refused(tmp_path):
  path = tmp_path / "held_out.npz"
  for content in ({"keys": np.array([{}])}, {"keys": np.zeros(2)}, {"other": np.zeros(2)}):
    np.savez(path, names=np.array(["a"]), sets=np.zeros(2, np.uint64), **content)
    with pytest.raises(errors.InputError, match="not a file of evaluation sentences"):
      EvaluationSentences.load(path)


def test_more_sets_than_bits():
  with pytest.raises(ValueError, match="65 sets"):
    EvaluationSentences.of((f"set {i}", "text") for i in range(MAX_SETS + 1))


def test_planted_tatoeba_sentences_are_found_and_training_data_is_not(data_root):
  held_out = EvaluationSentences.of(evaluation_texts.iter_texts([BENCHMARKS["tatoeba"]], data_root))
  with gzip.open(data_root / "tatoeba" / "tatoeba.deu-eng.deu.gz", "rt", encoding="utf-8") as lines:
    german = [line.rstrip("\n") for line in lines]
  for text in german:
    for planted in (text, text.upper(), f" »{text.rstrip('.?!')}« …", text.replace(" ", "  ")):
      assert sets(held_out, planted) == ("tatoeba",), planted
    for near in (f"{text} xyzzy", f"xyzzy {text}", text.replace(" ", " xyzzy ", 1) + "x"):
      assert sets(held_out, near) == (), near
  # As the README of the data says, a few sentences match one of another language, such as Malay.
  with gzip.open(data_root / "bitext_tatoeba" / "ind-eng.tsv.gz", "rt", encoding="utf-8") as lines:
    matches = sum(bool(sets(held_out, text)) for line in lines for text in line.split("\t"))
  assert 0 < matches <= 23
