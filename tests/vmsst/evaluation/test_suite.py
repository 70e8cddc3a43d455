import dataclasses

import benchmark_trees
import fake_encoders
import numpy as np
import pytest

from vmsst import errors
from vmsst.evaluation import benchmarks, results_files, suite
from vmsst.languages import language

WORDS = ("one", "two", "three", "eins", "zwei", "drei")


def one_hot(word):
  return [word == known for known in WORDS]


def read(root):
  """Returns a task with two sides that share a word with another side, and a large task."""
  sides = (suite.Side("de", WORDS[3:]), suite.Side("en", WORDS[:3]), suite.Side("en", WORDS[1:3]))

  def score(*arrays):
    sizes = {str(number): float(len(x)) for number, x in enumerate(arrays)}
    return [suite.Result("held", ("de", "en"), sizes | {"first": float(arrays[2][0].argmax())})]

  def first(vectors_ND):
    return [suite.Result("large", ("de",), {"first": float(vectors_ND[0].argmax())})]

  return [
    suite.Task("held", sides, score),
    suite.Task("large", (suite.Side("de", ["zwei"]),), first, large=True),
  ]


def averages(results, seen, complete):
  assert not complete
  first = {result.name: result.metrics["first"] for result in results}
  known = {} if seen is None else {"seen": float(sum(seen(x.languages) for x in results))}
  return first | known


BENCHMARK = suite.Benchmark(
  name="words",
  title="Words",
  files=suite.Files(("words",), "a list"),
  read=read,
  averages=averages,
  sets=["held", "more words", language("de"), language("fr")],
)
OTHER = dataclasses.replace(BENCHMARK, name="none", files=suite.Files(("nowhere",), "nothing"))


@pytest.fixture
def root(tmp_path):
  (tmp_path / "data" / "words").mkdir(parents=True)
  (tmp_path / "data" / "words" / "list").touch()
  return tmp_path / "data"


def test_each_text_is_embedded_once_and_nothing_is_written(root, tmp_path):
  encoder, lines = fake_encoders.PolyglotEncoder(one_hot), []
  options = {"name": "a", "report": lines.append, "seen": {language("eng"), language("deu")}}
  found = suite.evaluate(encoder, [BENCHMARK, OTHER], root, **options)
  assert encoder.languages == {word: "en" if word in WORDS[:3] else "de" for word in WORDS}
  assert [sorted(call) for call in encoder.calls] == [sorted(WORDS)]
  own = found["benchmarks"]["words"]
  assert own["summary"] == {"held": 1.0, "large": 4.0, "seen": 2.0}
  assert own["results"][0]["metrics"] == {"0": 3.0, "1": 3.0, "2": 2.0, "first": 1.0}
  assert own["missing"] == ["more words", "French"]
  assert found["absent"] == {"none": f"no folder {root / 'nowhere'} (nothing)"}
  assert (found["encoder"], found["seen"]) == ({"name": "a"}, ["English", "German"])
  assert lines[-1].startswith("words: finished in ")
  assert [path.name for path in tmp_path.rglob("*")] == ["data", "words", "list"]
  with pytest.raises(errors.InputError, match=r"no benchmark has data .*none is absent: no folder"):
    suite.evaluate(encoder, [OTHER], root)


def test_a_benchmark_that_fails_does_not_stop_the_others(root):
  def named(name, error=None, **changes):
    def score(vectors_ND):
      if error:
        raise error
      return [suite.Result(name, ("en",), {"first": float(vectors_ND[0].argmax())})]

    task = suite.Task(name, (suite.Side("en", [name]),), score)
    return dataclasses.replace(BENCHMARK, name=name, read=lambda root: [task], **changes)

  def huge(word):
    return [1e300 if word == "two" else 1.0]

  for bad, vector_of, reason in (
    (named("two", ValueError("all values\nare 1")), one_hot, "all values are 1"),
    (named("two", averages=lambda *of: {"x": np.nan}), one_hot, "x of summary is not a finite"),
    (named("two"), huge, "vector of 'two' contains a value that is not finite"),
  ):
    lines, encoder = [], fake_encoders.FakeEncoder(vector_of)
    found = suite.evaluate(encoder, [bad, named("one")], root, report=lines.append)
    assert list(found["failed"]) == ["two"]
    assert reason in found["failed"]["two"]
    assert list(found["benchmarks"]) == ["one"]
    assert f"two: failed: {found['failed']['two']}" in lines
  with pytest.raises(ZeroDivisionError):  # a bug, not a property of the encoder or data
    suite.evaluate(encoder, [named("one", ZeroDivisionError())], root)


def test_averages_are_listed_as_markdown():
  results = {"benchmarks": {"tatoeba": {"title": "<b>*T*", "summary": {"average": 75}}}}
  assert results_files.markdown(results) == r"- \<b\>\*T\*, average: 75.00"


def test_all_files_that_a_benchmark_reads_are_part_of_its_digest(root, tmp_path):
  more, elsewhere = root / "more", tmp_path / "elsewhere"
  more.mkdir()
  elsewhere.mkdir()
  (root / "words" / "loop").symlink_to(root / "words")
  (root / "words" / "linked").symlink_to(elsewhere)
  files = dataclasses.replace(BENCHMARK.files, more=("more/*.txt",))
  digest = files.digest(root)
  for path, changes in (
    (root / "words" / "list", True),
    (root / "words" / ".hidden", False),
    (elsewhere / "new", True),
    (more / "x.tsv", False),
    (more / "x.txt", True),
  ):
    path.write_text("changed")
    before, digest = digest, files.digest(root)
    assert (digest != before) == changes, path


# --------------------------------------------------------------------------------------------
# Vectors that are cut to their first dimensions

TRAINED = ("mldoc", "cls", "sib200")  # Their classifiers need more data.


def test_scores_of_cut_vectors_are_those_of_narrower_encoders(tmp_path):
  root = benchmark_trees.write(tmp_path)
  chosen = benchmarks.get_benchmarks(x for x in benchmarks.BENCHMARKS if x not in TRAINED)

  def evaluate(width, **options):
    encoder = fake_encoders.FakeEncoder(lambda text: fake_encoders.random_vector(text)[:width])
    found = suite.evaluate(encoder, chosen, root, **options)
    assert not found["failed"]
    return encoder, found["benchmarks"]

  (whole, expected), (encoder, found) = evaluate(6), evaluate(6, dimensions=[4, 3])
  narrow = {size: evaluate(size)[1] for size in (3, 4)}
  for name, own in found.items():
    assert own["results"] == expected[name]["results"]
    cuts = {cut["dimension"]: cut["summary"] for cut in own["dimensions"]}
    assert list(cuts) == [3, 4, 6]
    assert cuts[6] == own["summary"] == expected[name]["summary"]
    for size, each in narrow.items():
      assert cuts[size] == pytest.approx(each[name]["summary"], abs=1e-4), (name, size)
  assert encoder.calls == whole.calls
  found = suite.evaluate(encoder, chosen[:2], root, dimensions=[7])
  assert set(found["failed"].values()) == {
    "dimensions is 7: the encoder's vectors have 6; give 1 to 6"
  }
  encoder.dimension = 6
  with pytest.raises(errors.InputError, match="dimensions is 7"):
    suite.evaluate(encoder, chosen, root, dimensions=[7])
