"""The benchmark of a step at the papers' sizes: its FLOPs, and tiny runs on a CPU."""

import dataclasses
import importlib
import json
import pathlib
import subprocess
import sys

import jax
import pytest

ROOT = pathlib.Path(__file__).resolve().parents[1]
BENCHMARKS = ROOT / "benchmarks"
pytestmark = pytest.mark.slow


@pytest.fixture
def paper_step(monkeypatch):
  monkeypatch.syspath_prepend(BENCHMARKS)
  names = ("paper_step", "measure")
  yield importlib.import_module(names[0])
  for name in names:
    del sys.modules[name]


@pytest.mark.parametrize("name", ["vmsst_6l", "bitranslation_6l", "contrastive_6l", "ems"])
def test_model_flops_agree_with_xla(name, paper_step):
  # Wide enough that elementwise operations, which XLA counts too, are few.
  size = dataclasses.replace(
    paper_step.SIZES["tiny"], width=512, mlp=1024, vocabulary=4096, length=16, pairs=8
  )
  model = paper_step.make_model(name, size, dtype="float32", scan_layers=False)
  shapes = jax.eval_shape(
    lambda rng: model.get_initial_variables(rng, {"inputs": (1, size.length)})["params"],
    jax.random.key(0),
  )
  # Without a key there is no dropout; all tokens are one chunk, as XLA counts a loop's body once.
  loss_and_gradients = jax.value_and_grad(model.loss_fn, has_aux=True)
  with paper_step.projection_chunk(4 * size.pairs * size.length):
    lowered = jax.jit(lambda params, batch: loss_and_gradients(params, batch, None)).lower(
      shapes, paper_step.make_batch(size)
    )
  expected = lowered.cost_analysis()["flops"]
  found = paper_step.model_flops(model.network, size.pairs, size.length)
  assert found == pytest.approx(expected, rel=0.04)


def test_a_tiny_step_runs_on_a_cpu():
  command = [sys.executable, BENCHMARKS / "paper_step.py", "--model=ems", "--size=tiny"]
  # Enough steps of the warm-up for the loss to fall by more than dropout changes it.
  command += ["--peak_tflops=0.1", "--steps=150", "--microbatches=2", "--scan_layers", "--profile"]
  done = subprocess.run(command, capture_output=True, text=True, check=True)
  line, profile, last = map(json.loads, done.stdout.splitlines())
  assert line["pairs_per_second"] > 0
  assert line["peak_gb"] > 0
  assert line["losses"][1] < line["losses"][0]
  assert {"encoder/dense", "projection", "optimizer"} <= set(profile["profile"]["by_component"])
  assert {"forward", "backward", "optimizer"} <= set(profile["profile"]["by_pass"])
  assert last["ratio"] == pytest.approx(line["mfu"] / 0.5, abs=1e-3)
