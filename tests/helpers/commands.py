"""Runs the installed `t5x` command, or a script, in a separate process."""

import os
import pathlib
import subprocess
import sys
import sysconfig

HELPERS = str(pathlib.Path(__file__).parent)
T5X = pathlib.Path(sysconfig.get_path("scripts")) / "t5x"

# The quickstart, small enough to train in a test.
TINY = (
  "--gin_file=quickstart.gin",
  "--gin.TRAIN_STEPS=2",
  "--gin.EVAL_PERIOD=2",
  "--gin.CHECKPOINT_PERIOD=2",
  "--gin.BATCH_SIZE=16",
  "--gin.EMBED_DIM=16",
  "--gin.bitext.sample.num_meanings=50",
  "--gin.evaluation.sample_retrieval.num_meanings=40",
)


def environment(devices=1):
  """Returns the environment of a process with `devices` devices that can import these helpers."""
  outside = dict(os.environ)
  flags = f"{outside.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={devices}"
  outside.pop("TF_CPP_MIN_LOG_LEVEL", None)  # set by importing jax here
  return {**outside, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags, "PYTHONPATH": HELPERS}


def t5x(*arguments, cwd, devices=1):
  """Runs `t5x arguments`; returns exit code and text of both streams."""
  return _run([str(T5X), *map(str, arguments)], cwd, devices, None)


def script(code, *arguments, cwd, devices=1, text=None, timeout=300):
  """Runs a Python script with `text` as standard input; fails if the script fails."""
  command = [sys.executable, "-c", code, *map(str, arguments)]
  done = _run(command, cwd, devices, text, timeout)
  assert done.returncode == 0, done.stderr
  return done


def _run(command, cwd, devices, text, timeout=300):
  return subprocess.run(
    command,
    cwd=cwd,
    env=environment(devices),
    input=text,
    stdin=subprocess.DEVNULL if text is None else None,
    capture_output=True,
    text=True,
    timeout=timeout,
  )
