"""Runs on Weights & Biases, offline."""

import json
import os
import re
import subprocess
import time

import commands
import pytest

from vmsst import errors
from vmsst.train import weights_and_biases


def read(folder):
  """Returns what wandb has written to the files of all runs below `folder` without a network."""
  parts = []
  for path in sorted(folder.glob("wandb/offline-run-*/*.wandb")):
    data = path.read_bytes()  # in blocks of this size, each with a header of seven bytes
    parts += [data[start + 7 : start + 32768] for start in range(0, len(data), 32768)]
  return b"".join(parts)


@pytest.mark.slow
def test_a_resumed_run_continues_its_run_there_with_the_events_of_tensorboard(tmp_path):
  pytest.importorskip("wandb")
  # Processes of their own, with services of their own, which the end of the interpreter ends.
  variables = {**os.environ, **commands.environment(), "WANDB_MODE": "offline"}
  variables.pop("WANDB_SERVICE", None)
  run = tmp_path / "run"
  command = [commands.T5X, "train", *commands.TINY, "--gin_file=runs/wandb.gin"]
  command += ["--gin.WANDB_NAME='first'", f"--gin.MODEL_DIR='{run}'"]
  for steps in (2, 4):
    arguments = [*command, f"--gin.TRAIN_STEPS={steps}"]
    subprocess.run(arguments, cwd=tmp_path, env=variables, check=True)
  found, end = set(), time.monotonic() + 120
  while len(found) < 2 and time.monotonic() < end:  # the last after the process has ended
    time.sleep(0.1)
    found = {*re.findall(rb"train/loss\x82\x01.([\d.]+)", read(run), re.DOTALL)}
  lines = (run / "train" / "metrics.jsonl").read_text().splitlines()
  written = [row["loss"] for row in map(json.loads, lines) if "loss" in row]
  assert sorted(map(float, found)) == pytest.approx(sorted(written))
  text = read(run)
  identity = (run / weights_and_biases.RUN_ID_FILE).read_text()
  assert {*re.findall(r"offline-run-\d+_\d+-(\w+)", str([*run.rglob("*.wandb")]))} == {identity}
  assert b"\x05vmsst" in text
  assert b"\x05first" in text
  assert json.dumps((run / "config.gin").read_text()).encode() in text
  assert b"inference_eval/sample_retrieval/eval/accuracy/average" in text


def test_a_folder_in_a_store_is_refused(tmp_path):
  pytest.importorskip("wandb")
  with pytest.raises(errors.InputError, match="cannot read metrics in gs://bucket/run; set"):
    weights_and_biases.summarize_run("gs://bucket/run", None, 0, print)
