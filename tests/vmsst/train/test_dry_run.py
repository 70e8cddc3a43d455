"""`t5x train --dry_run`: sizes and FLOPs, compared with counts by hand."""

import importlib.util
import json
import re

import commands
import jax
import jax.numpy as jnp
import pytest
import toy_runs

from vmsst.data import vocabularies
from vmsst.errors import InputError
from vmsst.models import contrastive
from vmsst.networks import sentence_encoder, t5
from vmsst.train import adafactor, dry_run, input_pipeline, partitioning, utils


def flops(function, *shapes):
  """Returns the FLOPs of a function of float32 arrays with these shapes."""
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
    (jax.jit(product), (MK, KN), MKN),
    (lambda a, b: jnp.einsum("hr,rqk->hqk", a, b), (MK, (3, 5, 5)), 5 * MKN),
    (repeated, (MK, KK), 7 * MKK),
    (either, (MK, KK), 2 * MKK),
    (until, (MK, KK), MKK),
    (jax.vmap(product), ((4, 2, 3), (4, 3, 5)), 4 * MKN),
    # A forward matmul, a matmul for each of two gradients, and perhaps a recomputed forward matmul.
    (jax.grad(squared, argnums=(0, 1)), (MK, KN), 3 * MKN),
    (jax.grad(jax.checkpoint(squared), argnums=(0, 1)), (MK, KN), 4 * MKN),
  ],
)
def test_matmuls_are_counted_through_loops_branches_and_gradients(function, shapes, expected):
  assert flops(function, *shapes) == expected


V, D, H, K, M, L, S, B, T = 50, 12, 3, 4, 20, 2, 8, 6, 16
BUCKETS = 32
LAYER = 4 * D * H * K + 3 * D * M + 2 * D
PARAMETERS = V * D + L * LAYER + D + H * BUCKETS + D * S


def report(with_memory=False, **lengths):
  """Returns the report of a tiny model, and the model."""
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
  lengths = {"inputs": T, "targets": T, "input_language": 1, "target_language": 1, **lengths}
  cfg = input_pipeline.DatasetConfig(None, lengths, "train", batch_size=B, shuffle=True, seed=0)
  mesh = partitioning.PjitPartitioner(num_partitions=1)
  trainer_cls = toy_runs.make_trainer()
  return dry_run.report(model, cfg, mesh, trainer_cls, with_memory=with_memory), model


def test_parameters_flops_and_bytes_equal_counts_by_hand(capsys):
  numbers, model = report()
  assert numbers["parameters"] == PARAMETERS
  assert f"parameters: {PARAMETERS:,}" in capsys.readouterr().out

  sentences = 2 * B
  layer = sentences * (4 * 2 * T * D * H * K + 2 * 2 * T * T * H * K + 3 * 2 * T * D * M)
  forward = L * layer + 2 * sentences * D * S + 2 * B * B * S
  positions = 2 * H * BUCKETS * T * T  # one gradient, since the other factor is constant
  assert numbers["flops_per_step"] == 3 * forward + 2 * positions

  state = utils.TrainStateInitializer(
    optimizer_def=model.optimizer_def,
    init_fn=model.get_initial_variables,
    input_shapes={"inputs": (B, T)},
    partitioner=partitioning.PjitPartitioner(num_partitions=1),
  ).from_scratch(jax.random.PRNGKey(0))
  real = sum(array.nbytes for array in jax.tree.leaves(state.state_dict()))
  batch = 4 * B * (T + T + 1 + 1)
  assert numbers["bytes_per_device"] == real + 4 * PARAMETERS + batch
  several, _ = report(negatives=(3, T))  # texts in a row
  assert several["bytes_per_device"] == numbers["bytes_per_device"] + 4 * B * 3 * T


def test_memory_of_a_step_is_its_state_and_temporary_arrays(capsys, monkeypatch):
  numbers, _ = report(with_memory=True)
  printed = capsys.readouterr().out.splitlines()[-1]
  mebibytes = {name: float(size) for name, size in re.findall(r"(\w+) ([\d.]+) MiB", printed)}
  state = numbers["bytes_per_device"] - 4 * PARAMETERS  # parameters, optimizer, batch
  assert mebibytes["arguments"] == pytest.approx(state / 2**20, abs=0.06)
  assert mebibytes["temporary"] * 2**20 > 4 * PARAMETERS  # gradients, hidden states
  peak = mebibytes["arguments"] + mebibytes["results"] + mebibytes["temporary"]
  assert numbers["peak_bytes_per_device"] / 2**20 == pytest.approx(peak, abs=0.2)

  def compile_nothing(self):
    raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: 26.47G exceeds 15.75G\nmore")

  monkeypatch.setattr(jax.stages.Lowered, "compile", compile_nothing)
  with pytest.raises(
    InputError, match=r"does not fit on 1 cpu: RESOURCE_EXHAUSTED: .*15.75G. Raise"
  ):
    report(with_memory=True)


WIDTH, VOCABULARY = 1024, 250_112


@pytest.mark.slow
def test_tables_are_sharded_over_the_partitions(tmp_path):
  options = ("--gin.NUM_PARTITIONS=2", "--gin.t5.T5Config.num_encoder_layers=1", "--dry_run")
  arguments = ("train", "--gin_file=contrastive_6l.gin", *options)
  done = commands.t5x(*arguments, cwd=tmp_path, devices=8)
  assert done.returncode == 0, done.stderr
  assert done.stderr == ""
  assert done.stdout.startswith("mesh: data=4 model=2 (8 cpu devices)\nbatch: 2048 examples, ")
  assert "embedding  [250112, 1024]  P('model', None)  488.5 MiB\n" in done.stdout
  numbers = json.loads(done.stdout.splitlines()[-1])
  assert set(numbers) == {"parameters", "flops_per_step", "bytes_per_device"}
  sharded = VOCABULARY * WIDTH + 4 * WIDTH * WIDTH + 3 * WIDTH * 2816 + 16 * BUCKETS
  replicated = 3 * WIDTH + WIDTH * WIDTH
  assert numbers["parameters"] == 270_011_904 == sharded + replicated
  # Parameters and gradients; Adafactor's factors and the batch are small in comparison.
  bytes_per_device = 2 * 4 * (sharded // 2 + replicated)
  assert bytes_per_device < numbers["bytes_per_device"] < 1.01 * bytes_per_device
  assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize(
  ("topology", "packages", "kind"),
  [
    ("h100:8", ("jax_cuda12_plugin", "jax_cuda13_plugin"), "NVIDIA H100"),
    ("v5e:2x4", ("libtpu",), "TPU v5 lite"),
  ],
)
def test_a_step_is_compiled_for_devices_that_this_machine_lacks(tmp_path, topology, packages, kind):
  if not any(map(importlib.util.find_spec, packages)):
    pytest.skip(f"needs an accelerator's compiler: {' or '.join(packages)}")
  # MAX_LENGTH is 20, which XLA's Triton matmuls cannot tile without a GPU.
  options = ("--gin_file=quickstart.gin", "--dry_run=memory", f"--topology={topology}")
  done = commands.run([commands.T5X, "train", *options], cwd=tmp_path, variables=commands.OPTIMIZED)
  assert f"mesh: data=8 model=1 (8 {kind} devices)" in done.stdout
  report = json.loads(done.stdout.splitlines()[-1])
  assert report["bytes_per_device"] / 2 < report["peak_bytes_per_device"] < 1e9
