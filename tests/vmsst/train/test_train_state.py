"""Train states: what they save, restore and how it is sharded."""

import flax.core
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import toy_runs
from flax.linen.partitioning import AxisMetadata
from jax.sharding import PartitionSpec

from vmsst.errors import InputError
from vmsst.train import optimizers, train_state
from vmsst.train.utils import create_learning_rate_scheduler


def clip_and_adamw():
  schedule = create_learning_rate_scheduler(warmup_steps=4)
  return optimizers.chain([optax.clip_by_global_norm(1.0), optax.adamw(schedule)])


def test_a_restored_state_of_a_chain_continues_unchanged():
  trained = toy_runs.train_state_of(clip_and_adamw())
  for step in range(3):
    trained = trained.apply_gradient(toy_runs.gradient(step), learning_rate=0.1)
  restored = toy_runs.train_state_of(clip_and_adamw()).restore_state(
    jax.tree.map(np.asarray, trained.state_dict())
  )
  one_more = [
    state.apply_gradient(toy_runs.gradient(3), learning_rate=0.1).state_dict()
    for state in (trained, restored)
  ]
  jax.tree.map(np.testing.assert_array_equal, *one_more)


def test_other_variables_are_saved_with_their_axes():
  counter = {"anneal": {"count": jnp.zeros(())}, "anneal_axes": {"count_axes": AxisMetadata(())}}
  state = toy_runs.train_state_of(optimizers.OptaxWrapper(optax.sgd(0.1)), counter.items())
  state = state.apply_gradient(
    toy_runs.gradient(0), 0.1, flax_mutables=flax.core.freeze({"anneal": {"count": 7}})
  )
  assert state.state_dict()["flax_mutables"] == {"anneal": {"count": 7}}
  assert state.as_logical_axes().flax_mutables == {"anneal": {"count": PartitionSpec()}}
  inference = train_state.TrainState.create(
    None, {"params": toy_runs.PARAMS, "anneal": {"count": 0}}
  )
  restored = inference.restore_state(state.state_dict())
  assert restored.flax_mutables["anneal"]["count"] == 7
  assert restored.step == 1
  np.testing.assert_array_equal(restored.params["mlp"]["kernel"], state.params["mlp"]["kernel"])


def test_variables_without_axes_are_named():
  without = train_state.TrainState.create(
    optimizers.OptaxWrapper(optax.sgd(0.1)), {"params": toy_runs.PARAMS}
  )
  with pytest.raises(InputError, match="'params' has no logical axes"):
    without.as_logical_axes()
