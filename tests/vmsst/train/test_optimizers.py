"""Optimizers and learning rates, against the papers' algorithms and optax."""

import functools
import math

import flax.core
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import toy_runs
from flax import traverse_util
from flax.linen.partitioning import AxisMetadata
from jax.sharding import PartitionSpec

from vmsst.errors import InputError
from vmsst.train import adafactor, optimizers, schedules, train_state
from vmsst.train.utils import create_learning_rate_scheduler

# --------------------------------------------------------------------------------------------
# Adafactor

LEARNING_RATES = [0.1, 0.05, 0.2, 0.1, 0.1]


def random_tree(shapes, seed, scale=1.0):
  rng = np.random.default_rng(seed)
  return {
    name: (scale * rng.normal(size=shape)).astype(np.float32) for name, shape in shapes.items()
  }


def new_state(optimizer_def, params, axes=None):
  variables = {"params": params}
  if axes:
    variables["params_axes"] = {f"{x}_axes": AxisMetadata(names) for x, names in axes.items()}
  return train_state.TrainState.create(optimizer_def, variables)


def train_with(state, grads):
  step = jax.jit(lambda state, grad, rate: state.apply_gradient(grad, rate))
  for grad, rate in zip(grads, LEARNING_RATES, strict=True):
    state = step(state, grad, rate)
  return state


def root_mean_square(x):
  return np.sqrt(np.mean(np.square(x)))


def paper_adafactor(x, grads, factored):
  """Algorithms 4 (vectors) and 5 (matrices) of Shazeer and Stern, in float64."""
  x = x.astype(np.float64)
  moment = rows = columns = 0.0
  for t, (grad, rate) in enumerate(zip(grads, LEARNING_RATES, strict=True), start=1):
    decay = 1 - t**-0.8
    squared = np.square(grad.astype(np.float64)) + 1e-30
    moment = decay * moment + (1 - decay) * squared
    estimate = moment
    if factored:
      rows = decay * rows + (1 - decay) * squared.sum(axis=1)
      columns = decay * columns + (1 - decay) * squared.sum(axis=0)
      estimate = np.outer(rows, columns) / rows.sum()
    update = grad / np.sqrt(estimate)
    update = update / max(1, root_mean_square(update))
    x = x - rate * max(1e-3, root_mean_square(x)) * update
  return x


def test_factored_and_whole_moments_follow_the_paper():
  shapes = {
    "matrix": (12, 10),  # as long as min_dim_size_to_factor
    "narrow": (12, 4),  # shorter
    "vector": (12,),
    "heads": (6, 2, 5),  # the matrix [6, 2 * 5]
    "scanned": (6, 3, 7),  # three matrices [6, 7]
    "scanned_vectors": (6, 3),  # three vectors
  }
  axes = {
    "matrix": ("embed", "mlp"),
    "narrow": ("embed", "mlp"),
    "vector": ("embed",),
    "heads": ("embed", "heads", "kv"),
    "scanned": ("embed", "layers", "mlp"),
    "scanned_vectors": ("embed", "layers"),
  }
  params = random_tree(shapes, seed=0, scale=0.3)
  params["narrow"] *= 1e-3  # below the least scale of a step
  grads = [random_tree(shapes, seed=1 + step) for step in range(5)]
  optimizer_def = adafactor.Adafactor(
    min_dim_size_to_factor=10, logical_factor_rules=adafactor.standard_logical_factor_rules()
  )
  target = train_with(new_state(optimizer_def, params, axes), grads).params

  def expected(name, view, factored):
    return paper_adafactor(view(params[name]), [view(grad[name]) for grad in grads], factored)

  def check(actual, name, view=lambda x: x, factored=False):
    np.testing.assert_allclose(actual, expected(name, view, factored), rtol=2e-5, atol=1e-6)

  check(target["matrix"], "matrix", factored=True)
  check(target["narrow"], "narrow")
  check(target["vector"], "vector")
  check(target["heads"].reshape(6, 10), "heads", lambda x: x.reshape(6, 10), factored=True)
  for layer in range(3):
    for name, factored in (("scanned", True), ("scanned_vectors", False)):
      check(target[name][:, layer], name, lambda x, layer=layer: x[:, layer], factored)


@pytest.mark.parametrize(
  "settings",
  [
    {},
    {"multiply_by_parameter_scale": False},
    {"clipping_threshold": None},
    {"decay_rate": 0.6},
    {"factored": False},
    {"momentum": 0.9, "weight_decay_rate": 0.01, "multiply_by_parameter_scale": False},
  ],
)
def test_agrees_with_optax_on_matrices(settings):
  shapes = {"wide": (8, 16), "high": (16, 8), "square": (8, 8), "bias": (16,)}
  params = random_tree(shapes, seed=0)
  grads = [random_tree(shapes, seed=1 + step, scale=0.1 + step) for step in range(5)]
  own = {{"momentum": "beta1"}.get(name, name): value for name, value in settings.items()}
  ours = adafactor.Adafactor(min_dim_size_to_factor=8, **own)
  trained = train_with(new_state(ours, params), grads).params

  theirs_def = optax.adafactor(
    lambda step: jax.numpy.array(LEARNING_RATES)[step], min_dim_size_to_factor=8, **settings
  )
  state = theirs_def.init(params)
  update = jax.jit(theirs_def.update)
  for grad in grads:
    updates, state = update(grad, state, params)
    params = jax.tree.map(np.add, params, updates)
  jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6), trained, params)


def test_updates_are_clipped_to_the_threshold_and_steps_count_from_the_offset():
  params, grads = {"w": np.ones((2, 2), np.float32)}, {"w": np.float32([[10, -1], [0.1, 2]])}
  optimizer = adafactor.Adafactor(clipping_threshold=0.25, multiply_by_parameter_scale=False)
  state = optimizer.init_state(params)
  new, _ = optimizer.apply_gradient(params, state, grads, step=jnp.array(0), learning_rate=1.0)
  assert np.sqrt(np.mean(np.square(new["w"] - 1))) == pytest.approx(0.25, rel=1e-5)
  optimizer, step = adafactor.Adafactor(step_offset=1000), jnp.array(1002)
  state = jax.tree.map(lambda x: x + 1.0, optimizer.init_state(params))
  _, state = optimizer.apply_gradient(params, state, grads, step=step, learning_rate=1.0)
  decay = 1 - 3**-0.8
  expected = decay + (1 - decay) * np.square(grads["w"])
  np.testing.assert_allclose(state["w"].v, expected, rtol=1e-5)


def test_state_has_t5xs_keys_shapes_and_axes():
  params = {
    "embed": np.zeros((130, 128), np.float32),
    "query": np.zeros((6, 2, 5), np.float32),
    "bias": np.zeros((7,), np.float32),
  }
  axes = {"embed": ("vocab", "embed"), "query": ("embed", "heads", "kv"), "bias": ("mlp",)}
  rules = adafactor.standard_logical_factor_rules()
  state = new_state(adafactor.Adafactor(logical_factor_rules=rules), params, axes)
  stored = state.state_dict()["state"]
  unused = (1,)
  assert jax.tree.map(lambda x: x.shape, stored["param_states"]) == {
    "embed": {"m": unused, "v": unused, "v_row": (128,), "v_col": (130,)},
    "query": {"m": unused, "v": unused, "v_row": (6,), "v_col": (2, 5)},
    "bias": {"m": unused, "v": (7,), "v_row": unused, "v_col": unused},
  }
  assert stored["step"].dtype == np.int32
  of_state = state.as_logical_axes().state_dict()
  assert of_state["target"] == {name: PartitionSpec(*names) for name, names in axes.items()}
  assert of_state["state"]["param_states"]["bias"]["v"] == PartitionSpec("mlp")
  replicated = dict.fromkeys(["m", "v", "v_row", "v_col"])
  assert of_state["state"]["param_states"]["query"] == replicated


def test_parameters_without_usable_rules_are_named():
  rules = adafactor.standard_logical_factor_rules()
  optimizer_def = adafactor.Adafactor(logical_factor_rules=rules)
  with pytest.raises(InputError, match=r"decoder/table .* 'langs'"):
    optimizer_def.set_param_axes({"decoder": {"table": PartitionSpec("langs", "embed")}})
  with pytest.raises(InputError, match=r"parameter bias .* make all or none factored"):
    optimizer_def.set_param_axes({"bias": PartitionSpec("heads", "embed", "relpos_buckets")})
  with pytest.raises(InputError, match=r"parameter query .*more than two axes"):
    adafactor.Adafactor().init_state({"query": np.zeros((2, 3, 4), np.float32)})


# --------------------------------------------------------------------------------------------
# Wrapped optimizers of optax

PARAMS = {"mlp": {"bias": np.ones(3, np.float32), "kernel": np.ones((2, 3), np.float32)}}
AXES = {"mlp": {"bias": PartitionSpec("mlp"), "kernel": PartitionSpec("embed", "mlp")}}


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


@pytest.mark.parametrize("name", ["adamw", "sgd"])
def test_wrapped_optimizers_are_optaxs(name):
  theirs = getattr(optax, name)(0.01)
  state = train_state_of(optimizers.OptaxWrapper(theirs))
  params, opt_state = PARAMS, theirs.init(PARAMS)
  for step in range(3):
    state = state.apply_gradient(gradient(step), learning_rate=123.0)
    updates, opt_state = theirs.update(gradient(step), opt_state, params)
    params = optax.apply_updates(params, updates)
  assert state.step == 3
  jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-6), state.params, params)


def clip_and_adamw():
  schedule = create_learning_rate_scheduler(warmup_steps=4)
  return optimizers.chain([optax.clip_by_global_norm(1.0), optax.adamw(schedule)])


def test_frozen_parameters_keep_their_values_and_have_to_exist():
  state = train_state_of(optimizers.chain([optax.sgd(0.1)], frozen=[".*bias"]))
  after = state.apply_gradient(gradient(0), learning_rate=0.1)
  before, now = (traverse_util.flatten_dict(x.params, sep="/") for x in (state, after))
  same = {name for name in before if np.array_equal(before[name], now[name])}
  assert same == {"mlp/bias"}
  with pytest.raises(InputError, match=r"'mpl/kernel' matches no parameter; names are mlp/kernel"):
    train_state_of(optimizers.chain([optax.sgd(0.1)], frozen=["mlp/.*", "mpl/kernel"]))


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


# --------------------------------------------------------------------------------------------
# Learning rates


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
  slope = schedules.slope_to_zero(steps, warmup_steps=10)
  last, end = rates([max(steps - 1, 10), max(steps, 11)], **LINEAR, decay_factor=slope)
  assert last == pytest.approx(0.5 / max(1, steps - 10), rel=1e-4)
  assert end == pytest.approx(1e-8)


@pytest.mark.parametrize(
  ("schedule", "lasts", "ends"),
  [
    (create_learning_rate_scheduler(**LINEAR, decay_factor=0.01), [0, 1, 10, 118], [130, 10**5]),
    (optax.linear_schedule(3e-5, 0.0, 1000), [0, 1, 1000, 1100], [1200]),
    (optax.cosine_decay_schedule(1e-9, 1000), [1000], [1200]),
    (optax.cosine_onecycle_schedule(1000, 2e-5, 0.1), [1, 1000, 1050], [1200]),
    (create_learning_rate_scheduler(), [0, 1, 10**6], []),
    (create_learning_rate_scheduler("constant", 1e-9), [1, 1000], []),
    (
      create_learning_rate_scheduler("constant * cosine_decay", 3e-5, 0, steps_per_cycle=1000),
      [1000, 10**4], [],
    ),
  ],
)  # fmt: skip
def test_a_run_must_not_last_much_longer_than_its_schedule(schedule, lasts, ends):
  unused = dict.fromkeys(("train_state", "partitioner", "rng", "summary_dir", "train_state_axes"))
  model = toy_runs.ToyModel()
  trainer = toy_runs.make_trainer(learning_rate_fn=schedule)(model=model, eval_names=[], **unused)
  for steps in lasts:
    trainer.check(8, steps)
  for steps in ends:
    with pytest.raises(InputError, match=f"TRAIN_STEPS is {steps}, but .* at step (99|1)\\d+;"):
      trainer.check(8, steps)
  trainer.close()


def test_a_schedule_that_cannot_work_is_refused_at_once():
  with pytest.raises(InputError, match=r"unknown factor 'linear_warmpu'.*linear_warmup"):
    create_learning_rate_scheduler(factors="constant * linear_warmpu")
  with pytest.raises(InputError, match="warmup_steps = 0"):
    create_learning_rate_scheduler(warmup_steps=0)
