"""Benchmarks at the papers' sizes: FLOPs, sizes, profiles, and tiny runs on a CPU."""

import argparse
import dataclasses
import importlib
import json
import pathlib
import re
import subprocess
import sys

import jax
import pytest

ROOT = pathlib.Path(__file__).resolve().parents[1]
BENCHMARKS = ROOT / "benchmarks"


@pytest.fixture
def paper_step(monkeypatch):
  monkeypatch.syspath_prepend(BENCHMARKS)
  names = ("paper_step", "measure")
  yield importlib.import_module(names[0])
  for name in names:
    del sys.modules[name]


@pytest.mark.parametrize(
  "name",
  [
    "vmsst_6l",
    pytest.param("bitranslation_6l", marks=pytest.mark.slow),
    pytest.param("contrastive_6l", marks=pytest.mark.slow),
    "ems",
  ],
)
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


@pytest.mark.parametrize(
  ("name", "constants"),
  [
    ("24l", ("num_encoder_layers", "remat")),
    ("6l", ("num_heads", "mlp_dim", "MAX_LENGTH", "VOCAB_SIZE", "EMBED_DIM")),
    ("ems", ("num_layers", "num_heads", "mlp_dim", "MAX_LENGTH", "VOCAB_SIZE", "EMBED_DIM")),
  ],
)
def test_sizes_are_those_of_the_gin_files(name, constants, paper_step):
  fields = {
    "num_encoder_layers": "layers",
    "num_layers": "layers",
    "num_heads": "heads",
    "mlp_dim": "mlp",
    "MAX_LENGTH": "length",
    "VOCAB_SIZE": "vocabulary",
    "EMBED_DIM": "width",
  }
  text = (ROOT / f"gin/sizes/{name}.gin").read_text(encoding="utf-8")
  for constant in constants:
    (value,) = re.findall(rf"{constant} = '?(\w+)", text)
    assert str(getattr(paper_step.SIZES[name], fields.get(constant, constant))) == value


def test_scopes_name_components_and_passes(paper_step):
  scopes = {
    "jit(step)/optimizer/add": ("optimizer", "optimizer"),
    "jit(step)/transpose(jvp(N))/encoder/mlp/wi_0": ("encoder/dense", "backward"),
    "jit(step)/jvp(N)/projection/while/body/exp": ("projection", "forward"),
    "": ("unattributed", "unattributed"),
  }
  found = {x: (paper_step.component_of(x), paper_step.pass_of(x)) for x in scopes}
  assert found == scopes


@pytest.mark.slow
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


def test_no_heavy_package_is_imported():
  code = "import sys; sys.path.insert(0, sys.argv[1]); import paper_step; print(*sys.modules)"
  command = [sys.executable, "-c", code, BENCHMARKS]
  done = subprocess.run(command, capture_output=True, text=True, check=True)
  assert not {"tensorflow", "seqio", "gin", "orbax"} & set(done.stdout.split())


HLO = """HloModule jit_step

%fused (p: f32[2]) -> f32[2] {
  %p = f32[2]{0} parameter(0)
  ROOT %add.1 = f32[2]{0} add(%p, %p), metadata={op_name="jit(step)/optimizer/add"}
}

ENTRY %main (a: f32[2]) -> (f32[2]) {
  %a = f32[2]{0} parameter(0)
  %fusion = f32[2]{0} fusion(%a), kind=kLoop, calls=%fused
  ROOT %tuple = (f32[2]{0}) tuple(%fusion)
}
"""


def test_a_fusion_has_the_scope_of_its_last_named_instruction(paper_step):
  found = paper_step.instruction_scopes(HLO)
  assert found["fusion"] == ("fusion", "jit(step)/optimizer/add")
  assert found["tuple"] == ("tuple", "")


def test_the_peak_follows_the_name_of_the_device(paper_step):
  names = {"NVIDIA H100 80GB HBM3": 989.4, "TPU v5 lite": 197, "TPU v5": 459, "cpu": None}
  for name, peak in names.items():
    device = argparse.Namespace(device_kind=name)
    assert paper_step.peak_tflops(device, None) == peak
    assert paper_step.peak_tflops(device, 7.0) == 7.0
