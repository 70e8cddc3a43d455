"""Kills training runs of the toy model and compares their results with an undisturbed run."""

import functools
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
import traceback

import clu.metrics
import commands
import jax
import jax.numpy as jnp
import numpy as np
import seqio
import toy_runs

from vmsst.io import checksums, storage
from vmsst.train import checkpoints, data
from vmsst.train import eval as eval_lib

PERIOD = 5
# Kills come some milliseconds after the n-th start of an event in an attempt.
MOMENTS = (
  ("step", 12, 20),
  ("save", 3, 60),
  ("checksums", 3, 2),
  ("evaluate", 2, 80),
  ("start", 1, 900),
)


class Model(toy_runs.ToyModel):
  """The toy model, with a metric that identifies batches."""

  def loss_fn(self, params, batch, dropout_rng):
    loss, metrics = super().loss_fn(params, batch, dropout_rng)
    tokens = batch["inputs"]
    places = jnp.arange(tokens.size, dtype=jnp.uint32).reshape(tokens.shape) + 1
    number = jnp.sum(tokens.astype(jnp.uint32) * places**2) % 2**24
    number = number.astype(jnp.float32)[None]
    return loss, {**metrics, "batch": clu.metrics.LastValue.from_model_output(number)}


def train(folder, total_steps):
  """Runs training with checkpoints, both evaluations and metrics of every step."""
  loggers = [seqio.TensorBoardLogger, functools.partial(seqio.JSONLogger, write_n_results=0)]
  save = checkpoints.SaveCheckpointConfig(period=PERIOD, keep=2, save_dataset=True)
  toy_runs.run(
    folder,
    model=Model(noise=0.5),
    total_steps=total_steps,
    stats_period=1,
    eval_period=2 * PERIOD,
    train_eval_dataset_cfg=toy_runs.config("validation", shuffle=False),
    infer_eval_dataset_cfg=toy_runs.config("validation", batch_size=24, shuffle=False),
    inference_evaluator_cls=functools.partial(seqio.Evaluator, logger_cls=loggers),
    run_eval_before_training=True,
    checkpoint_cfg=checkpoints.CheckpointConfig(save=save),
  )


def written_metrics(folder):
  """Returns all metrics below `folder` except times, by file, step and name.

  Repeated steps must have the same values.
  """
  found = {}

  def add(place, step, name, value):
    if not name.startswith("timing/"):
      key = (place, step, name)
      assert found.setdefault(key, value) == value, f"{key}: {found[key]}, then {value}"

  for path in sorted(folder.rglob("*.jsonl")):
    for line in path.read_text().splitlines():
      record = json.loads(line)
      step = record.pop("step")
      for name, value in record.items():
        add(str(path.relative_to(folder)), step, name, value)
  return found


# --------------------------------------------------------------------------------------------
# Kills


def _kill_after(milliseconds):
  def kill():
    time.sleep(milliseconds / 1000)
    os.kill(os.getpid(), signal.SIGKILL)

  threading.Thread(target=kill, daemon=True).start()


def _arm(event, count, milliseconds):
  """Kills this process some milliseconds after `event` begins for the `count`-th time."""
  if event == "start":
    _kill_after(milliseconds)
    return
  owner, name = {
    "step": (data.TrainIterator, "__next__"),
    "save": (checkpoints.CheckpointManager, "save"),
    "checksums": (checksums, "write"),
    "evaluate": (eval_lib.InferenceEvaluator, "evaluate"),
  }[event]
  inner, seen = getattr(owner, name), []

  def wrapped(*args, **kwargs):
    seen.append(1)
    if len(seen) == count:
      _kill_after(milliseconds)
    return inner(*args, **kwargs)

  setattr(owner, name, wrapped)


def _in_a_child(work):
  """Runs `work` in a forked child; returns its status from os.waitpid."""
  sys.stdout.flush()
  child = os.fork()
  if not child:
    code = 1
    try:
      work()
      code = 0
    except BaseException:
      traceback.print_exc()
    finally:
      sys.stdout.flush()
      os._exit(code)
  return os.waitpid(child, 0)[1]


def assert_same_runs(first, second, total_steps):
  """Asserts bitwise equal last checkpoints and equal metrics of every step."""
  name = f"checkpoint_{total_steps}"
  jax.tree.map(
    np.testing.assert_array_equal,
    toy_runs.read_checkpoint(first / name),
    toy_runs.read_checkpoint(second / name),
  )
  wanted = written_metrics(first)
  assert written_metrics(second) == wanted
  lines = "train/metrics.jsonl"
  assert len({wanted[lines, step + 1, "batch"] for step in range(total_steps)}) > total_steps // 2
  kinds = {place for place, _, _ in wanted}
  assert kinds >= {lines, "training_eval/toy/metrics.jsonl", "inference_eval/toy-metrics.jsonl"}


def kill(folder, kills, cwd):
  """Trains `folder`/whole undisturbed, and `folder`/killed with SIGKILLs until it is finished."""
  done = subprocess.run(
    [sys.executable, __file__, str(folder), str(kills)],
    env=commands.environment(),
    cwd=cwd,
    capture_output=True,
    text=True,
    timeout=3000,
    check=False,
  )
  assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]


def _main(folder, kills):
  steps = 10 * kills
  assert _in_a_child(lambda: train(folder / "whole", steps)) == 0
  draw = random.Random(0)
  for number in range(kills):
    event, counts, delays = MOMENTS[number % len(MOMENTS)]
    count, milliseconds = draw.randint(1, counts), draw.uniform(0, delays)

    def attempt(event=event, count=count, milliseconds=milliseconds):
      _arm(event, count, milliseconds)
      train(folder / "killed", steps)

    status = _in_a_child(attempt)
    print(f"kill {number + 1}: {milliseconds:.1f} ms after {event} {count}", flush=True)
    assert os.waitstatus_to_exitcode(status) == -signal.SIGKILL
  assert _in_a_child(lambda: train(folder / "killed", steps)) == 0


if __name__ == "__main__":
  _main(storage.path(sys.argv[1]), int(sys.argv[2]))
