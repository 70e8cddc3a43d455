"""Adafactor, against the paper and optax."""

import jax
import numpy as np
import optax
import pytest
from flax.linen.partitioning import AxisMetadata
from jax.sharding import PartitionSpec

from vmsst.train import adafactor, train_state

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
    {"clipping_threshold": 0.25, "decay_offset": -3},
    {"decay_rate": 0.6},
    {"factored": False},
    {"momentum": 0.9, "weight_decay_rate": 0.01, "multiply_by_parameter_scale": False},
  ],
)
def test_agrees_with_optax_on_matrices(settings):
  shapes = {"wide": (8, 16), "high": (16, 8), "square": (8, 8), "bias": (16,)}
  params = random_tree(shapes, seed=0)
  grads = [random_tree(shapes, seed=1 + step, scale=0.1 + step) for step in range(5)]
  names = {"momentum": "beta1", "decay_offset": "step_offset"}
  our_settings = {names.get(name, name): value for name, value in settings.items()}
  optimizer = adafactor.Adafactor(min_dim_size_to_factor=8, **our_settings)
  trained = train_with(new_state(optimizer, params), grads).params

  theirs_def = optax.adafactor(
    lambda step: jax.numpy.array(LEARNING_RATES)[step], min_dim_size_to_factor=8, **settings
  )
  state = theirs_def.init(params)
  update = jax.jit(theirs_def.update)
  for grad in grads:
    updates, state = update(grad, state, params)
    params = jax.tree.map(np.add, params, updates)
  jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6), trained, params)


def test_state_has_t5xs_keys_shapes_and_axes():
  params = {
    "embed": np.zeros((130, 128), np.float32),
    "query": np.zeros((6, 2, 5), np.float32),
    "bias": np.zeros((7,), np.float32),
  }
  axes = {"embed": ("vocab", "embed"), "query": ("embed", "heads", "kv"), "bias": ("mlp",)}
  rules = adafactor.standard_logical_factor_rules()
  state = new_state(adafactor.Adafactor(logical_factor_rules=rules), params, axes)
  state_dict = state.state_dict()["state"]
  unused = (1,)
  assert jax.tree.map(lambda x: x.shape, state_dict["param_states"]) == {
    "embed": {"m": unused, "v": unused, "v_row": (128,), "v_col": (130,)},
    "query": {"m": unused, "v": unused, "v_row": (6,), "v_col": (2, 5)},
    "bias": {"m": unused, "v": (7,), "v_row": unused, "v_col": unused},
  }
  assert state_dict["step"].dtype == np.int32
  of_state = state.as_logical_axes().state_dict()
  assert of_state["target"] == {name: PartitionSpec(*names) for name, names in axes.items()}
  assert of_state["state"]["param_states"]["bias"]["v"] == PartitionSpec("mlp")
  replicated = dict.fromkeys(["m", "v", "v_row", "v_col"])
  assert of_state["state"]["param_states"]["query"] == replicated
