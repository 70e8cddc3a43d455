import collections

import benchmark_trees
import pytest

from vmsst import errors
from vmsst.evaluation import evaluation_texts
from vmsst.evaluation.benchmarks import BENCHMARKS


def texts_of(root):
  texts = collections.defaultdict(set)
  for name, text in evaluation_texts.iter_texts(BENCHMARKS.values(), root):
    texts[name].add(text)
  return texts


def test_only_texts_that_are_scored_or_looked_up_come_and_documents_come_by_sentence(tmp_path):
  found = texts_of(benchmark_trees.write(tmp_path))
  assert found["tatoeba"] == {f"{word} {n}" for word in ("ja", "yes") for n in range(5)}
  assert found["sib200"] == {f"{split} {n}" for split in ("dev", "test") for n in range(4)}
  assert found["mldoc"] == {"It is dev.", "It is test.", "This is english.", "This is german."}
  assert found["paracrawl"] == {f"{word} {n}" for word in ("a", "ein") for n in range(5)}
  # Not those of the knowledge base.
  assert found["questions"] == {f"{word} {n}" for word in ("who", "where", "wo") for n in range(3)}


def test_a_folder_without_evaluation_sets_is_an_error(tmp_path):
  with pytest.raises(errors.InputError, match="has no evaluation set: give the data folder of"):
    texts_of(tmp_path)
