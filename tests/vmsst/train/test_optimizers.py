"""Optimizers, learning rates and train states, against closed forms and optax."""

import functools
import math

import flax.core
import jax
import numpy as np
import optax
import pytest
from flax import traverse_util
from flax.linen.partitioning import AxisMetadata
from jax.sharding import PartitionSpec

from vmsst.errors import InputError
from vmsst.train import optimizers, train_state
from vmsst.train.optimizers import create_learning_rate_scheduler

PARAMS = {"mlp": {"bias": np.ones(3, np.float32), "kernel": np.ones((2, 3), np.float32)}}


def gradient(step):
  """Returns random gradients of PARAMS."""
  rng = np.random.default_rng(step)
  return jax.tree.map(lambda x: rng.normal(size=x.shape).astype(np.float32), PARAMS)


def train_state_of(optimizer_def):
  """Returns the train state of PARAMS, with their axes."""
  variables = {
    "params": PARAMS,
    "params_axes": {
      "mlp": {"bias_axes": AxisMetadata(("mlp",)), "kernel_axes": AxisMetadata(("embed", "mlp"))}
    },
  }
  return train_state.TrainState.create(optimizer_def, flax.core.freeze(variables))


AXES = {"mlp": {"bias": PartitionSpec("mlp"), "kernel": PartitionSpec("embed", "mlp")}}


@pytest.mark.parametrize("name", ["adamw", "sgd"])
def test_wrapped_optimizers_equal_optax(name):
  optax_optimizer = getattr(optax, name)(0.01)
  state = train_state_of(optimizers.OptaxWrapper(optax_optimizer))
  params, opt_state = PARAMS, optax_optimizer.init(PARAMS)
  for step in range(3):
    state = state.apply_gradient(gradient(step), learning_rate=123.0)
    updates, opt_state = optax_optimizer.update(gradient(step), opt_state, params)
    params = optax.apply_updates(params, updates)
  assert state.step == 3
  jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-6), state.params, params)


def test_frozen_parameters_keep_their_values_and_have_to_exist():
  state = train_state_of(optimizers.chain([optax.sgd(0.1)], frozen=[".*bias"]))
  after = state.apply_gradient(gradient(0), learning_rate=0.1)
  before, now = (traverse_util.flatten_dict(x.params, sep="/") for x in (state, after))
  same = {name for name in before if np.array_equal(before[name], now[name])}
  assert same == {"mlp/bias"}
  with pytest.raises(
    InputError, match=r"'mpl/kernel' matches no parameter; names are mlp/bias, mlp/kernel"
  ):
    train_state_of(optimizers.chain([optax.sgd(0.1)], frozen=["mlp/.*", "mpl/kernel"]))


def is_matrix(params):
  return jax.tree.map(lambda x: x.ndim == 2, params)


def speed(params):
  return jax.tree.map(lambda x: "fast" if x.ndim == 2 else "slow", params)


TRANSFORMATIONS = {
  "masked": optax.masked(optax.adam(0.1), is_matrix),
  "factored": optax.adafactor(0.1, min_dim_size_to_factor=2),
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


def rates(steps, **settings):
  schedule = jax.jit(create_learning_rate_scheduler(**settings))
  return np.array([schedule(step) for step in steps])


@pytest.mark.parametrize(
  ("factors", "expected"),
  [
    ("constant * linear_warmup * rsqrt_decay", lambda t: 0.5 * min(1, t / 40) / max(t, 40) ** 0.5),
    (
      "constant * linear_warmup * rsqrt_normalized_decay",
      lambda t: 0.5 * min(t / 40, (40 / max(t, 40)) ** 0.5),
    ),
    ("linear_decay", lambda t: 0.5 * min(t / 40, 1 + 0.01 * (40 - t))),
    ("constant * decay_every", lambda t: 0.5 * 0.01 ** (t // 30)),
    (
      "constant*cosine_decay",
      lambda t: 0.5 * (1 + math.cos(math.pi * (max(0, (t - 40) / 80) % 1))) / 2,
    ),
  ],
)
def test_factors_with_an_offset(factors, expected):
  steps = [0, 1000, 1001, 1029, 1030, 1039, 1040, 1041, 1075, 1119, 1120, 1135, 5000]
  actual = rates(
    steps,
    factors=factors,
    warmup_steps=40,
    decay_factor=0.01,
    steps_per_decay=30,
    steps_per_cycle=80,
    step_offset=1000,
  )
  floored = [max(expected(max(0, step - 1000)), 1e-8) for step in steps]
  np.testing.assert_allclose(actual, floored, rtol=1e-5, atol=1e-7)


LINEAR = {"factors": "linear_decay", "warmup_steps": 10}


@pytest.mark.parametrize("steps", [0, 1, 5, 10, 11, 200])
def test_a_slope_to_zero_ends_at_the_last_step_after_the_warm_up(steps):
  slope = optimizers.slope_to_zero(steps, warmup_steps=10)
  last, end = rates([max(steps - 1, 10), max(steps, 11)], **LINEAR, decay_factor=slope)
  assert last == pytest.approx(0.5 / max(1, steps - 10), rel=1e-4)
  assert end == pytest.approx(1e-8)


def test_an_unknown_factor_is_refused_and_a_warm_up_may_have_no_steps():
  assert rates([0, 1, 100], warmup_steps=0).tolist() == pytest.approx([1e-8, 0.5, 0.05])
  with pytest.raises(InputError, match=r"unknown factor 'linear_warmpu'.*linear_warmup"):
    create_learning_rate_scheduler(factors="constant * linear_warmpu")


def clip_and_adamw():
  schedule = create_learning_rate_scheduler(warmup_steps=4)
  return optimizers.chain([optax.clip_by_global_norm(1.0), optax.adamw(schedule)])


def test_a_restored_state_of_a_chain_continues_unchanged():
  trained = train_state_of(clip_and_adamw())
  for step in range(3):
    trained = trained.apply_gradient(gradient(step), learning_rate=0.1)
  restored = train_state_of(clip_and_adamw()).restore_state(
    jax.tree.map(np.asarray, trained.state_dict())
  )
  one_more = [
    state.apply_gradient(gradient(3), learning_rate=0.1).state_dict()
    for state in (trained, restored)
  ]
  jax.tree.map(np.testing.assert_array_equal, *one_more)
