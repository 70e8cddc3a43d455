"""LoRA as state of the optimizer, against gradients of the two matrices themselves."""

import commands
import jax
import numpy as np
import optax
import pytest
import tiny_models
import toy_runs
from flax import traverse_util

from vmsst.data import vocabularies
from vmsst.errors import InputError
from vmsst.models import contrastive
from vmsst.networks import sentence_encoder, transformer
from vmsst.train import lora, optimizers, partitioning, train_state

RANK, ALPHA, STEPS, B = 2, 6.0, 4, 16
RATE = 0.05


def adamw():
  return optax.chain(optax.clip_by_global_norm(0.5), optax.adamw(RATE, weight_decay=0.1))


def make_model(targets=(".*kernel",), vocab_size=60, layers=2):
  config = transformer.TransformerConfig(
    vocab_size=vocab_size, emb_dim=16, num_heads=4, mlp_dim=24, num_layers=layers, max_positions=9,
    scan_layers=True, initializer_std=0.3,
  )  # fmt: skip
  return contrastive.ContrastiveModel(
    network=sentence_encoder.SentenceEncoder(config, latent_dim=8),
    vocabulary=vocabularies.ByteVocabulary(),
    optimizer_def=lora.Lora(optimizers.chain([adamw()]), RANK, ALPHA, targets),
  )


def make_batch(step):
  return tiny_models.random_batch(step, B, (8, 8), (2, 60))


def initializer(model, partitioner=None):
  return train_state.TrainStateInitializer(
    optimizer_def=model.optimizer_def,
    init_fn=model.get_initial_variables,
    input_shapes={"inputs": (B, 8), "targets": (B, 8)},
    partitioner=partitioner or partitioning.PjitPartitioner(num_partitions=1),
  )


def train(model, steps=STEPS, num_partitions=1):
  """The first and the last train state."""
  partitioner = partitioning.PjitPartitioner(num_partitions=num_partitions)
  states = initializer(model, partitioner)
  first = states.from_scratch(jax.random.PRNGKey(0))
  trainer = toy_runs.make_trainer()(
    model=model, train_state=first, partitioner=partitioner, eval_names=[], summary_dir=None,
    train_state_axes=states.train_state_axes, rng=jax.random.PRNGKey(1),
  )  # fmt: skip
  first = toy_runs.host(first)
  batches = (partitioner.to_devices(make_batch(step)) for step in range(steps))
  trainer.train(batches, steps, 0)
  return first, toy_runs.host(trainer.train_state)


def flat(tree):
  return traverse_util.flatten_dict(tree, sep="/")


def test_kernels_equal_training_the_two_matrices_directly():
  model = make_model()
  first, last = train(model)
  base, factors = flat(first.params), flat(first.param_states["factors"])
  kernels = {name for name in base if name.endswith("kernel")}
  assert {name.rpartition("/")[0] for name in factors} == kernels
  assert {"encoder/layers/mlp/wo/kernel", "mean/kernel"} < kernels

  def merged(factors):
    changed = {
      name: base[name] + ALPHA / RANK * factors[f"{name}/a"] @ factors[f"{name}/b"]
      for name in kernels
    }
    return {**base, **changed}

  @jax.jit
  def update(factors, state, batch):
    def loss(factors):
      params = traverse_util.unflatten_dict(merged(factors), sep="/")
      return model.loss_fn(params, batch, None)[0]

    updates, state = adamw().update(jax.grad(loss)(factors), state, factors)
    return optax.apply_updates(factors, updates), state

  state = adamw().init(factors)
  for step in range(STEPS):
    factors, state = update(factors, state, make_batch(step))
  tiny_models.assert_trees_close(
    flat(last.param_states["factors"]), dict(factors), rtol=1e-3, atol=1e-5
  )
  tiny_models.assert_trees_close(flat(last.params), merged(factors), rtol=1e-3, atol=1e-5)
  for name in base:
    assert np.array_equal(base[name], flat(last.params)[name]) == (name not in kernels), name


def test_a_restored_state_continues_unchanged():
  _, expected = train(make_model())
  _, interrupted = train(make_model(), steps=STEPS - 1)
  restored = interrupted.restore_state(jax.tree.map(np.asarray, interrupted.state_dict()))
  assert jax.tree.structure(restored) == jax.tree.structure(interrupted)
  gradients = jax.tree.map(np.ones_like, expected.params)
  one_more = [
    state.apply_gradient(gradients, 0.1).state_dict() for state in (interrupted, restored)
  ]
  jax.tree.map(np.testing.assert_array_equal, *one_more)


@pytest.mark.parametrize(
  ("target", "message"),
  [("attention/.*", "'attention/.*' matches no parameter"), (".*bias", r"has shape \(16,\)")],
)
def test_targets_are_kernels_that_exist(target, message):
  with pytest.raises(InputError, match=message):
    initializer(make_model([".*/attention/.*kernel", target]))


def test_a_frozen_table_has_neither_moments_nor_a_gradient():
  model = make_model([".*/attention/.*kernel"], layers=1, vocab_size=100_000)
  states = initializer(model)
  state = states.global_train_state_shape
  table = 100_000 * 16
  sizes = [x.size for x in jax.tree.leaves(state.param_states)]
  assert sum(sizes) < 0.1 * table

  def step(state, batch):
    grads, _ = jax.grad(model.loss_fn, has_aux=True)(state.params, batch, None)
    return state.apply_gradient(grads, 0.1)

  memory = jax.jit(step, donate_argnums=0).lower(state, make_batch(0)).compile().memory_analysis()
  assert memory.temp_size_in_bytes < 4 * table / 4  # bytes


def run_on_eight_devices(folder):
  """Saves the last parameters of a run on eight devices."""
  _, last = train(make_model(), num_partitions=2)
  tiny_models.save(folder / "params.npz", jax.tree.leaves(last.params))


def test_eight_devices_have_the_results_of_one(tmp_path):
  commands.on_eight_devices(__file__, tmp_path)
  _, last = train(make_model())
  expected = jax.tree.leaves(last.params)
  tiny_models.assert_saved_equal(tmp_path / "params.npz", expected, rtol=1e-3, atol=1e-4)
