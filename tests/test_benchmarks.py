"""Benchmarks run at a tiny size, and print their last line."""

import json
import pathlib
import subprocess
import sys

import pytest

BENCHMARKS = pathlib.Path(__file__).resolve().parents[1] / "benchmarks"
COMMANDS = {
  "compare": "batches --data_root={data} --output_dir=out --rows random --seeds 0 --steps 2",
  "ems_step": "--batch=4 --steps=1 --rounds=1 --variants sentence_transformers ours",
  "encode": "--data={data} --models=bert --sentences=50 --repeats=1 --rounds=1",
  "index_search": "--data={data} --sizes 2000",
  "mining": "--sizes 500 --width=16 --rounds=1",
  "opus_build": "--sizes 2000 --workers 1",
  "paper_step": "--model=ems --size=tiny --peak_tflops=0.1 --steps=3 --microbatches=2",
  "time_to_accuracy": "--data={data} --folder=out --period=2 --thresholds 0.01 --variants ours",
  "vmsst_step": "--batch=4 --length=8 --width=32 --vocabulary=500 --repeats=1 --rounds=1",
  "vocab_projection": "--batch=4 --length=8 --width=32 --vocabulary=512 --repeats=1 --rounds=1",
}


@pytest.mark.slow
@pytest.mark.parametrize("name", COMMANDS)
def test_a_benchmark_runs(name, data_root, tmp_path):
  arguments = COMMANDS[name].format(data=data_root).split()
  done = subprocess.run(
    [sys.executable, BENCHMARKS / f"{name}.py", *arguments],
    cwd=tmp_path,
    capture_output=True,
    text=True,
    check=False,
  )
  assert done.returncode == 0, done.stderr[-3000:]
  if name == "compare":
    (scores,) = json.loads((tmp_path / "out" / "table.json").read_text()).values()
    assert 0 < scores["0"]["scores"]["Tatoeba seen"] < 100
    return
  assert json.loads(done.stdout.splitlines()[-1])["benchmark"] == name
