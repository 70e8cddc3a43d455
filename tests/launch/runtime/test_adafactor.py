import jax
import numpy as np
import optax
import pytest
from jax.sharding import PartitionSpec

from vmsst.errors import InputError
from vmsst.launch.runtime import adafactor

LEARNING_RATES = [0.1, 0.05, 0.2, 0.1, 0.1]


def random_tree(shapes, seed, scale=1.0):
  rng = np.random.default_rng(seed)
  return {
    name: (scale * rng.normal(size=shape)).astype(np.float32) for name, shape in shapes.items()
  }


def train(optimizer_def, params, grads):
  optimizer = optimizer_def.create(params)
  step = jax.jit(lambda optimizer, grad, rate: optimizer.apply_gradient(grad, learning_rate=rate))
  for grad, rate in zip(grads, LEARNING_RATES, strict=True):
    optimizer = step(optimizer, grad, rate)
  return optimizer


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
  grads = [random_tree(shapes, seed=1 + step) for step in range(5)]
  optimizer_def = adafactor.Adafactor(
    min_dim_size_to_factor=10, logical_factor_rules=adafactor.standard_logical_factor_rules()
  )
  optimizer_def.set_param_axes({name: PartitionSpec(*names) for name, names in axes.items()})
  optimizer = train(optimizer_def, params, grads)

  def expected(name, view, factored):
    return paper_adafactor(view(params[name]), [view(grad[name]) for grad in grads], factored)

  def check(actual, name, view=lambda x: x, factored=False):
    np.testing.assert_allclose(actual, expected(name, view, factored), rtol=2e-5, atol=1e-6)

  target = optimizer.target
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
  ],
)
def test_agrees_with_optax_on_matrices(settings):
  shapes = {"wide": (8, 16), "high": (16, 8), "square": (8, 8), "bias": (16,)}
  params = random_tree(shapes, seed=0)
  grads = [random_tree(shapes, seed=1 + step, scale=0.1 + step) for step in range(5)]
  optimizer = train(adafactor.Adafactor(min_dim_size_to_factor=8, **settings), params, grads)

  theirs_def = optax.adafactor(
    lambda step: jax.numpy.array(LEARNING_RATES)[step], min_dim_size_to_factor=8, **settings
  )
  state = theirs_def.init(params)
  for grad in grads:
    updates, state = theirs_def.update(grad, state, params)
    params = optax.apply_updates(params, updates)
  jax.tree.map(
    lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6), optimizer.target, params
  )


def test_momentum_decay_and_clipping_of_all_gradients():
  shapes = {"a": (3, 4), "b": (5,)}
  params, grad = random_tree(shapes, seed=0), random_tree(shapes, seed=1)
  optimizer_def = adafactor.Adafactor(
    learning_rate=0.1,
    beta1=0.9,
    weight_decay_rate=0.5,
    weight_decay_rate_lr_exponent=2.0,
    multiply_by_parameter_scale=False,
    global_norm_clip_threshold=1e-20,
  )
  optimizer = optimizer_def.create(params).apply_gradient(grad)
  # Gradients this small vanish in the square root of epsilon1, and all that is left is the decay.
  for name in shapes:
    np.testing.assert_allclose(optimizer.target[name], params[name] * (1 - 0.5 * 0.1**2), rtol=1e-4)
    norm = np.sqrt(sum(np.sum(np.square(g)) for g in grad.values()))
    expected = 0.1 * 0.1 * grad[name] * 1e-20 / norm / 1e-15
    np.testing.assert_allclose(
      optimizer.state.param_states[name].m, expected, rtol=1e-3, atol=1e-12
    )


def test_nan_updates_are_skipped_where_they_are():
  params = {"w": np.ones((4,), np.float32)}
  grad = {"w": np.array([1.0, np.nan, 1.0, 1.0], np.float32)}
  skipping = adafactor.Adafactor(skip_nan_updates=True, clipping_threshold=None)
  updated = skipping.create(params).apply_gradient(grad, learning_rate=0.1)
  np.testing.assert_allclose(updated.target["w"], [0.9, 1.0, 0.9, 0.9], rtol=1e-6)
  np.testing.assert_allclose(updated.state.param_states["w"].v, [1, 0, 1, 1], rtol=1e-6)


def test_state_has_t5xs_keys_shapes_and_axes():
  params = {
    "embed": np.zeros((130, 128), np.float32),
    "query": np.zeros((6, 2, 5), np.float32),
    "bias": np.zeros((7,), np.float32),
  }
  axes = {
    "embed": PartitionSpec("vocab", "embed"),
    "query": PartitionSpec("embed", "heads", "kv"),
    "bias": PartitionSpec("mlp"),
  }
  optimizer_def = adafactor.Adafactor(
    logical_factor_rules=adafactor.standard_logical_factor_rules()
  )
  optimizer_def.set_param_axes(axes)
  optimizer = optimizer_def.create(params)
  state = optimizer.state_dict()["state"]
  shapes = jax.tree.map(lambda x: x.shape, state["param_states"])
  unused = (1,)
  assert shapes == {
    "embed": {"m": unused, "v": unused, "v_row": (128,), "v_col": (130,)},
    "query": {"m": unused, "v": unused, "v_row": (6,), "v_col": (2, 5)},
    "bias": {"m": unused, "v": (7,), "v_row": unused, "v_col": unused},
  }
  assert state["step"].dtype == np.int32
  of_state = optimizer_def.derive_logical_axes(optimizer, axes).state_dict()
  assert of_state["target"] == axes
  assert of_state["state"]["param_states"]["bias"]["v"] == PartitionSpec("mlp")
  replicated = dict.fromkeys(["m", "v", "v_row", "v_col"])
  assert of_state["state"]["param_states"]["query"] == replicated


def test_factor_names_of_gin_files():
  optimizer_def = adafactor.Adafactor(
    logical_factor_rules={"embed": "row", "langs": "Column", "layers": "batch"}
  )
  optimizer_def.set_param_axes({"table": PartitionSpec("embed", "layers", "langs")})
  state = optimizer_def.init_state({"table": np.zeros((2, 3, 4), np.float32)})
  assert state.param_states["table"].v_row.shape == (2, 3)
  assert state.param_states["table"].v_col.shape == (3, 4)


def test_parameters_without_usable_rules_are_named():
  rules = adafactor.standard_logical_factor_rules()
  optimizer_def = adafactor.Adafactor(logical_factor_rules=rules)
  with pytest.raises(InputError, match=r"decoder/table .* 'langs'"):
    optimizer_def.set_param_axes({"decoder": {"table": PartitionSpec("langs", "embed")}})
  with pytest.raises(InputError, match=r"parameter bias .* make all or none factored"):
    optimizer_def.set_param_axes({"bias": PartitionSpec("heads", "embed", "relpos_buckets")})
  with pytest.raises(InputError, match=r"parameter query .*more than two axes"):
    adafactor.Adafactor().init_state({"query": np.zeros((2, 3, 4), np.float32)})
  with pytest.raises(InputError, match="has no learning rate"):
    adafactor.Adafactor().create({"a": np.ones(2)}).apply_gradient({"a": np.ones(2)})
