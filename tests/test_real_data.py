"""Trains, evaluates and encodes with real bitext and Tatoeba."""

import gzip
import json
import os
import pathlib
import subprocess
import sys

import commands
import numpy as np
import pytest

LANGUAGES = ("deu", "spa", "fra", "rus", "tur")


def t5x(*arguments: str) -> str:
  """Runs the `t5x` command and returns its standard output."""
  command = [sys.executable, "-m", "vmsst.launch.main", *arguments]
  environment = {**os.environ, **commands.OPTIMIZED}
  result = subprocess.run(
    command, env=environment, capture_output=True, text=True, timeout=1500, check=False
  )
  assert result.returncode == 0, result.stderr
  return result.stdout


def evaluations(folder: pathlib.Path) -> dict[int, dict[str, float]]:
  """Returns metrics by step, as written by SeqIO's JSON logger."""
  (path,) = (folder / "inference_eval").glob("tatoeba*-metrics.jsonl")
  lines = [json.loads(line) for line in path.read_text().splitlines()]
  return {line.pop("step"): line for line in lines}


def accuracy_by_loops(encoder, root: pathlib.Path, code: str) -> float:
  """Returns Tatoeba accuracy in percent, mean of both directions, one sentence at a time."""
  sides = []
  for side in (code, "eng"):
    text = gzip.decompress((root / f"tatoeba.{code}-eng.{side}.gz").read_bytes()).decode()
    vectors = encoder.encode(text.removesuffix("\n").split("\n"))
    sides.append([vector / np.sqrt(np.sum(vector * vector)) for vector in vectors])
  hits = 0
  for queries, candidates in (sides, sides[::-1]):
    pool = np.stack(candidates)
    hits += sum(int(np.argmax(pool @ query) == i) for i, query in enumerate(queries))
  return 100 * hits / (2 * len(sides[0]))


@pytest.mark.slow
def test_training_eval_and_numpy_loops_agree_on_tatoeba(tmp_path, data_root):
  import vmsst

  data = f"--gin.DATA_ROOT='{data_root}'"
  printed = t5x(
    "train",
    "--gin_file=contrastive_small.gin",
    data,
    f"--gin.MODEL_DIR='{tmp_path / 'run'}'",
    "--gin.TRAIN_STEPS=120",
    "--gin.EVAL_PERIOD=120",
    "--gin.CHECKPOINT_PERIOD=60",
  )
  during = evaluations(tmp_path / "run")[120]
  assert f"{during['accuracy/average']:.2f}" in printed
  t5x("eval", f"--gin_file={tmp_path / 'run' / 'config.gin'}", "--gin_file=runs/eval.gin")
  after = evaluations(tmp_path / "run" / "eval")[120]
  encoder = vmsst.load(tmp_path / "run")
  for code in LANGUAGES:
    assert after[f"accuracy/{code}"] == pytest.approx(during[f"accuracy/{code}"], abs=0.101)
    loops = accuracy_by_loops(encoder, data_root / "tatoeba", code)
    assert loops == pytest.approx(during[f"accuracy/{code}"], abs=0.101)  # ties
  assert during["accuracy/average"] > 20  # 120 steps; chance is 0.1
