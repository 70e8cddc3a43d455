"""Evaluation of vectors that are cut to their first dimensions."""

import collections
import itertools

import benchmark_trees
import fake_encoders
import numpy as np
import pytest
import toy_units

from vmsst import errors
from vmsst.evaluation import benchmarks, suite
from vmsst.evaluation.benchmarks import knowledge_search
from vmsst.vectors import text_embedding

TRAINED = ("mldoc", "cls", "amazon", "sib200", "nusax")  # Their classifiers need more data.
NAMES = [name for name in benchmarks.BENCHMARKS if name not in TRAINED]
LARGE = ("bucc", "paracrawl", "questions")


@pytest.fixture(scope="module")
def root(tmp_path_factory):
  """Data of all benchmarks."""
  return benchmark_trees.write(tmp_path_factory.mktemp("data"))


def random_encoder(width=6):
  return fake_encoders.FakeEncoder(lambda text: fake_encoders.random_vector(text)[:width])


def evaluate(encoder, root, output, names=NAMES, **options):
  """Returns the results of benchmarks by name."""
  chosen = benchmarks.get_benchmarks(names)
  found = suite.evaluate(encoder, chosen, root, output, name="E", **options)
  assert not found["failed"]
  return found["benchmarks"]


def of_sizes(found):
  return {cut["dimension"]: cut["summary"] for cut in found["dimensions"]}


def embedded(encoder):
  """Returns how often each text was embedded."""
  return collections.Counter(itertools.chain.from_iterable(encoder.calls))


def test_scores_of_cut_vectors_are_those_of_narrower_encoders(root, tmp_path):
  whole, encoder = random_encoder(), random_encoder()
  expected = evaluate(whole, root, tmp_path / "whole")
  found = evaluate(encoder, root, tmp_path / "out", dimensions=[4, 3])
  assert not (tmp_path / "out" / ".vmsst").exists()
  narrow = {size: evaluate(random_encoder(size), root, tmp_path / str(size)) for size in (3, 4)}
  for name, own in found.items():
    assert own["results"] == expected[name]["results"]
    assert list(of_sizes(own)) == [3, 4, 6]
    assert of_sizes(own)[6] == expected[name]["summary"]
    for size, each in narrow.items():
      assert of_sizes(own)[size] == pytest.approx(each[name]["summary"], abs=1e-4), (name, size)
  # Large tasks share vectors only if these are kept for several numbers of dimensions.
  assert set(embedded(encoder)) == set(embedded(whole))
  assert not embedded(encoder) - embedded(whole)


def test_accuracy_of_cut_vectors_by_hand(root, tmp_path):
  found = evaluate(random_encoder(), root, tmp_path / "out", ["tatoeba"], dimensions=[2])
  sides = [[f"{word} {n}" for n in range(5)] for word in ("ja", "yes")]
  unit = []
  for side in sides:
    cut_N2 = np.array([fake_encoders.random_vector(text)[:2] for text in side])
    unit.append(cut_N2 / np.sqrt((cut_N2**2).sum(axis=1, keepdims=True)))
  score_NN = unit[0] @ unit[1].T
  right = [np.mean(score_NN.argmax(axis=axis) == np.arange(5)) for axis in (0, 1)]
  assert of_sizes(found["tatoeba"])[2]["average (incomplete)"] == pytest.approx(
    100 * np.mean(right)
  )


def load_encoder():
  return "E", random_encoder()


def test_other_processes_find_the_same(root, tmp_path, monkeypatch):
  monkeypatch.setattr(knowledge_search, "SHARD", 2)
  monkeypatch.setattr(text_embedding, "WINDOW", 3)
  expected = evaluate(random_encoder(), root, tmp_path / "here", LARGE, dimensions=[2, 4])
  engine, encoder = toy_units.Pickling(), random_encoder()
  options = {"dimensions": [2, 4], "engine": engine, "load": load_encoder}
  there = evaluate(encoder, root, tmp_path / "there", LARGE, **options)
  assert engine.done
  assert not encoder.calls
  for name, own in expected.items():
    assert there[name]["dimensions"] == own["dimensions"]


def test_further_dimensions_are_evaluated_and_fewer_are_not(root, tmp_path):
  def run(*sizes):
    encoder = random_encoder()
    found = evaluate(encoder, root, tmp_path / "out", ["tatoeba"], dimensions=sizes)
    return bool(encoder.calls), list(of_sizes(found["tatoeba"]))

  assert run(2, 4) == (True, [2, 4, 6])
  assert run(4) == (False, [2, 4, 6])
  assert run() == (False, [2, 4, 6])
  assert run(3, 6) == (True, [3, 6])


def test_dimensions_that_vectors_do_not_have_are_an_error(root, tmp_path):
  for sizes, message in (([2, 7], "dimensions is 7: .* give 1 to 6"), ([0], "dimensions is 0")):
    with pytest.raises(errors.InputError, match=message):
      evaluate(random_encoder(), root, tmp_path / "out", dimensions=sizes)
  encoder = random_encoder()
  encoder.dimension = 6
  with pytest.raises(errors.InputError, match="dimensions is 7"):
    evaluate(encoder, root, tmp_path / "out", dimensions=[7])
  assert not encoder.calls
  assert not (tmp_path / "out").exists()


def test_a_failure_names_the_number_of_dimensions(root, tmp_path):
  encoder = fake_encoders.FakeEncoder(lambda text: [1.0, *fake_encoders.random_vector(text)])
  (chosen,) = benchmarks.get_benchmarks(["stsb"])
  with pytest.raises(errors.InputError, match="stsb: of the first 1 dimensions: no correlations"):
    suite.evaluate(encoder, [chosen], root, tmp_path / "out", name="E", dimensions=[1])
  found = suite.evaluate(encoder, [chosen], root, tmp_path / "out", name="E")
  assert "dimensions" not in found["benchmarks"]["stsb"]
