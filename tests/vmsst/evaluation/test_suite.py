import collections
import dataclasses
import functools
import itertools
import json
import shutil
import types

import benchmark_trees
import fake_encoders
import line_files
import memory_store
import numpy as np
import pytest
import toy_units

from vmsst import errors, storage
from vmsst.encoder import encoding
from vmsst.evaluation import benchmarks, suite
from vmsst.evaluation.benchmarks import knowledge_search
from vmsst.io import input_files
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
    assert ".vmsst" in tools.folder.parts
    found = tools.embed(suite.Side("de", ["zwei"]))
    return [suite.Result("streamed", ("de",), {"first": float(found[0].argmax())})]

  return [
    suite.Task("held", sides, score),
    suite.LargeTask("streamed", stream, lambda: ["zwei"]),
  ]


def averages(results, seen, complete):
  assert not complete
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
  averages=averages,
  sets=["held", "more words"],
)
OTHER = suite.Benchmark("none", "None", ("nowhere",), "nothing", "ask", read, averages)


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
      averages=lambda results, seen, complete: results[0].metrics,
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


def digested(digest, vector_of=one_hot):
  encoder = fake_encoders.FakeEncoder(vector_of)
  encoder.digest = digest
  return encoder


def test_an_encoder_is_identified_by_its_digest_if_it_has_one(root, tmp_path):
  evaluate = functools.partial(suite.evaluate, output=tmp_path / "out")
  found = evaluate(digested("1" * 64), [BENCHMARK], root, name="a")
  assert found["encoder"] == {"name": "a", "digest": "1" * 64}
  moved = digested("1" * 64)
  assert evaluate(moved, [BENCHMARK], root, name="moved")["benchmarks"] == found["benchmarks"]
  assert not moved.calls
  with pytest.raises(errors.InputError, match=r"encoder is a \(1{12}\), not a \(2{12}\); give"):
    evaluate(digested("2" * 64), [BENCHMARK], root, name="a")


def test_a_benchmark_with_other_data_or_options_is_evaluated_again(root, tmp_path):
  lines = []
  encoder = fake_encoders.FakeEncoder(one_hot)
  words, more, elsewhere = root / "words", root / "more", tmp_path / "elsewhere"
  more.mkdir()
  elsewhere.mkdir()
  (words / "loop").symlink_to(words)
  (words / "linked").symlink_to(elsewhere)

  def evaluate(choice="a", read=read):
    chosen = dataclasses.replace(
      BENCHMARK, more_files=("more/*.txt",), options={"choice": choice}, read=read
    )
    before = len(encoder.calls)
    found = suite.evaluate(encoder, [chosen], root, tmp_path / "out", name="a", report=lines.append)
    return found["benchmarks"]["words"], len(encoder.calls) > before

  first, _ = evaluate()
  assert evaluate() == (first, False)
  assert lines[-1] == "words: finished before"
  for path, again in (
    (words / "list", True),
    (words / ".hidden", False),
    (elsewhere / "new", True),
    (more / "x.tsv", False),
    (more / "x.txt", True),
  ):
    path.write_text("changed")
    second, was_again = evaluate()
    assert was_again == again, path
  assert "words: reading; it was finished with other data and is evaluated again" in lines
  assert first["data"]["name"] == second["data"]["name"] == str(root)
  assert first["data"]["digest"] != second["data"]["digest"]
  second, again = evaluate("b")
  assert (second["options"], again) == ({"choice": "b"}, True)
  shutil.rmtree(words)
  assert evaluate("b") == (second, False)
  assert "words: finished before; its data is no longer present: no folder" in lines[-1]
  words.mkdir()
  assert evaluate("b", lambda root: []) == (second, False)
  assert "its data is no longer present: no file of it in" in lines[-1]


def named(name, error=None):
  """Returns a benchmark of one word that raises an error when it is scored."""

  def score(vectors_ND):
    if error:
      raise error
    return [suite.Result(name, ("en",), {"first": float(vectors_ND[0].argmax())})]

  return dataclasses.replace(
    BENCHMARK, name=name, read=lambda root: [suite.Task(name, (suite.Side("en", [name]),), score)]
  )


def test_a_benchmark_that_fails_does_not_stop_the_others(root, tmp_path):
  lines = []
  bad = named("one", ValueError("all values\nare 1"))
  arguments = ([bad, named("two")], root, tmp_path / "out")
  encoder = fake_encoders.FakeEncoder(one_hot)
  found = suite.evaluate(encoder, *arguments, name="a", report=lines.append)
  assert found["failed"] == {"one": "all values are 1"}
  assert list(found["benchmarks"]) == ["two"]
  assert "one: failed: all values are 1" in lines
  assert f"{'one':24}failed: all values are 1" in suite.format_table(found)
  assert json.loads((tmp_path / "out" / "results.json").read_text()) == found
  found = suite.evaluate(encoder, [named("one"), named("two")], *arguments[1:], name="a")
  assert (found["failed"], list(found["benchmarks"])) == ({}, ["one", "two"])
  bad = dataclasses.replace(named("one"), averages=lambda *of: {"average": np.nan})
  found = suite.evaluate(encoder, [bad, named("two")], root, tmp_path / "nan", name="a")
  assert found["failed"] == {"one": "average of summary is not a finite number but nan"}
  with pytest.raises(ZeroDivisionError):  # a bug, not a property of the encoder or data
    suite.evaluate(encoder, [named("three", ZeroDivisionError())], *arguments[1:], name="a")


def test_nothing_is_written_before_the_first_result(root, tmp_path):
  out = tmp_path / "deep" / "out"
  encoder = fake_encoders.FakeEncoder(one_hot)
  with pytest.raises(errors.InputError, match="no benchmark could be evaluated: one: no score"):
    suite.evaluate(encoder, [named("one", ValueError("no score"))], root, out, name="a")
  encoder.fail_at = 1
  with pytest.raises(KeyboardInterrupt):
    suite.evaluate(encoder, [named("one")], root, out, name="a")
  (root / "words" / "list").unlink()
  with pytest.raises(errors.InputError, match="list is missing"):
    suite.evaluate(encoder, [BENCHMARK], root, out, name="a")
  assert not out.parent.exists()
  suite.evaluate(encoder, [named("two")], root, out, name="another")


def test_interrupted_work_of_another_encoder_is_not_resumed(root, tmp_path):
  folders = []

  def benchmark(fail):
    def measure(tools):
      folders.append(tools.folder)
      if fail:
        raise KeyboardInterrupt
      return [suite.Result("x", ("en",), {"first": 1.0})]

    tasks = [suite.LargeTask("large", measure, lambda: [])]
    return dataclasses.replace(BENCHMARK, read=lambda root: tasks)

  for digest, text in (("1", ""), ("2", ""), ("1", ""), ("1", "changed")):
    (root / "words" / "list").write_text(text)
    with pytest.raises(KeyboardInterrupt):
      suite.evaluate(digested(digest), [benchmark(True)], root, tmp_path / "out", name="a")
  assert folders[0] == folders[2]
  assert len(set(folders)) == 3
  folders[0].mkdir(parents=True)
  suite.evaluate(digested("1"), [benchmark(False)], root, tmp_path / "out", name="a")
  assert not (tmp_path / "out" / ".vmsst").exists()


@pytest.mark.parametrize("moment", ["it is read", "a large task runs"])
def test_results_of_a_file_that_changes_after_its_digest_are_not_stored(root, tmp_path, moment):
  moments = [moment]

  def change(now):
    if now in moments:
      moments.remove(now)
      (root / "words" / "list").write_text("changed")

  def measure(tools):
    change("a large task runs")
    return [suite.Result("x", ("en",), {"first": 1.0})]

  def read_large(root):
    change("it is read")
    return [suite.LargeTask("large", measure, lambda: [])]

  large = dataclasses.replace(BENCHMARK, read=read_large)
  arguments = fake_encoders.FakeEncoder(one_hot), [large], root, tmp_path / "out"
  with pytest.raises(errors.InputError, match=r"words: its files have changed .*; rerun"):
    suite.evaluate(*arguments, name="a")
  assert not storage.names(tmp_path / "out" / "benchmarks")
  assert suite.evaluate(*arguments, name="a")["benchmarks"]["words"]["summary"] == {"x": 1.0}


def test_a_store_gets_the_results_of_a_local_folder(root, tmp_path, monkeypatch):
  store = memory_store.installed(monkeypatch)
  folders = []

  def measure(tools):
    folders.append(tools.folder)
    tools.folder.mkdir(parents=True, exist_ok=True)
    return [suite.Result("large", ("en",), {"first": float(tools.embed(side)[0].argmax())})]

  side = suite.Side("en", ["two"])
  large = [suite.LargeTask("large", measure, lambda: side.texts)]
  both = [named("one"), dataclasses.replace(BENCHMARK, name="large", read=lambda root: large)]
  contents = []
  for output in ("gs://bucket/out", tmp_path / "out"):
    encoder = fake_encoders.FakeEncoder(one_hot, fail_at=1)
    with pytest.raises(KeyboardInterrupt):
      suite.evaluate(encoder, both, root, output, name="a")
    assert storage.names(f"{output}/benchmarks") == {"one.json"}
    found = suite.evaluate(encoder, both, root, output, name="a")
    assert suite.evaluate(encoder, both, root, output, name="a") == found
    assert encoder.calls == [["one"], ["two"]]
    with pytest.raises(errors.InputError, match="out has other results: encoder is a, not b"):
      suite.evaluate(encoder, both, root, output, name="b")
    assert not folders[-1].exists()
    names = ("results", "benchmarks/one", "benchmarks/large")
    contents.append({name: json.loads(read_text(f"{output}/{name}.json")) for name in names})
    assert contents[-1]["results"] == found
    for each in (*found["benchmarks"].values(), *contents[-1].values()):
      each.pop("seconds", None)
      each.pop("content", None)  # It depends on the seconds.
    contents[-1]["results"] = found
  assert contents[0] == contents[1]
  assert sorted(store.find("bucket/out")) == [
    f"/bucket/out/{name}.json" for name in sorted(contents[0])
  ]
  assert tmp_path not in folders[0].parents


def read_text(path):
  return input_files.read_bytes(path).decode()


def test_damaged_results_are_one_line_with_the_fix(root, tmp_path):
  encoder = fake_encoders.FakeEncoder(one_hot)
  arguments = (encoder, [BENCHMARK], root, tmp_path / "out")
  whole = suite.evaluate(*arguments, name="a")
  path = tmp_path / "out" / "benchmarks" / "words.json"
  stored = path.read_bytes()
  other = stored.replace(b'"first": ', b'"first": 1')
  assert other != stored
  for content in (b"", b"[]", b"{}", stored[: len(stored) // 2], other):
    path.write_bytes(content)
    with pytest.raises(errors.InputError, match=r"delete it") as caught:
      suite.evaluate(*arguments, name="a")
    assert str(tmp_path / "out") in str(caught.value)
    assert "\n" not in str(caught.value)
  assert len(encoder.calls) == 2
  path.unlink()
  again = suite.evaluate(*arguments, name="a")
  for found in (whole, again):
    del found["benchmarks"]["words"]["seconds"]
  assert again == whole


def test_outputs_that_cannot_be_used_are_found_before_anything_is_embedded(
  root, tmp_path, monkeypatch
):
  def refuse(*args, **kwargs):
    raise PermissionError("denied")

  memory_store.installed(monkeypatch)
  monkeypatch.setattr(memory_store.MemoryStore, "pipe_file", refuse)
  encoder = fake_encoders.FakeEncoder(one_hot)
  (tmp_path / "file").touch()
  (tmp_path / "taken" / "results.json").mkdir(parents=True)
  (tmp_path / "other").mkdir()
  (tmp_path / "other" / "benchmarks").touch()
  line_files.write_text(tmp_path / "foreign" / "results.json", "{}")
  for out, message in (
    (tmp_path / "file", "file is not a folder; give another output folder"),
    (tmp_path / "taken", "results.json is a folder, not a file; delete it"),
    (tmp_path / "other", "benchmarks is not a folder; give another output folder"),
    (
      tmp_path / "foreign",
      "results.json: encoder is None, .*would replace it; give another folder",
    ),
    ("gs://bucket/out", "gs://bucket/out/.* cannot be written: .*denied"),
  ):
    with pytest.raises(errors.InputError, match=message):
      suite.evaluate(encoder, [BENCHMARK], root, out, name="a")
  assert not encoder.calls


def test_vectors_that_do_not_fit_fail_only_their_benchmark(root, tmp_path):
  both, widths = [named("one"), named("two")], iter([2, 3])
  widening = types.SimpleNamespace(encode=lambda texts: np.ones((len(texts), next(widths))))
  huge = fake_encoders.FakeEncoder(lambda word: [1e38, 3e38 if word == "two" else 0])
  infinite = fake_encoders.FakeEncoder(lambda word: [1e300 if word == "two" else 1.0])
  for number, (encoder, message) in enumerate(
    (
      (widening, "the encoder returned vectors of width 3 after those of width 2"),
      (huge, "'two' contains a value that is not finite or is too large"),
      (infinite, "'two' contains a value that is not finite"),
    )
  ):
    found = suite.evaluate(encoder, both, root, tmp_path / str(number), name="a")
    assert list(found["failed"]) == ["two"]
    assert message in found["failed"]["two"]
  infinite.calls.clear()
  with pytest.raises(suite.UnusableEncoderError, match="as do all others"):
    suite.evaluate(infinite, both[::-1], root, tmp_path / "new", name="a")
  assert infinite.calls == [["two"]]
  assert not (tmp_path / "new").exists()


# --------------------------------------------------------------------------------------------
# Vectors that are cut to their first dimensions

TRAINED = ("mldoc", "cls", "sib200")  # Their classifiers need more data.
NAMES = [name for name in benchmarks.BENCHMARKS if name not in TRAINED]
LARGE = ("bucc", "paracrawl", "questions")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
  """Data of all benchmarks."""
  return benchmark_trees.write(tmp_path_factory.mktemp("data"))


def random_encoder(width=6):
  return fake_encoders.FakeEncoder(lambda text: fake_encoders.random_vector(text)[:width])


def evaluate(encoder, data, output, names=NAMES, **options):
  """Returns the results of benchmarks by name."""
  chosen = benchmarks.get_benchmarks(names)
  found = suite.evaluate(encoder, chosen, data, output, name="E", **options)
  assert not found["failed"]
  return found["benchmarks"]


def of_sizes(found):
  return {cut["dimension"]: cut["summary"] for cut in found["dimensions"]}


def embedded(encoder):
  """Returns how often each text was embedded."""
  return collections.Counter(itertools.chain.from_iterable(encoder.calls))


def test_scores_of_cut_vectors_are_those_of_narrower_encoders(data, tmp_path):
  whole, encoder = random_encoder(), random_encoder()
  expected = evaluate(whole, data, tmp_path / "whole")
  found = evaluate(encoder, data, tmp_path / "out", dimensions=[4, 3])
  assert not (tmp_path / "out" / ".vmsst").exists()
  narrow = {size: evaluate(random_encoder(size), data, tmp_path / str(size)) for size in (3, 4)}
  for name, own in found.items():
    assert own["results"] == expected[name]["results"]
    assert list(of_sizes(own)) == [3, 4, 6]
    assert of_sizes(own)[6] == expected[name]["summary"]
    for size, each in narrow.items():
      assert of_sizes(own)[size] == pytest.approx(each[name]["summary"], abs=1e-4), (name, size)
  # Large tasks share vectors only if these are kept for several numbers of dimensions.
  assert set(embedded(encoder)) == set(embedded(whole))
  assert not embedded(encoder) - embedded(whole)


def load_encoder():
  return "E", random_encoder()


def test_other_processes_find_the_same(data, tmp_path, monkeypatch):
  monkeypatch.setattr(knowledge_search, "SHARD", 2)
  monkeypatch.setattr(encoding, "WINDOW", 3)
  expected = evaluate(random_encoder(), data, tmp_path / "here", LARGE, dimensions=[2, 4])
  engine, encoder = toy_units.Pickling(), random_encoder()
  options = {"dimensions": [2, 4], "engine": engine, "load": load_encoder}
  there = evaluate(encoder, data, tmp_path / "there", LARGE, **options)
  assert engine.done
  assert not encoder.calls
  for name, own in expected.items():
    assert there[name]["dimensions"] == own["dimensions"]


def test_further_dimensions_are_evaluated_and_fewer_are_not(data, tmp_path):
  def run(*sizes):
    encoder = random_encoder()
    found = evaluate(encoder, data, tmp_path / "out", ["tatoeba"], dimensions=sizes)
    return bool(encoder.calls), list(of_sizes(found["tatoeba"]))

  assert run(2, 4) == (True, [2, 4, 6])
  assert run(4) == (False, [2, 4, 6])
  assert run() == (False, [2, 4, 6])
  assert run(3, 6) == (True, [3, 6])
