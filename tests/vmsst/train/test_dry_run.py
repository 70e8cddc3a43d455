"""`t5x train --dry_run`: sizes and FLOPs, compared with counts by hand."""

import dataclasses
import importlib.util
import json
import re

import commands
import jax
import jax.numpy as jnp
import pytest
import toy_runs

from ems_jax.models import hard_negatives
from vmsst.data import vocabularies
from vmsst.errors import InputError
from vmsst.models import contrastive
from vmsst.networks import sentence_encoder, t5
from vmsst.train import adafactor, dry_run, input_pipeline, partitioning, utils


def flops(function, *shapes):
  """Returns the FLOPs of a function of float32 arrays of the given shapes."""
  arguments = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
  return dry_run.matmul_flops(jax.make_jaxpr(function)(*arguments).jaxpr)


MK, KN, KK = (2, 3), (3, 5), (3, 3)
MKN = 2 * 2 * 3 * 5  # one matmul of [2, 3] and [3, 5]
MKK = 2 * 2 * 3 * 3


def product(a, b):
  return a @ b


def squared(a, b):
  return jnp.sum(jnp.sin(a @ b) ** 2)


def repeated(a, b):
  return jax.lax.scan(lambda carry, _: (carry @ b, None), a, length=7)[0]


def either(a, b):
  return jax.lax.cond(a[0, 0] > 0, lambda: (a @ b) @ b, lambda: a @ b)


def until(a, b):
  return jax.lax.while_loop(lambda x: x[0, 0] < 9, lambda x: x @ b, a)


@pytest.mark.parametrize(
  ("function", "shapes", "expected"),
  [
    (product, (MK, KN), MKN),
    (jax.jit(product), (MK, KN), MKN),
    (product, ((4, 2, 3), (4, 3, 5)), 4 * MKN),
    (lambda a, b: jnp.einsum("hr,rqk->hqk", a, b), (MK, (3, 5, 5)), 5 * MKN),
    (lambda a, b: a + b, (MK, MK), 0),
    (repeated, (MK, KK), 7 * MKK),
    (either, (MK, KK), 2 * MKK),
    (until, (MK, KK), MKK),
    (jax.vmap(product), ((4, 2, 3), (4, 3, 5)), 4 * MKN),
    # Forward, and one matmul for each gradient; another forward if it is recomputed.
    (jax.grad(squared), (MK, KN), 2 * MKN),
    (jax.grad(squared, argnums=(0, 1)), (MK, KN), 3 * MKN),
    (jax.grad(lambda a, b: jnp.sum(repeated(a, b) ** 2), argnums=(0, 1)), (MK, KK), 3 * 7 * MKK),
    (jax.grad(jax.checkpoint(squared), argnums=(0, 1)), (MK, KN), 4 * MKN),
  ],
)
def test_matmuls_are_counted_through_loops_branches_and_gradients(function, shapes, expected):
  assert flops(function, *shapes) == expected


V, D, H, K, M, L, S, B, T = 50, 12, 3, 4, 20, 2, 8, 6, 16
BUCKETS = 32
LAYER = 4 * D * H * K + 3 * D * M + 2 * D
PARAMETERS = V * D + L * LAYER + D + H * BUCKETS + D * S


def tiny_step():
  """Returns the arguments of a `dry_run.Step`."""
  config = t5.T5Config(
    vocab_size=V, emb_dim=D, num_heads=H, head_dim=K, mlp_dim=M, num_encoder_layers=L
  )
  rules = adafactor.standard_logical_factor_rules()
  model = contrastive.ContrastiveModel(
    network=sentence_encoder.SentenceEncoder(config=config, latent_dim=S),
    vocabulary=vocabularies.ByteVocabulary(),
    optimizer_def=adafactor.Adafactor(logical_factor_rules=rules),
    max_length=T,
  )
  lengths = {"inputs": T, "targets": T, "input_language": 1, "target_language": 1}
  cfg = input_pipeline.DatasetConfig(None, lengths, "train", batch_size=B, shuffle=True, seed=0)
  return model, cfg, partitioning.PjitPartitioner(num_partitions=1), toy_runs.make_trainer(), 12


def test_parameters_and_flops_of_a_step_are_those_counted_by_hand():
  report = dry_run.describe(dry_run.Step(*tiny_step()))
  assert report["parameters"] == PARAMETERS == sum(report["parameters_by_module"].values())
  assert report["parameters_by_module"]["token_embedder"] == V * D
  assert report["parameters_by_module"]["encoder/layers_1"] == LAYER
  assert f"total {PARAMETERS:,}" in report["text"]

  sentences = 2 * B
  layer = sentences * (4 * 2 * T * D * H * K + 2 * 2 * T * T * H * K + 3 * 2 * T * D * M)
  forward = L * layer + 2 * sentences * D * S + 2 * B * B * S
  positions = 2 * H * BUCKETS * T * T  # the other factor is constant: one gradient, not two
  assert report["flops_per_step"] == 3 * forward + 2 * positions


def test_a_row_may_have_several_texts():
  model, cfg, *rest = tiny_step()
  before = dry_run.describe(dry_run.Step(model, cfg, *rest))["bytes_per_device"]
  lengths = {**cfg.task_feature_lengths, "negatives": (3, T)}
  model = hard_negatives.HardNegativesModel(
    network=model.network,
    vocabulary=model.input_vocabulary,
    optimizer_def=model.optimizer_def,
    max_length=T,
  )
  cfg = dataclasses.replace(cfg, task_feature_lengths=lengths)
  report = dry_run.describe(dry_run.Step(model, cfg, *rest))
  assert report["bytes_per_device"] == before + 4 * B * 3 * T


def test_bytes_are_those_of_a_real_state_gradients_and_batch():
  model, _, partitioner, *_ = step = tiny_step()
  report = dry_run.describe(dry_run.Step(*step))
  state = utils.TrainStateInitializer(
    optimizer_def=model.optimizer_def,
    init_fn=model.get_initial_variables,
    input_shapes={"inputs": (B, T)},
    partitioner=partitioner,
  ).from_scratch(jax.random.PRNGKey(0))
  real = sum(array.nbytes for array in jax.tree.leaves(state.state_dict()))
  batch = 4 * B * (T + T + 1 + 1)
  assert report["bytes_per_device"] == real + 4 * PARAMETERS + batch


def test_memory_of_a_step_is_that_of_its_state_and_of_what_comes_between():
  report = dry_run.memory(dry_run.Step(*tiny_step()))
  parts = {name: float(size) for name, size in re.findall(r"(\w+) ([\d.]+) MiB", report["text"])}
  whole = dry_run.describe(dry_run.Step(*tiny_step()))["bytes_per_device"]
  state = whole - 4 * PARAMETERS  # parameters, optimizer, batch
  assert parts["arguments"] == pytest.approx(state / 2**20, abs=0.06)
  assert parts["temporary"] * 2**20 > 4 * PARAMETERS  # gradients, hidden states
  assert report["peak_bytes_per_device"] > state + 4 * PARAMETERS


def test_devices_that_are_too_small_are_named(monkeypatch):
  def compile_nothing(self):
    raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: 26.47G exceeds 15.75G\nmore")

  monkeypatch.setattr(jax.stages.Lowered, "compile", compile_nothing)
  with pytest.raises(InputError, match=r"does not fit 1 cpu: RESOURCE_EXHAUSTED: .*15.75G. Raise"):
    dry_run.memory(dry_run.Step(*tiny_step()))


WIDTH, VOCABULARY = 1024, 250_112


def paper_size(layers, shared_by=1):
  """Returns the parameters per device, with tables in `shared_by` shards."""
  cut = VOCABULARY * WIDTH + layers * (4 * WIDTH * WIDTH + 3 * WIDTH * 2816) + 16 * BUCKETS
  whole = (2 * layers + 1) * WIDTH + WIDTH * WIDTH
  return cut // shared_by + whole


@pytest.mark.slow
def test_tables_are_cut_over_the_partitions(tmp_path):
  options = ("--gin.NUM_PARTITIONS=2", "--gin.t5.T5Config.num_encoder_layers=1", "--dry_run")
  arguments = ("train", "--gin_file=contrastive_6l.gin", *options)
  done = commands.t5x(*arguments, cwd=tmp_path, devices=8)
  assert done.returncode == 0, done.stderr
  assert done.stderr == ""
  assert done.stdout.startswith("mesh: data=4 model=2 (8 cpu devices)\nbatch: 2048 examples, ")
  assert "embedding  [250112, 1024]  P('model', None)  488.5\n" in done.stdout
  report = json.loads(done.stdout.splitlines()[-1])
  assert set(report) == {"parameters", "parameters_by_module", "flops_per_step", "bytes_per_device"}
  assert report["parameters"] == 270_011_904 == paper_size(layers=1)
  # Parameters and gradients; Adafactor's factors and the batch are small in comparison.
  here = 2 * 4 * paper_size(layers=1, shared_by=2)
  assert here < report["bytes_per_device"] < 1.01 * here
  assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize(
  ("topology", "packages", "kind"),
  [
    ("h100:8", ("jax_cuda12_plugin", "jax_cuda13_plugin"), "NVIDIA H100"),
    ("v5e:2x4", ("libtpu",), "TPU v5 lite"),
  ],
)
def test_a_step_is_compiled_for_devices_that_are_not_there(tmp_path, topology, packages, kind):
  if not any(map(importlib.util.find_spec, packages)):
    pytest.skip(f"needs an accelerator's compiler: {' or '.join(packages)}")
  # MAX_LENGTH is 20, which XLA's Triton matmuls cannot tile without a GPU.
  options = ("--gin_file=quickstart.gin", "--dry_run=memory", f"--topology={topology}")
  done = commands.run([commands.T5X, "train", *options], cwd=tmp_path, variables=commands.OPTIMIZED)
  assert f"mesh: data=8 model=1 (8 {kind} devices)" in done.stdout
  report = json.loads(done.stdout.splitlines()[-1])
  assert report["bytes_per_device"] / 2 < report["peak_bytes_per_device"] < 1e9
