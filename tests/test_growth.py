"""The benchmark of growth: fits by hand, resuming, and the cheap parts at tiny sizes."""

import importlib
import json
import sys
from pathlib import Path

import line_files
import pytest

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"
NAMES = (
  "growth",
  "embed_lines",
  "index_search",
  "input_pipeline",
  "measure",
  "mining",
  "opus_build",
)


@pytest.fixture
def growth(monkeypatch):
  monkeypatch.syspath_prepend(BENCHMARKS)
  yield importlib.import_module(NAMES[0])
  for name in NAMES:
    del sys.modules[name]


def line(part, size, **seconds):
  return {"part": part, "size": size, "seconds": seconds}


def test_slopes_are_exponents(growth):
  lines = [line("mining", n, exact=3 * n**2) for n in (10, 20, 50)]
  lines += [line("search", n, exact=5 * n, index=7.0) for n in (400, 100)]
  fits = {(fit["part"], fit["curve"]): fit for fit in growth.fits(lines)}
  assert {key: fit["slope"] for key, fit in fits.items()} == {
    ("mining", "exact"): 2,
    ("search", "exact"): 1,
    ("search", "index"): 0,
  }
  assert fits["mining", "exact"]["expected"] == 2
  fixed_costs = [line("opus", n, build=100 + n) for n in (1, 10, 1000, 100_000)]
  assert growth.fits(fixed_costs)[0]["last_slope"] > growth.fits(fixed_costs)[0]["slope"] + 0.2


def test_parts_are_measured_once_and_drawn(growth, monkeypatch, tmp_path, capsys):
  calls = []

  def in_own_process(script, arguments, name):
    calls.append(name)
    return {"exact": 1.0 * len(calls)}

  monkeypatch.setattr(growth.measure, "in_own_process", in_own_process)
  monkeypatch.setattr(growth.measure, "numpy_gflops", lambda: 100.0)
  given = ["growth.py", f"--data={tmp_path}", f"--results={tmp_path / 'lines.jsonl'}"]
  given += ["--parts", "mining", f"--plot={tmp_path / 'growth.svg'}", "--sizes"]
  for sizes in (["4", "8"], ["4", "8", "16"]):
    monkeypatch.setattr(sys, "argv", [*given, *sizes])
    growth.main()
  assert calls == ["mining at 4", "mining at 8", "mining at 16"]
  last = json.loads(capsys.readouterr().out.splitlines()[-1])
  assert last["slopes"] == {"mining: exact": pytest.approx(0.79, abs=0.01)}
  assert last["ratio"] == pytest.approx(2 / 0.58, abs=0.05)
  assert "Mining" in (tmp_path / "growth.svg").read_text()


def test_mining_at_a_tiny_size(growth, tmp_path):
  assert growth.mined(50, tmp_path)["exact"] > 0


@pytest.mark.slow
def test_evaluation_at_a_tiny_size(growth, tmp_path, monkeypatch):
  monkeypatch.setattr(growth, "_TATOEBA", 3)
  for code in ("deu", "fra", "tur"):
    for side in (code, "eng"):
      line_files.write_lines(
        tmp_path / f"tatoeba/tatoeba.{code}-eng.{side}.gz", [f"{side} {i}" for i in range(3)]
      )
  assert growth.evaluation(12, tmp_path)["Tatoeba"] > 0


@pytest.mark.slow
@pytest.mark.parametrize(("part", "size"), [("input", 7 * 256), ("opus", 4000), ("embed", 300)])
def test_other_parts_at_tiny_sizes(part, size, growth, tmp_path):
  found = growth.PARTS[part].run(size, tmp_path)
  assert found.keys() == growth.PARTS[part].growth.keys()
  assert min(found.values()) > 0
