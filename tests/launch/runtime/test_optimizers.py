import functools

import flax.core
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax.linen.partitioning import AxisMetadata
from jax.sharding import PartitionSpec

from vmsst.errors import InputError
from vmsst.launch.runtime import adafactor, optimizers, train_state
from vmsst.launch.runtime.schedules import create_learning_rate_scheduler

PARAMS = {"mlp": {"bias": np.ones(3, np.float32), "kernel": np.ones((2, 3), np.float32)}}
AXES = {"mlp": {"bias": PartitionSpec("mlp"), "kernel": PartitionSpec("embed", "mlp")}}
WRAPPED = "adamw lamb lion sgd"


def gradient(step):
  rng = np.random.default_rng(step)
  return jax.tree.map(lambda x: rng.normal(size=x.shape).astype(np.float32), PARAMS)


def train_state_of(optimizer_def, collections=()):
  variables = {
    "params": PARAMS,
    "params_axes": {
      "mlp": {"bias_axes": AxisMetadata(("mlp",)), "kernel_axes": AxisMetadata(("embed", "mlp"))}
    },
    **dict(collections),
  }
  return train_state.TrainState.create(optimizer_def, flax.core.freeze(variables))


def arrays_by_path(tree):
  return {
    "/".join(str(key.key) for key in path): np.asarray(leaf)
    for path, leaf in jax.tree.leaves_with_path(tree)
  }


@pytest.mark.parametrize("name", WRAPPED.split())
def test_wrapped_optimizers_are_optaxs(name):
  theirs = getattr(optax, name)(0.01)
  state = train_state_of(optimizers.OptaxWrapper(theirs))
  params, opt_state = PARAMS, theirs.init(PARAMS)
  for step in range(3):
    state = state.apply_gradient(gradient(step), learning_rate=123.0)
    updates, opt_state = theirs.update(gradient(step), opt_state, params)
    params = optax.apply_updates(params, updates)
  assert state.step == 3
  jax.tree.map(
    functools.partial(np.testing.assert_allclose, rtol=1e-6),
    state.params,
    params,
  )


def clip_and_adamw():
  schedule = create_learning_rate_scheduler(warmup_steps=4)
  return optimizers.chain([optax.clip_by_global_norm(1.0), optax.adamw(schedule)])


def test_checkpoint_tree_of_a_chain():
  saved = arrays_by_path(train_state_of(clip_and_adamw()).state_dict())
  adam = "state/param_states/1/0"
  assert {path: array.shape for path, array in saved.items()} == {
    "target/mlp/bias": (3,),
    "target/mlp/kernel": (2, 3),
    "state/step": (),
    f"{adam}/count": (),
    f"{adam}/mu/mlp/bias": (3,),
    f"{adam}/mu/mlp/kernel": (2, 3),
    f"{adam}/nu/mlp/bias": (3,),
    f"{adam}/nu/mlp/kernel": (2, 3),
    "state/param_states/1/2/count": (),
  }
  assert saved["state/step"].dtype == np.int32


@pytest.mark.parametrize("make", [clip_and_adamw, adafactor.Adafactor])
def test_a_restored_state_continues_unchanged(make):
  trained = train_state_of(make())
  for step in range(3):
    trained = trained.apply_gradient(gradient(step), learning_rate=0.1)
  restored = train_state_of(make()).restore_state(jax.tree.map(np.asarray, trained.state_dict()))
  one_more = [
    state.apply_gradient(gradient(3), learning_rate=0.1).state_dict()
    for state in (trained, restored)
  ]
  jax.tree.map(np.testing.assert_array_equal, *one_more)


def test_restoring_the_state_of_another_optimizer_names_what_is_missing():
  saved = train_state_of(optimizers.OptaxWrapper(optax.sgd(0.1))).state_dict()
  with pytest.raises(InputError, match="state/param_states/1/0/mu/mlp/kernel"):
    train_state_of(clip_and_adamw()).restore_state(saved)


def is_matrix(params):
  return jax.tree.map(lambda x: x.ndim == 2, params)


def speed(params):
  return jax.tree.map(lambda x: "fast" if x.ndim == 2 else "slow", params)


TRANSFORMATIONS = {
  "masked": optax.masked(optax.adam(0.1), is_matrix),
  "injected": optax.inject_hyperparams(optax.adam)(learning_rate=0.1),
  "factored": optax.adafactor(0.1, min_dim_size_to_factor=2),
  "accumulated": optax.MultiSteps(optax.adam(0.1), every_k_schedule=2),
  "by label": optax.partition(
    {"fast": optax.adam(0.1), "slow": optax.sgd(0.1, momentum=0.9)}, speed
  ),
}


@pytest.mark.parametrize("name", TRANSFORMATIONS)
def test_axes_of_any_optax_state(name):
  state = train_state_of(optimizers.OptaxWrapper(TRANSFORMATIONS[name]))
  axes = state.as_logical_axes()
  by_path = dict(jax.tree.leaves_with_path(axes.state_dict(), is_leaf=lambda x: x is None))
  arrays = dict(jax.tree.leaves_with_path(state.state_dict()))
  assert set(by_path) == set(arrays)
  for path, array in arrays.items():
    leaf = path[-1].key
    expected = AXES["mlp"].get(leaf)
    if array.shape != PARAMS["mlp"].get(leaf, array).shape:
      expected = None  # row and column statistics
    assert by_path[path] == expected, jax.tree_util.keystr(path)
  # A partitioner maps axes to shardings through the state dict and puts them back.
  assert axes.restore_state(axes.state_dict()).state_dict() == axes.state_dict()


def test_axes_are_known_before_any_array_exists():
  make = functools.partial(train_state_of, clip_and_adamw())
  axes = jax.eval_shape(make).as_logical_axes()
  assert flax.core.unfreeze(axes.params) == AXES
  assert jax.tree.leaves(axes.param_states).count(PartitionSpec("embed", "mlp")) == 2


def test_other_variables_are_saved_with_their_axes():
  counter = {"anneal": {"count": jnp.zeros(())}, "anneal_axes": {"count_axes": AxisMetadata(())}}
  state = train_state_of(optimizers.OptaxWrapper(optax.sgd(0.1)), counter.items())
  state = state.apply_gradient(
    gradient(0), 0.1, flax_mutables=flax.core.freeze({"anneal": {"count": 7}})
  )
  assert state.state_dict()["flax_mutables"] == {"anneal": {"count": 7}}
  assert state.as_logical_axes().flax_mutables == {"anneal": {"count": PartitionSpec()}}
  inference = train_state.TrainState.create(None, {"params": PARAMS, "anneal": {"count": 0}})
  restored = inference.restore_state(state.state_dict())
  assert restored.flax_mutables["anneal"]["count"] == 7
  assert restored.step == 1
  np.testing.assert_array_equal(restored.params["mlp"]["kernel"], state.params["mlp"]["kernel"])


def test_variables_without_axes_are_named():
  variables = {"params": PARAMS, "params_axes": {"mlp": {"bias_axes": AxisMetadata(("mlp",))}}}
  with pytest.raises(InputError, match="'params' have no logical axes: mlp/kernel"):
    train_state.TrainState.create(None, variables)
  without = train_state.TrainState.create(
    optimizers.OptaxWrapper(optax.sgd(0.1)), {"params": PARAMS}
  )
  with pytest.raises(InputError, match="'params' has no logical axes"):
    without.as_logical_axes()
