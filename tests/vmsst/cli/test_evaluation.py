import json
import re
import shutil

import fake_encoders
import line_files
import pytest
import tiny_encoders

import vmsst
from vmsst import cli
from vmsst.inference import loading
from vmsst.networks import sentence_encoder


@pytest.fixture
def data(tmp_path):
  """Files of Tatoeba and of the STS Benchmark."""
  texts = {"deu": ["eins", "zwei", "drei"], "eng": ["one", "two", "three"]}
  for code, lines in texts.items():
    line_files.write_lines(tmp_path / "data" / "tatoeba" / f"tatoeba.deu-eng.{code}", lines)
  pairs = [f"test\tf\t2012\t{i}\t{i}\tA {i}.\tB {i}." for i in range(3)]
  line_files.write_lines(tmp_path / "data" / "stsb" / "stsb.de.tsv", pairs)
  return tmp_path / "data"


@pytest.fixture
def evaluate(data, tmp_path, monkeypatch, capsys):
  """Runs `vmsst eval` with an encoder; returns the exit status, and the lines of both streams."""

  def run(vector_of, *options):
    encoder = fake_encoders.FakeEncoder(vector_of)
    monkeypatch.setattr(loading, "open_encoder", lambda path, **how: (path, encoder))
    command = ["eval", "--encoder", "E", "--data", str(data), "--out", str(tmp_path / "out")]
    status = cli.main([*command, *options])
    found = capsys.readouterr()
    return status, found.out.splitlines(), found.err.splitlines()

  return run


def test_eval_shows_what_failed_and_exits_with_1(evaluate, tmp_path, capsys):
  status, table, lines = evaluate(lambda text: [1.0, 2.0])
  assert status == 1
  assert any(re.match("stsb +failed: no correlations for de.test", line) for line in table)
  assert any(re.match("tatoeba +average", line) for line in table)
  place = tmp_path / "out" / "results.json"
  count = len(vmsst.get_benchmarks(["all"]))
  assert lines[-1].startswith(f"vmsst: error: 1 of {count} benchmarks failed: stsb; ")
  results = json.loads(place.read_text())
  assert (list(results["failed"]), list(results["benchmarks"])) == (["stsb"], ["tatoeba"])
  assert cli.main(["report", str(tmp_path / "out"), "--out", str(tmp_path / "report")]) == 0
  page = (tmp_path / "report" / "report.html").read_text("utf-8")
  assert "stsb failed: no correlations for de.test" in page
  capsys.readouterr()
  status, _, lines = evaluate(lambda text: [float("nan")], "--suite", "sts", "stsb")
  assert status == 1
  assert len([line for line in lines if line.startswith("vmsst: error: ")]) == 1
  assert "as do all others" in lines[-1]


def test_eval_without_data_is_an_error(evaluate, data, tmp_path):
  for options, message in (
    (["--suite", "sts", "bucc"], "expected folders sts, bucc2018"),
    (["--data", str(tmp_path / "none")], "none: not a folder"),
    (["--data", str(data / "stsb" / "stsb.de.tsv")], "stsb.de.tsv: not a folder"),
  ):
    status, table, lines = evaluate(fake_encoders.random_vector, *options)
    assert (status, table) == (1, [])
    assert message in lines[-1]
  assert not (tmp_path / "out").exists()
  status, table, _ = evaluate(fake_encoders.random_vector, "--suite", "sts", "tatoeba", "tatoeba")
  assert status == 0
  assert any(re.match("sts +absent: no folder", line) for line in table)


def test_eval_shows_the_scores_of_cut_vectors(evaluate, tmp_path, capsys):
  options = ["--suite", "tatoeba", "--dimensions", "2", "4"]
  status, table, _ = evaluate(fake_encoders.random_vector, *options)
  assert status == 0
  found = json.loads((tmp_path / "out" / "results.json").read_text())["benchmarks"]["tatoeba"]
  for size, own in zip((2, 4, 6), found["dimensions"], strict=True):
    value = own["summary"]["average (incomplete)"]
    name = "average (incomplete)" + (f", first {size}" if size < 6 else "")
    assert f"{'tatoeba':24}{name:48}{value:8.2f}" in table
  status, _, lines = evaluate(fake_encoders.random_vector, *options, "7")
  assert (status, "dimensions is 7" in lines[-1]) == (1, True)
  assert cli.main(["eval", "--encoder", "E", "--out", "o", "--mteb", "X", "--dimensions", "2"]) == 1
  assert "--dimensions does not apply to --mteb" in capsys.readouterr().err


def test_eval_does_not_keep_results_of_replaced_weights(data, tmp_path, capsys):
  network = sentence_encoder.SentenceEncoder(tiny_encoders.t5_config(), latent_dim=6)
  run = tmp_path / "run"
  command = ["eval", "--encoder", str(run), "--data", str(data), "--out", str(tmp_path / "out")]

  def evaluate(seed):
    shutil.rmtree(run, ignore_errors=True)
    params = tiny_encoders.random_params(network, seed)
    tiny_encoders.save_run(run, tiny_encoders.model_of(network), params)
    status = cli.main([*command, "--suite", "tatoeba"])
    return status, capsys.readouterr().err

  assert evaluate(0)[0] == 0
  results = (tmp_path / "out" / "results.json").read_bytes()
  assert evaluate(0) == (0, "tatoeba: finished before\n")
  status, lines = evaluate(1)
  assert status == 1
  assert "has other results: encoder is " in lines
  assert lines.count("\n") == 1
  assert (tmp_path / "out" / "results.json").read_bytes() == results
