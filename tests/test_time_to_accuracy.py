"""The comparison of training times: interpolation, resuming, and both variants on real data."""

import importlib
import json
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"


@pytest.fixture
def script(monkeypatch):
  monkeypatch.syspath_prepend(BENCHMARKS)
  names = ("time_to_accuracy", "measure")
  yield importlib.import_module(names[0])
  for name in names:
    del sys.modules[name]


def run(script, monkeypatch, capsys, *arguments):
  """Runs the script and returns its lines."""
  monkeypatch.setattr(sys, "argv", ["time_to_accuracy.py", *map(str, arguments)])
  script.main()
  return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_variants_resume_until_they_have_passed(script, monkeypatch, capsys, tmp_path):
  monkeypatch.setattr(script.measure, "numpy_gflops", lambda: 100.0)
  calls = []

  def fake(folder, options):
    calls.append(folder.name)
    step = 10 * calls.count(folder.name)
    seconds = {"ours": 3.0, "theirs": 12.0}[folder.name]
    script.add_line(folder, {"started": script.read_log(folder)[-1]["began"] + 1.5})
    line = {"step": step, "seconds": seconds, "accuracy": 4.0 * step, "evaluation": 0.5}
    script.add_line(folder, line)

  monkeypatch.setattr(script, "run_ours", fake)
  monkeypatch.setattr(script, "run_theirs", fake)
  monkeypatch.setattr(script, "evaluations_of_ours", lambda folder: {})
  given = [f"--data={tmp_path}", f"--folder={tmp_path / 'runs'}", "--thresholds", 30, 60]
  first = run(script, monkeypatch, capsys, *given)
  assert first[-1]["ratio"] is None  # neither has passed 60
  ours, theirs, last = run(script, monkeypatch, capsys, *given)
  assert ours["seconds"] == {"30.0": 2.25, "60.0": 4.5}
  assert theirs["seconds"] == {"30.0": 9.0, "60.0": 18.0}
  assert (ours["startup"], ours["evaluation"], ours["seconds_per_step"]) == (1.5, 1.0, 0.3)
  assert last["ratio"] == pytest.approx(4.0, abs=0.1)
  run(script, monkeypatch, capsys, *given)
  assert calls == ["ours", "theirs"] * 2


@pytest.mark.slow
@pytest.mark.parametrize("variant", ["ours", "theirs"])
def test_a_variant_trains_on_real_data(variant, script, monkeypatch, capsys, tmp_path, data_root):
  if variant == "theirs":
    pytest.importorskip("sentence_transformers")
  given = [f"--data={data_root}", f"--folder={tmp_path}", f"--variants={variant}"]
  given += ["--period=2", "--thresholds", "0.01"]
  line, _ = run(script, monkeypatch, capsys, *given)
  assert list(line["accuracy"]) == ["2"]
  assert line["startup"] > 0
  assert line["seconds"]["0.01"] > 0
