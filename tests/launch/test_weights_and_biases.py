"""Metrics in Weights & Biases, from the files that it writes without a network."""

import json
import os
import struct
import subprocess
import time

import commands
import pytest

from vmsst import errors
from vmsst.launch import weights_and_biases

wandb = pytest.importorskip("wandb")


def records(folder):
  """Returns the Weights & Biases records of the runs in a folder, oldest run first."""
  return [
    record for path in sorted(folder.glob("wandb/offline-run-*/*.wandb")) for record in ended(path)
  ]


def ended(path):
  """Returns the records of a run; wandb writes the last ones after the run's process has ended."""
  end = time.monotonic() + 120
  while True:
    found = read(path)
    if "exit" in {x.WhichOneof("record_type") for x in found}:
      return found
    assert time.monotonic() < end, f"{path} has only {len(found)} records"
    time.sleep(0.1)


def read(path):
  """Returns the records in a file of LevelDB's log format, which follow a header of seven bytes."""
  from wandb.proto import wandb_internal_pb2

  found, data, place, record = [], path.read_bytes(), 7, b""
  while place + 7 <= len(data):
    left = 32768 - place % 32768
    if left < 7:
      place += left
      continue
    _, size, kind = struct.unpack("<IHB", data[place : place + 7])
    record += data[place + 7 : place + 7 + size]
    place += 7 + size
    if kind in (1, 4):  # a whole record, or the last part of one
      found.append(wandb_internal_pb2.Record.FromString(record))
      record = b""
  return found


@pytest.mark.slow
def test_a_resumed_run_continues_its_run_there_with_the_events_of_tensorboard(tmp_path):
  # Processes of their own, with services of their own, which the end of the interpreter ends.
  variables = {**os.environ, **commands.environment(), "WANDB_MODE": "offline"}
  variables.pop("WANDB_SERVICE", None)
  command = [commands.T5X, "train", *commands.TINY, "--gin_file=runs/wandb.gin"]
  command += ["--gin.WANDB_NAME='first'", f"--gin.MODEL_DIR='{tmp_path / 'run'}'"]
  for steps in (2, 4):
    arguments = [*command, f"--gin.TRAIN_STEPS={steps}"]
    subprocess.run(arguments, cwd=tmp_path, env=variables, check=True)
  found = records(tmp_path / "run")
  runs = [x.run for x in found if x.WhichOneof("record_type") == "run"]
  identity = (tmp_path / "run" / weights_and_biases.RUN_ID_FILE).read_text()
  assert {(x.project, x.display_name, x.run_id) for x in runs} == {("vmsst", "first", identity)}
  config = {x.key: json.loads(x.value_json) for x in runs[-1].config.update}
  assert config["gin"] == (tmp_path / "run" / "config.gin").read_text()
  logged = {}
  for record in found:
    if record.WhichOneof("record_type") == "history":
      items = {x.key or "/".join(x.nested_key): x.value_json for x in record.history.item}
      step = int(items.pop("global_step"))
      logged |= {(name, step): float(value) for name, value in items.items()}
  lines = (tmp_path / "run" / "train" / "metrics.jsonl").read_text().splitlines()
  written = {row["step"]: row["loss"] for row in map(json.loads, lines) if "loss" in row}
  assert {step: logged["train/loss", step] for step in (2, 4)} == pytest.approx(written)
  assert ("inference_eval/sample_retrieval/eval/accuracy/average", 4) in logged


def test_without_a_login_or_a_local_folder_the_error_says_what_to_do(tmp_path, monkeypatch):
  monkeypatch.setattr("wandb.integration.tensorboard.patch", lambda **settings: None)
  monkeypatch.setattr(
    wandb, "init", lambda **settings: (_ for _ in ()).throw(wandb.errors.UsageError("no API key"))
  )
  for folder, message in (
    (tmp_path, "no API key; run `wandb login`, or set WANDB_MODE"),
    ("gs://bucket/run", "cannot read metrics in gs://bucket/run; set a local MODEL_DIR"),
  ):
    with pytest.raises(errors.InputError, match=message):
      weights_and_biases.summarize_run(str(folder), None, 0, print)
