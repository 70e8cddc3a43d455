"""Metrics in Weights & Biases, from the files that it writes without a network."""

import json
import struct
import subprocess
import time

import commands
import pytest
import toy_runs

from vmsst import errors
from vmsst.launch import weights_and_biases
from vmsst.launch.runtime import trainer

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


def history(folder):
  """Returns all logged values by name and step; the last one counts."""
  found = {}
  for record in records(folder):
    if record.WhichOneof("record_type") == "history":
      items = {
        x.key or "/".join(x.nested_key): json.loads(x.value_json) for x in record.history.item
      }
      step = items.pop("step")
      found |= {(name, step): value for name, value in items.items() if not name.startswith("_")}
  return found


def written(folder):
  """Returns the values in the run's `metrics.jsonl`, by name and step."""
  found = {}
  for path in folder.glob("*/**/metrics.jsonl"):
    kind = path.parent.relative_to(folder).as_posix()
    for row in map(json.loads, path.read_text().splitlines()):
      step = row.pop("step")
      found |= {(f"{kind}/{name}", step): value for name, value in row.items()}
  return {key: value for key, value in found.items() if not key[0].startswith("train/timing")}


def train(folder, steps):
  """Trains to a step as one process of a run does."""
  actions = {"TRAIN": [trainer.TerminateOnNanAction("train")]}
  toy_runs.run(
    folder,
    total_steps=steps,
    stats_period=2,
    train_eval_dataset_cfg=toy_runs.config("validation", shuffle=False),
    actions=weights_and_biases.with_logging(actions, str(folder), project="toys"),
  )
  wandb.finish()


@pytest.mark.slow
def test_a_resumed_run_continues_its_run_there_with_the_metrics_of_tensorboard(
  tmp_path, monkeypatch
):
  monkeypatch.setenv("WANDB_MODE", "offline")
  monkeypatch.setenv("WANDB_SILENT", "true")
  folder = tmp_path / "the_run"
  train(folder, 5)
  time.sleep(1)  # wandb names the folders of offline runs by the second of their start
  train(folder, 8)
  runs = [x.run for x in records(folder) if x.WhichOneof("record_type") == "run"]
  assert [(x.project, x.display_name) for x in runs] == [("toys", "the_run")] * 2
  assert {x.run_id for x in runs} == {(folder / weights_and_biases.RUN_ID_FILE).read_text()}
  found, expected = history(folder), written(folder)
  assert {step for name, step in found if name == "train/loss"} == {2, 4, 5, 6, 8}
  assert {step for name, step in found if name.startswith("training_eval/")} == {4, 5, 8}
  assert found == pytest.approx(expected, rel=1e-6)


@pytest.mark.slow
def test_the_gin_file_adds_it_to_a_run(tmp_path, monkeypatch):
  monkeypatch.setenv("WANDB_MODE", "offline")
  # A process of its own, with a service of its own: the end of the interpreter ends the run there.
  monkeypatch.delenv("WANDB_SERVICE", raising=False)  # wandb sets it in this process
  command = [commands.T5X, "train", *commands.TINY, "--gin_file=runs/wandb.gin"]
  command += ["--gin.WANDB_NAME='first'", f"--gin.MODEL_DIR='{tmp_path / 'run'}'"]
  subprocess.run(command, cwd=tmp_path, env=commands.environment(), check=True)
  (run,) = (x.run for x in records(tmp_path / "run") if x.WhichOneof("record_type") == "run")
  assert (run.project, run.display_name) == ("vmsst", "first")
  config = {x.key: json.loads(x.value_json) for x in run.config.update}
  assert config["BATCH_SIZE"] == 16
  assert config["gin"] == (tmp_path / "run" / "config.gin").read_text()
  found, expected = history(tmp_path / "run"), written(tmp_path / "run")
  assert {key: found.get(key) for key in expected} == pytest.approx(expected)
  average = "inference_eval/sample_retrieval/accuracy/average"
  assert {(average, step) for step in (0, 2)} <= found.keys()


def test_without_a_login_the_error_says_what_to_do(tmp_path, monkeypatch):
  monkeypatch.setattr(
    wandb, "init", lambda **settings: (_ for _ in ()).throw(wandb.errors.UsageError("no API key"))
  )
  with pytest.raises(errors.InputError, match="no API key; run `wandb login`, or set WANDB_MODE"):
    train(tmp_path, 2)
