import itertools
import json
import re

import fake_encoders
import line_files
import numpy as np
import pytest

import vmsst
from vmsst import cli
from vmsst.encoder import loading


@pytest.fixture
def data(tmp_path):
  """Writes files of Tatoeba and of the STS Benchmark; returns the data folder."""
  texts = {"deu": ["eins", "zwei", "drei"], "eng": ["one", "two", "three"]}
  for code, lines in texts.items():
    line_files.write_lines(tmp_path / "data" / "tatoeba" / f"tatoeba.deu-eng.{code}", lines)
  pairs = [f"test\tf\t2012\t{i}\t{i}\tA {i}.\tB {i}." for i in range(3)]
  line_files.write_lines(tmp_path / "data" / "stsb" / "stsb.de.tsv", pairs)
  return tmp_path / "data"


@pytest.fixture
def evaluate(data, tmp_path, monkeypatch, capsys):
  """Returns a function that runs `vmsst eval`; it returns exit status, stdout and stderr."""

  def run(vector_of, *options):
    encoder = fake_encoders.FakeEncoder(vector_of)
    monkeypatch.setattr(loading, "open_encoder", lambda path, **how: (path, encoder))
    command = ["eval", "E", "--data", str(data), "--out", str(tmp_path / "out")]
    status = cli.main([*command, *options])
    streams = capsys.readouterr()
    return status, streams.out.splitlines(), streams.err.splitlines()

  return run


def test_eval_shows_failed_benchmarks_and_exits_with_1(evaluate, tmp_path):
  status, table, lines = evaluate(lambda text: [1.0, 2.0])
  assert status == 1
  assert any(re.match("stsb +failed: .*no correlation is defined", line) for line in table)
  assert any(re.match("tatoeba +average", line) for line in table)
  place = tmp_path / "out" / "results.json"
  count = len(vmsst.get_benchmarks(["all"]))
  assert lines[-1].startswith(f"vmsst: error: 1 of {count} benchmarks failed: stsb; ")
  results = json.loads(place.read_text())
  assert (list(results["failed"]), list(results["benchmarks"])) == (["stsb"], ["tatoeba"])
  assert cli.main(["report", str(tmp_path / "out"), "--out", str(tmp_path / "report")]) == 0
  page = (tmp_path / "report" / "report.html").read_text("utf-8")
  assert "no correlation is defined" in page


def test_eval_without_data_is_an_error(evaluate, data, tmp_path, capsys):
  for options, message in (
    (["--suite", "sts", "bucc"], "no benchmark has data (see `vmsst eval --list`): sts is absent"),
    (["--suite", "tatoebas"], "unknown benchmark tatoebas; choose from sts,"),
    (["--data", str(tmp_path / "none")], "none: not a folder"),
  ):
    status, table, lines = evaluate(fake_encoders.random_vector, *options)
    assert (status, table) == (1, [])
    assert message in lines[-1]
  assert not (tmp_path / "out").exists()
  status, table, _ = evaluate(fake_encoders.random_vector, "--suite", "sts", "tatoeba", "tatoeba")
  assert status == 0
  assert any(re.match("sts +absent: no folder", line) for line in table)
  assert cli.main(["eval", "--list"]) == 0
  assert "ROOT/ntrex" in capsys.readouterr().out


def test_eval_shows_the_scores_of_cut_vectors(evaluate, tmp_path, capsys):
  options = ["--suite", "tatoeba", "--dimensions", "2", "4"]
  status, table, _ = evaluate(fake_encoders.random_vector, *options)
  assert status == 0
  path = tmp_path / "out" / "results.json"
  results = json.loads(path.read_text())["benchmarks"]["tatoeba"]
  for size, cut in zip((2, 4, 6), results["dimensions"], strict=True):
    value = cut["summary"]["average (incomplete)"]
    name = "average (incomplete)" + (f", first {size}" if size < 6 else "")
    assert f"{'tatoeba':24}{name:48}{value:8.2f}" in table
  assert cli.main(["eval", "E", "--out", "o", "--mteb", "X", "--dimensions", "2"]) == 1
  assert "choose one: --data (with or without --suite), --mteb" in capsys.readouterr().err


# --------------------------------------------------------------------------------------------
# A user's own files


def test_user_files_have_the_same_scores_as_in_numpy_and_resume(tmp_path, monkeypatch, capsys):
  pairs = [(f"q{i // 2}", f"text {i % 5}") for i in range(8)]
  rng, turn = np.random.default_rng(0), [1, 1, 1, 1, 1, -1]
  vector = {x: rng.normal(size=6) for x in sorted({*itertools.chain(*pairs)})}
  scores = [f"{i % 3}.5\t{a}\t{b}" for i, (a, b) in enumerate(pairs)]
  records = (json.dumps({"query": query, "text": text}) for query, text in pairs)
  files = {"my.tsv.gz": scores, "my.jsonl": records}
  files |= {name: map("\t".join, pairs) for name in ("[my].de-en.tsv", "no_languages.tsv")}
  for name, lines in files.items():
    line_files.write_lines(tmp_path / name, lines)
  encoders = {}

  def open_encoder(path, **how):
    encoder = encoders[path] = fake_encoders.FakeEncoder(vector.__getitem__)
    encoder.encode_query = lambda texts: encoder.encode(texts) * turn
    return path, encoder

  monkeypatch.setattr(loading, "open_encoder", open_encoder)
  monkeypatch.chdir(tmp_path)
  own = ["--sts", "my.tsv.gz", "--retrieval", "my.jsonl"]
  own += ["--bitext", "[my].de-en.tsv", "no_languages.tsv"]
  command = ["eval", "x/a", "x/b", *own, "--out", "out"]
  assert cli.main(command) == 0
  assert "incomplete" not in capsys.readouterr().out
  results = json.loads((tmp_path / "out" / "b" / "results.json").read_text())["benchmarks"]
  found = {name: each["summary"] for name, each in results.items()}
  unit = {x: y / np.linalg.norm(y) for x, y in vector.items()}
  left, right = zip(*pairs, strict=True)
  cosine_NN = np.array([unit[x] for x in left]) @ np.transpose([unit[x] for x in right])
  pearson = np.corrcoef(np.diag(cosine_NN), [i % 3 for i in range(8)])[0, 1]
  assert found["sts-my"]["pearson"] == pytest.approx(100 * pearson)
  forward = np.mean([(left[i], right[j]) in pairs for i, j in enumerate(cosine_NN.argmax(axis=1))])
  backward = np.mean([(left[j], right[i]) in pairs for i, j in enumerate(cosine_NN.argmax(axis=0))])
  bitext = found["bitext-[my].de-en"]
  assert found["bitext-no_languages"] == bitext
  ways = [bitext[f"accuracy{x}"] for x in (" forward", " backward", "")]
  assert ways == pytest.approx([100 * forward, 100 * backward, 50 * (forward + backward)])
  nearest = {(x, max(right, key=lambda y: unit[x] * turn @ unit[y])) for x in left}
  accuracy = np.mean([pair in pairs for pair in nearest])
  assert found["retrieval-my"]["accuracy"] == pytest.approx(100 * accuracy)
  assert cli.main(command) == 0
  assert not encoders["x/b"].calls
  line_files.write_lines(tmp_path / "my.tsv", [*scores, "high\ta\tb"])
  assert cli.main(["eval", "E", "--sts", "my.tsv", "--out", "other"]) == 1
  assert "my.tsv:9: 'high' is not a score" in capsys.readouterr().err
