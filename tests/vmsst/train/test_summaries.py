"""Metrics of a run: local files, files in a store, Weights & Biases, and the terminal."""

import io
import json
import os
import re
import subprocess
import sys
import time

import clu.metrics
import commands
import jax.numpy as jnp
import memory_store
import pytest

from vmsst import storage
from vmsst.io import input_files
from vmsst.train import summaries


def test_metrics_continue_after_a_line_that_a_full_disk_has_cut(tmp_path):
  path = tmp_path / "train" / "metrics.jsonl"
  path.parent.mkdir()
  path.write_text('{"step": 1, "loss": 3.0}\n{"step": 2, "lo')
  writer = summaries.SummaryWriter(str(tmp_path), "train")
  writer.write_scalars(2, {"loss": 2.5})
  writer.close()
  records = [json.loads(line) for line in path.read_text().splitlines()]
  assert records == [{"step": 1, "loss": 3.0}, {"step": 2, "loss": 2.5}]


def test_lines_in_a_store_are_appended_to(monkeypatch):
  store = memory_store.installed(monkeypatch)
  url = "gs://bucket/run/train"
  for text in ("one\n", "two\n"):
    logs = summaries.LogFolder(url)
    with (logs.local / "metrics.jsonl").open("a") as file:
      file.write(text)
    (logs.local / "inner").mkdir()
    (logs.local / "inner" / f"events.{text[:3]}").write_text(text)
    logs.upload(after_seconds=100)
    assert text[:3] not in "".join(storage.names(f"{url}/inner"))
    logs.upload()
  assert input_files.read_bytes(f"{url}/metrics.jsonl") == b"one\ntwo\n"
  assert storage.names(f"{url}/inner") == {"events.one", "events.two"}
  modified = store.modified(f"{url}/metrics.jsonl")
  logs.upload()  # nothing has changed
  assert store.modified(f"{url}/metrics.jsonl") == modified


class Terminal(io.StringIO):
  """A stream that is a terminal."""

  def isatty(self):
    return True


@pytest.mark.parametrize("stream", [io.StringIO, Terminal])
def test_the_line_shows_loss_and_rates_in_place_or_as_further_lines(monkeypatch, stream):
  monkeypatch.setattr(sys, "stderr", stream())
  bar = summaries.Progress(100, 1000, 64)
  now = [bar.start_t]
  bar._time = lambda: now[0]
  average = clu.metrics.Average.from_model_output
  for step, loss in ((110, 1.0), (130, 2.5), (1000, 3.5)):
    now[0] += 20
    bar.show(step, {name: average(jnp.asarray([loss])) for name in ("loss", "tokens_per_example")})
  bar.end_line("evaluating")
  text = sys.stderr.getvalue()
  lines = re.split(r"[\r\n]+", text.strip())
  assert lines[-1] == "evaluating"
  assert text.count("\r") == (3 if stream is Terminal else 0)
  assert re.match(
    r"step 130/1000 \[00:40<.*, loss 2.5000, \S+ examples/s, \S+ tokens/s\]", lines[1]
  )
  assert "step 1000/1000" in lines[-2]


@pytest.mark.parametrize(
  ("best", "columns", "numbers"),
  [
    (None, ["step 0", "step 30"], ["1.00", "60.00"]),
    (20, ["step 0", "step 20 (best)", "step 30"], ["1.00", "91.25", "60.00"]),
    (30, ["step 0", "step 30 (best)"], ["1.00", "60.00"]),
    (-5, ["step -5 (best)", "step 30"], ["95.00", "60.00"]),  # evaluated by an earlier process
  ],
)
def test_tables_show_the_first_the_best_and_the_newest_evaluation(capsys, best, columns, numbers):
  log = summaries.EvaluationLog()
  for step, value in ((0, 1.0), (10, 50.0), (20, 91.25), (30, 60.0)):
    log.add(step, {"retrieval": {"accuracy/de": value, "loss": 2.0, "note": "text"}})
  record = {"checkpoint": f"checkpoint_{best}", "metric": "retrieval/accuracy/de", "value": 95.0}
  log.print_tables(None if best is None else record)
  empty, header, line, accuracy, loss = capsys.readouterr().out.splitlines()
  assert re.split("  +", header) == ["retrieval", *columns]
  assert re.split("  +", accuracy) == ["accuracy/de", *numbers]
  assert loss.endswith("2.00")
  assert (empty, set(line)) == ("", {"-"})


def read(folder):
  """Returns the content of the files that wandb writes below `folder` in offline mode."""
  blocks = []
  for path in sorted(folder.glob("wandb/offline-run-*/*.wandb")):
    data = path.read_bytes()  # in blocks of this size, each with a header of seven bytes
    blocks += [data[start + 7 : start + 32768] for start in range(0, len(data), 32768)]
  return b"".join(blocks)


@pytest.mark.slow
def test_a_resumed_run_continues_its_weights_and_biases_run(tmp_path):
  pytest.importorskip("wandb")
  # Each run needs a new process, because wandb's service ends together with the interpreter.
  variables = {**os.environ, **commands.environment(), "WANDB_MODE": "offline"}
  variables.pop("WANDB_SERVICE", None)
  run = tmp_path / "run"
  command = [commands.T5X, "train", *commands.TINY, "--gin_file=runs/wandb.gin"]
  command += ["--gin.WANDB_NAME='first'", f"--gin.MODEL_DIR='{run}'"]
  for steps in (2, 4):
    arguments = [*command, f"--gin.TRAIN_STEPS={steps}"]
    subprocess.run(arguments, cwd=tmp_path, env=variables, check=True)
  losses, end = set(), time.monotonic() + 120
  while len(losses) < 2 and time.monotonic() < end:  # wandb may write after the process has ended
    time.sleep(0.1)
    losses = {*re.findall(rb"train/loss\x82\x01.([\d.]+)", read(run), re.DOTALL)}
  lines = (run / "train" / "metrics.jsonl").read_text().splitlines()
  written = [row["loss"] for row in map(json.loads, lines) if "loss" in row]
  assert sorted(map(float, losses)) == pytest.approx(sorted(written))
  text = read(run)
  identity = (run / summaries.WANDB_ID_FILE).read_text()
  assert {*re.findall(r"offline-run-\d+_\d+-(\w+)", str([*run.rglob("*.wandb")]))} == {identity}
  assert b"\x05vmsst" in text
  assert b"\x05first" in text
  assert json.dumps((run / "config.gin").read_text()).encode() in text
  assert b"inference_eval/sample_retrieval/eval/accuracy/average" in text
