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
  return [word == x for x in WORDS]


def read(root):
  """Returns a small task with repeated words, and a large task with a word of the small task."""
  text_sets = (
    suite.TextSet("de", WORDS[3:]),
    suite.TextSet("en", WORDS[:3]),
    suite.TextSet("en", WORDS[1:3]),
  )

  def score(*arrays):
    sizes = {str(number): float(len(x)) for number, x in enumerate(arrays)}
    return [suite.Result("held", ("de", "en"), sizes | {"first": float(arrays[2][0].argmax())})]

  def first(vectors_ND):
    return [suite.Result("large", ("de",), {"first": float(vectors_ND[0].argmax())})]

  return [
    suite.Task("held", text_sets, score),
    suite.Task("large", (suite.TextSet("de", ["zwei"]),), first, large=True),
  ]


def averages(results, seen, complete):
  assert not complete
  first = {result.name: result.metrics["first"] for result in results}
  count = {} if seen is None else {"seen": float(sum(seen(x.languages) for x in results))}
  return first | count


BENCHMARK = suite.Benchmark(
  name="words",
  title="Words",
  files=suite.Files(("words",), "a list"),
  read=read,
  averages=averages,
  sets=["held", "more words", language("de"), language("fr")],
)
ABSENT = dataclasses.replace(BENCHMARK, name="none", files=suite.Files(("nowhere",), "nothing"))


@pytest.fixture
def root(tmp_path):
  (tmp_path / "data" / "words").mkdir(parents=True)
  (tmp_path / "data" / "words" / "list").touch()
  return tmp_path / "data"


def test_each_text_is_embedded_once_and_nothing_is_written(root, tmp_path):
  encoder, lines = fake_encoders.PolyglotEncoder(one_hot), []
  options = {"name": "a", "report": lines.append, "seen": {language("eng"), language("deu")}}
  results = suite.evaluate(encoder, [BENCHMARK, ABSENT], root, **options)
  assert encoder.languages == {word: "en" if word in WORDS[:3] else "de" for word in WORDS}
  assert [sorted(call) for call in encoder.calls] == [sorted(WORDS)]
  words = results["benchmarks"]["words"]
  assert words["summary"] == {"held": 1.0, "large": 4.0, "seen": 2.0}
  assert words["results"][0]["metrics"] == {"0": 3.0, "1": 3.0, "2": 2.0, "first": 1.0}
  assert words["missing"] == ["more words", "French"]
  assert results["absent"] == {"none": f"no folder {root / 'nowhere'} (expected files: nothing)"}
  assert (results["encoder"], results["seen"]) == ({"name": "a"}, ["English", "German"])
  assert lines[-1].startswith("words: finished in ")
  assert [path.name for path in tmp_path.rglob("*")] == ["data", "words", "list"]
  with pytest.raises(errors.InputError, match=r"no benchmark has data .*none is absent: no folder"):
    suite.evaluate(encoder, [ABSENT], root)


def test_a_benchmark_that_fails_does_not_stop_the_others(root):
  def benchmark(name, error=None, **changes):
    def score(vectors_ND):
      if error:
        raise error
      return [suite.Result(name, ("en",), {"first": float(vectors_ND[0].argmax())})]

    task = suite.Task(name, (suite.TextSet("en", [name]),), score)
    return dataclasses.replace(BENCHMARK, name=name, read=lambda root: [task], **changes)

  def huge(word):
    return [1e300 if word == "two" else 1.0]

  for bad, vector_of, reason in (
    (benchmark("two", ValueError("all values\nare 1")), one_hot, "all values are 1"),
    (
      benchmark("two", averages=lambda *of: {"x": np.nan}),
      one_hot,
      "x of summary is nan, not a finite",
    ),
    (benchmark("two"), huge, "vector for 'two' contains a value that is not finite"),
  ):
    lines, encoder = [], fake_encoders.FakeEncoder(vector_of)
    results = suite.evaluate(encoder, [bad, benchmark("one")], root, report=lines.append)
    assert list(results["failed"]) == ["two"]
    assert reason in results["failed"]["two"]
    assert list(results["benchmarks"]) == ["one"]
    assert f"two: failed: {results['failed']['two']}" in lines
  with pytest.raises(ZeroDivisionError):  # Other exceptions are bugs, and stop the evaluation.
    suite.evaluate(encoder, [benchmark("one", ZeroDivisionError())], root)


def test_averages_are_listed_as_markdown():
  results = {"benchmarks": {"tatoeba": {"title": "<b>*T*", "summary": {"average": 75}}}}
  assert results_files.markdown(results) == r"- \<b\>\*T\*, average: 75.00"


def test_all_files_that_a_benchmark_reads_are_part_of_its_digest(root, tmp_path):
  optional, elsewhere = root / "more", tmp_path / "elsewhere"
  optional.mkdir()
  elsewhere.mkdir()
  (root / "words" / "loop").symlink_to(root / "words")
  (root / "words" / "linked").symlink_to(elsewhere)
  files = dataclasses.replace(BENCHMARK.files, optional=("more/*.txt",))
  digest = files.digest(root)
  for path, changes in (
    (root / "words" / "list", True),
    (root / "words" / ".hidden", False),
    (elsewhere / "new", True),
    (optional / "x.tsv", False),
    (optional / "x.txt", True),
  ):
    path.write_text("changed")
    before, digest = digest, files.digest(root)
    assert (digest != before) == changes, path


# --------------------------------------------------------------------------------------------
# Truncated vectors

# These need more data than the test has, to train classifiers.
TRAINED = ("mldoc", "cls", "sib200")


def test_truncated_vectors_have_the_scores_of_narrower_encoders(tmp_path):
  root = benchmark_trees.write(tmp_path)
  untrained = benchmarks.get_benchmarks(x for x in benchmarks.BENCHMARKS if x not in TRAINED)

  def evaluate(width, **options):
    encoder = fake_encoders.FakeEncoder(lambda text: fake_encoders.random_vector(text)[:width])
    results = suite.evaluate(encoder, untrained, root, **options)
    assert not results["failed"]
    return encoder, results["benchmarks"]

  (full_encoder, expected), (encoder, results) = evaluate(6), evaluate(6, dimensions=[4, 3])
  narrow = {size: evaluate(size)[1] for size in (3, 4)}
  for name, scored in results.items():
    assert scored["results"] == expected[name]["results"]
    cuts = {cut["dimension"]: cut["summary"] for cut in scored["dimensions"]}
    assert list(cuts) == [3, 4, 6]
    assert cuts[6] == scored["summary"] == expected[name]["summary"]
    for size, narrow_results in narrow.items():
      assert cuts[size] == pytest.approx(narrow_results[name]["summary"], abs=1e-4), (name, size)
  assert encoder.calls == full_encoder.calls
  results = suite.evaluate(encoder, untrained[:2], root, dimensions=[7])
  assert set(results["failed"].values()) == {
    "dimensions is 7, but the encoder's vectors have only 6; choose 1 to 6"
  }
  encoder.dimension = 6
  with pytest.raises(errors.InputError, match="dimensions is 7"):
    suite.evaluate(encoder, untrained, root, dimensions=[7])
