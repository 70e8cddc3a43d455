import json
import pickle
import shutil

import benchmark_trees
import fake_encoders
import line_files
import memory_store
import pytest

from vmsst import errors, storage
from vmsst.cli import evaluation_job
from vmsst.evaluation import benchmarks, embedder
from vmsst.evaluation.benchmarks import questions
from vmsst.io import input_files
from vmsst.jobs import engines

LARGE = ("bucc", "paracrawl", "questions")


class Pickling:
  """An engine that pickles tasks as for another process, but runs them in this process.

  Attributes:
    done: Number of tasks that have run.
  """

  in_process, this_machine = False, True
  done = 0

  def run(self, title, do, tasks):
    for result in pickle.loads(pickle.dumps(do))(pickle.loads(pickle.dumps(tasks))):
      self.done += 1
      yield result


def load_encoder():
  return "E", fake_encoders.FakeEncoder(fake_encoders.random_vector)


@pytest.fixture
def data(tmp_path):
  """Returns a data folder with all benchmarks."""
  return benchmark_trees.write(tmp_path / "data")


@pytest.fixture
def evaluate(data, tmp_path):
  """Returns a function that returns the results, the embedded texts and the progress lines."""

  def run(encoder=None, *, names=("tatoeba", "mining"), output=tmp_path / "out", **options):
    encoder = encoder or load_encoder()[1]
    lines = []
    selection = benchmarks.get_benchmarks(names)
    results = evaluation_job.evaluate(
      selection,
      data,
      {benchmark.name: benchmark.files.digest(data) for benchmark in selection},
      encoder,
      "E",
      str(output),
      seen=None,
      engine=options.pop("engine", engines.Local()),
      report=lines.append,
      **options,
    )
    return results, encoder.calls, lines

  return run


def contents(folder):
  return {name: input_files.read_bytes(f"{folder}/{name}") for name in storage.files_below(folder)}


def test_later_calls_keep_finished_benchmarks(evaluate, tmp_path):
  first, calls, _ = evaluate()
  names = {"results.json", "job.json", "benchmarks/mining.json", "benchmarks/tatoeba.json"}
  files = contents(tmp_path / "out")
  assert set(files) == names
  assert json.loads(files["results.json"]) == first
  assert calls
  second, calls, lines = evaluate()
  assert (second, calls, contents(tmp_path / "out")) == (first, [], files)
  assert lines == ["tatoeba: finished before", "mining: finished before"]
  third, calls, _ = evaluate(names=["sts"])
  assert list(third["benchmarks"]) == ["sts", "mining", "tatoeba"]
  assert third["benchmarks"].pop("sts")
  assert third == first


def test_an_interrupted_job_resumes_after_the_last_benchmark(evaluate, tmp_path, monkeypatch):
  memory_store.installed(monkeypatch)
  expected, _, _ = evaluate(output=tmp_path / "uninterrupted")
  for output in ("gs://bucket/out", tmp_path / "out"):
    encoder = fake_encoders.FakeEncoder(fake_encoders.random_vector, fail_at=1)
    with pytest.raises(KeyboardInterrupt):
      evaluate(encoder, output=output)
    assert "benchmarks/tatoeba.json" in contents(output)
    results, calls, _ = evaluate(encoder, output=output)
    assert results == expected
    assert len(calls) == 2
    assert contents(output) == contents(tmp_path / "uninterrupted")


def test_data_and_further_dimensions_are_evaluated_again(evaluate, data, tmp_path):
  def run(*dimensions):
    results, calls, lines = evaluate(names=["tatoeba"], dimensions=dimensions)
    cuts = results["benchmarks"]["tatoeba"].get("dimensions", [])
    return bool(calls), [cut["dimension"] for cut in cuts], lines[0]

  assert run() == (True, [], "tatoeba: waiting")
  changed = "tatoeba: its data or dimensions have changed, so it runs again"
  assert run(2, 4) == (True, [2, 4, 6], changed)
  assert run(4) == (False, [2, 4, 6], "tatoeba: finished before")
  assert run(3, 6) == (True, [3, 6], changed)
  line_files.write_lines(data / "tatoeba" / "tatoeba.deu-eng.deu", [f"nein {n}" for n in range(5)])
  assert run(3) == (True, [3, 6], changed)
  shutil.rmtree(data / "tatoeba")
  assert evaluate(names=["sts"])[0]["benchmarks"].keys() == {"sts", "tatoeba"}
  _, _, lines = evaluate(names=["sts", "tatoeba"])
  assert "tatoeba: finished before; its data is no longer present: no folder" in lines[1]


def test_results_are_not_kept_if_a_file_changes_during_the_evaluation(evaluate, data, tmp_path):
  def change(text):
    line_files.write_lines(data / "tatoeba" / "tatoeba.deu-eng.deu", ["nein"] * 5)
    return fake_encoders.random_vector(text)

  with pytest.raises(errors.InputError, match=r"tatoeba: its files have changed .*; rerun"):
    evaluate(fake_encoders.FakeEncoder(change))
  assert not list(tmp_path.rglob("benchmarks/*.json"))


def test_other_processes_compute_the_same_results(evaluate, tmp_path, monkeypatch):
  monkeypatch.setattr(questions, "SHARD", 2)
  monkeypatch.setattr(embedder, "WINDOW", 3)
  expected, _, _ = evaluate(names=LARGE, dimensions=[2, 4])
  engine = Pickling()
  options = {"engine": engine, "load": load_encoder, "output": tmp_path / "parallel"}
  results, calls, _ = evaluate(names=LARGE, dimensions=[2, 4], **options)
  assert (results, calls) == (expected, [])
  assert engine.done > 10
  assert contents(tmp_path / "parallel") == contents(tmp_path / "out")


def test_a_killed_search_in_a_knowledge_base_resumes_at_the_next_span(
  evaluate, data, tmp_path, monkeypatch
):
  monkeypatch.setattr(questions, "SHARD", 2)
  records = [json.dumps({"question": f"who {n}", "answer": str(n % 4)}) for n in range(7)]
  line_files.write_lines(data / "paq" / "PAQ.2.jsonl", records)
  expected, _, _ = evaluate(names=["questions"], output=tmp_path / "uninterrupted")
  queries = [3, 3, 3]  # NQ, and MKQA in two languages
  encoder = fake_encoders.FakeEncoder(fake_encoders.random_vector, fail_at=len(queries) + 5)
  with pytest.raises(KeyboardInterrupt):
    evaluate(encoder, names=["questions"])
  assert encoder.sizes == [*queries, 2, 2, 1, 2, 2]
  encoder.calls.clear()
  results, _, _ = evaluate(encoder, names=["questions"])
  assert encoder.sizes == [*queries, 2, 1]
  assert results == expected
  assert not (tmp_path / "out" / ".vmsst").exists()
