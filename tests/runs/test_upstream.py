"""Compares upstream T5X and the bundled runtime with one gin file. Needs upstream T5X."""

import importlib.util
import json
import shutil

import commands
import numpy as np
import pytest

import vmsst

pytestmark = pytest.mark.skipif(
  importlib.util.find_spec("t5x") is None, reason="upstream T5X is not installed"
)

STEPS = 5
STOP = 2
ARGUMENTS = (
  *commands.TINY,
  f"--gin.TRAIN_STEPS={STEPS}",
  "--gin.STATS_PERIOD=1",
  f"--gin.CHECKPOINT_PERIOD={STOP}",
  f"--gin.EVAL_PERIOD={2 * STOP}",
)
FEW_ULPS = 1e-5


def train(folder, runtime, arguments=ARGUMENTS):
  """Trains in `folder` with the `t5x` command, or with `python -m t5x.main`."""
  folder.mkdir(parents=True, exist_ok=True)
  where = f"--gin.MODEL_DIR='{folder}'"
  if runtime == "bundled":
    # With arguments, `main` does not re-execute this process, a fork.
    code = "import sys; from vmsst.launch.main import main; main(sys.argv[1:])"
    commands.script(code, "train", *arguments, where, cwd=folder)
  else:
    code = "import runpy; runpy.run_module('t5x.main', run_name='__main__', alter_sys=True)"
    flags = ("--run_mode=train", f"--gin_search_paths={vmsst.gin_dir()}")
    step = "--gin_file=runs/upstream.gin"
    commands.script(code, *flags, *arguments, step, where, cwd=folder)


def losses(folder):
  """Returns the loss of each step that a runtime wrote to TensorBoard."""
  code = """
import glob, json, sys
import tensorflow as tf
losses = {}
for path in glob.glob(sys.argv[1] + "/train/events*"):
  for record in tf.data.TFRecordDataset(path).as_numpy_iterator():
    event = tf.compat.v1.Event.FromString(record)
    losses.update({event.step: float(tf.make_ndarray(v.tensor)) for v in event.summary.value
                   if v.tag == "loss"})
print(json.dumps(losses))
"""
  printed = commands.script(code, folder, cwd=folder).stdout
  return {int(step): loss for step, loss in json.loads(printed).items()}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
  """Trains with each runtime, and resumes each run halfway with the other; returns the folder."""
  folder = tmp_path_factory.mktemp("upstream")
  for runtime in ("bundled", "upstream"):
    train(folder / runtime, runtime)
  for first, second in (("bundled", "upstream"), ("upstream", "bundled")):
    middle = folder / first / f"checkpoint_{STOP}"
    shutil.copytree(middle, folder / f"{first}_{second}" / middle.name)
    train(folder / f"{first}_{second}", second)
  return folder


def test_both_runtimes_have_the_same_losses_with_one_gin_file(runs):
  bundled, upstream = losses(runs / "bundled"), losses(runs / "upstream")
  assert sorted(bundled) == sorted(upstream) == list(range(1, STEPS + 1))
  assert bundled[1] == pytest.approx(upstream[1], rel=1e-6)
  np.testing.assert_allclose(
    [bundled[step] for step in upstream], list(upstream.values()), rtol=FEW_ULPS
  )


@pytest.mark.parametrize("name", ["bundled_upstream", "upstream_bundled"])
def test_each_runtime_resumes_the_runs_of_the_other(runs, name):
  whole, rest = losses(runs / "bundled"), losses(runs / name)
  assert sorted(rest) == list(range(STOP + 1, STEPS + 1))
  np.testing.assert_allclose(list(rest.values()), [whole[step] for step in rest], rtol=FEW_ULPS)
