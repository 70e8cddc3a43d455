import dataclasses
import json

import fake_encoders
import numpy as np
import pytest

from vmsst import errors
from vmsst.evaluation import suite
from vmsst.languages import language

WORDS = ("one", "two", "three", "eins", "zwei", "drei")


def one_hot(word):
  return [word == known for known in WORDS]


def read(root):
  """Returns a task with two sides that share a word with another side, and a large task."""
  if not (root / "words" / "list").is_file():
    raise errors.InputError(f"{root / 'words' / 'list'} is missing")
  sides = (suite.Side("de", WORDS[3:]), suite.Side("en", WORDS[:3]), suite.Side("en", WORDS[1:3]))

  def score(*arrays):
    sizes = {str(number): float(len(x)) for number, x in enumerate(arrays)}
    return [suite.Result("held", ("de", "en"), sizes | {"first": float(arrays[2][0].argmax())})]

  def stream(tools):
    assert "unfinished" in tools.folder.parts
    found = tools.embed(suite.Side("de", ["zwei"]))
    return [suite.Result("streamed", ("de",), {"first": float(found[0].argmax())})]

  return [
    suite.Task("held", sides, score),
    suite.LargeTask("streamed", stream, lambda: ["zwei"]),
  ]


def summarize(results, seen):
  first = {result.name: result.metrics["first"] for result in results}
  known = {} if seen is None else {"seen": float(sum(seen(x.languages) for x in results))}
  return first | known


BENCHMARK = suite.Benchmark(
  name="words",
  title="Words",
  folders=("words",),
  layout="a list",
  source="made here",
  read=read,
  summarize=summarize,
  missing=lambda results: ["more words"],
)
OTHER = suite.Benchmark("none", "None", ("nowhere",), "nothing", "ask", read, summarize)


@pytest.fixture
def root(tmp_path):
  (tmp_path / "data" / "words").mkdir(parents=True)
  (tmp_path / "data" / "words" / "list").touch()
  return tmp_path / "data"


def test_each_text_is_embedded_once_and_results_are_kept(root, tmp_path):
  encoder, lines = fake_encoders.FakeEncoder(one_hot), []
  arguments = ([BENCHMARK, OTHER], root, tmp_path / "out")
  found = suite.evaluate(encoder, *arguments, name="a", report=lines.append)
  assert [sorted(call) for call in encoder.calls] == [sorted(WORDS), ["zwei"]]
  own = found["benchmarks"]["words"]
  assert own["summary"] == {"held": 1.0, "streamed": 4.0}
  assert own["results"][0]["metrics"] == {"0": 3.0, "1": 3.0, "2": 2.0, "first": 1.0}
  assert own["missing"] == ["more words"]
  assert found["absent"]["none"] == f"no folder {root / 'nowhere'} (nothing); ask"
  assert any("none: absent" in line for line in lines)
  assert json.loads((tmp_path / "out" / "results.json").read_text()) == found
  assert suite.evaluate(encoder, *arguments, name="a") == found
  assert len(encoder.calls) == 2


def test_texts_that_several_benchmarks_have_are_embedded_with_the_first(root, tmp_path):
  """Checks that each benchmark scores its own rows, by the position of each word's 1."""

  def benchmark(name, *words):
    def score(vectors_ND):
      places = {w: float(x.argmax()) for w, x in zip(words, vectors_ND, strict=True)}
      return [suite.Result(name, ("de",), places)]

    return dataclasses.replace(
      BENCHMARK,
      name=name,
      read=lambda root: [suite.Task(name, (suite.Side("de", words),), score)],
      summarize=lambda results, seen: results[0].metrics,
    )

  encoder = fake_encoders.FakeEncoder(one_hot)
  benchmarks = [
    benchmark("first", "eins", "one", "zwei"),
    benchmark("second", "drei", "eins"),
    benchmark("third", "two", "zwei", "eins", "two"),
    benchmark("fourth", "eins", "one"),
  ]
  found = suite.evaluate(encoder, benchmarks, root, tmp_path / "out", name="E")["benchmarks"]
  assert encoder.calls == [["eins", "one", "zwei"], ["drei"], ["two"]]
  for each in found.values():
    assert each["summary"] == {word: WORDS.index(word) for word in each["summary"]}


def test_languages_reach_an_encoder_that_asks_for_them(root, tmp_path):
  encoder = fake_encoders.PolyglotEncoder(one_hot)
  seen = {language("eng"), language("deu")}
  found = suite.evaluate(encoder, [BENCHMARK], root, tmp_path / "out", name="a", seen=seen)
  assert encoder.languages == {word: "en" if word in WORDS[:3] else "de" for word in WORDS}
  assert encoder.calls[-1] == ["zwei"]
  assert found["benchmarks"]["words"]["summary"]["seen"] == 2
  assert found["seen"] == ["English", "German"]


def test_another_encoder_s_results_are_not_taken(root, tmp_path):
  suite.evaluate(fake_encoders.FakeEncoder(one_hot), [BENCHMARK], root, tmp_path / "out", name="a")
  with pytest.raises(errors.InputError, match=r"encoder = 'a', not 'b'"):
    suite.evaluate(
      fake_encoders.FakeEncoder(one_hot), [BENCHMARK], root, tmp_path / "out", name="b"
    )


def test_broken_files_are_found_before_anything_is_embedded(root, tmp_path):
  encoder = fake_encoders.FakeEncoder(one_hot)
  (root / "nowhere").mkdir()
  (root / "words" / "list").unlink()
  with pytest.raises(errors.InputError, match="list is missing"):
    suite.evaluate(encoder, [OTHER, BENCHMARK], root, tmp_path / "out", name="a")
  assert not encoder.calls


@pytest.mark.parametrize(
  ("made", "message"),
  [
    (np.zeros((2, 3)), r"\(2, 3\) for 6 texts"),
    (np.zeros(6), r"\(6,\) for 6 texts"),
    (np.where(np.arange(6)[:, None] == 1, np.nan, np.zeros((6, 2))), "not finite"),
  ],
)
def test_vectors_that_cannot_be_scored_are_an_error(root, tmp_path, made, message):
  encoder = fake_encoders.FakeEncoder(one_hot)
  encoder.encode = lambda texts: made
  with pytest.raises(ValueError, match=message):
    suite.evaluate(encoder, [BENCHMARK], root, tmp_path / "out", name="a")
  assert not (tmp_path / "out" / "benchmarks").exists()
