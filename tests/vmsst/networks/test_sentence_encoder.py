"""Properties that every encoder has within a sentence encoder."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import traverse_util
from flax.linen import partitioning

from vmsst.networks import bert, lstm, sentence_encoder, t5

# Compilation takes most of the time.
jit = functools.partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})

V = 50
T5 = t5.T5Config(
  vocab_size=V, emb_dim=16, num_heads=3, head_dim=4, mlp_dim=24, num_encoder_layers=2
)
BERT = bert.BertConfig(
  vocab_size=V,
  emb_dim=12,
  num_heads=3,
  mlp_dim=20,
  num_layers=2,
  max_positions=16,
  num_token_types=2,
)
LSTM = lstm.LstmConfig(vocab_size=V, emb_dim=6, hidden_dim=5, num_layers=2)
ENCODERS = {
  "t5": sentence_encoder.SentenceEncoder(T5, 10),
  "bert": sentence_encoder.SentenceEncoder(BERT, 10),
  "pooler": sentence_encoder.SentenceEncoder(BERT, 12, head=False, pooling="pooler"),
  "lstm": sentence_encoder.SentenceEncoder(LSTM, 10, head=False, pooling="max"),
}
STACKS = ("t5", "bert")  # those with layers to scan and to recompute
TOKENS_BT = np.array([[5, 6, 7, 8, 9, 1], [11, 12, 1, 0, 0, 0], [49, 1, 0, 0, 0, 0]], np.int32)
# Axis names that T5X's partitioning rules and its Adafactor factor rules both have.
STANDARD_AXES = {
  "vocab", "embed", "mlp", "heads", "kv", "joined_kv", "relpos_buckets", "layers", "stack",
  "mlp_activations",
}  # fmt: skip


def network(name, **changes):
  net = ENCODERS[name]
  return net.clone(config=dataclasses.replace(net.config, **changes))


def make_variables(net):
  return jax.eval_shape(net.init, jax.random.key(0), TOKENS_BT)


@functools.cache
def make_params(name):
  """Random parameters, none of which is zero or one."""
  rng = np.random.default_rng(0)
  return jax.tree.map_with_path(
    lambda path, x: np.float32((path[-1].key == "scale") + 0.3 * rng.normal(size=x.shape)),
    make_variables(network(name))["params"],
  )


def encode(name, tokens_BT, **changes):
  return jit(network(name, **changes).apply)({"params": make_params(name)}, tokens_BT)


def stacked(params):
  """Parameters of separate layers in the layout of scanned ones."""
  encoder = dict(params["encoder"])
  layers = [encoder.pop(f"layers_{i}") for i in range(2)]
  encoder["layers"] = jax.tree.map(lambda *x: np.stack(x), *layers)
  return {**params, "encoder": encoder}


def loss_and_gradients(name, params, **changes):
  rngs = {"dropout": jax.random.key(3)}

  @jit
  @jax.value_and_grad
  def loss(p):
    net = network(name, **changes)
    return jnp.sum(net.apply({"params": p}, TOKENS_BT, deterministic=False, rngs=rngs) ** 2)

  return loss(params)


def assert_trees_close(found, expected, **tolerance):
  jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, **tolerance), found, expected)


@pytest.mark.parametrize("name", ENCODERS)
def test_trailing_padding_never_changes_a_sentence_vector(name):
  whole_BS = encode(name, TOKENS_BT)
  wider_BT = np.pad(TOKENS_BT, ((0, 0), (0, 7)))
  np.testing.assert_allclose(encode(name, wider_BT), whole_BS, atol=1e-5)
  np.testing.assert_allclose(encode(name, TOKENS_BT[1:2, :3]), whole_BS[1:2], atol=1e-5)


@pytest.mark.parametrize("name", ["t5", "bert", "lstm"])
def test_a_row_of_padding_is_zero(name):
  np.testing.assert_array_equal(encode(name, np.zeros((2, 4), np.int32)), 0)


@pytest.mark.parametrize("name", ["t5", "bert", "pooler"])
def test_an_id_outside_the_table_gives_nan(name):
  assert np.isnan(encode(name, np.array([[V, 1]]))).all()


@pytest.mark.parametrize("name", STACKS)
def test_scanned_layers_compute_the_same_function(name):
  params = make_params(name)
  value, grad = loss_and_gradients(name, params)
  found = loss_and_gradients(name, stacked(params), scan_layers=True)
  assert_trees_close(found, (value, stacked(grad)), rtol=1e-3, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("scan", [True, False])
@pytest.mark.parametrize("name", STACKS)
def test_recomputing_changes_nothing_with_dropout(name, scan):
  params = stacked(make_params(name)) if scan else make_params(name)
  expected = loss_and_gradients(name, params, dropout_rate=0.2, scan_layers=scan)
  for remat in ("minimal", "full"):
    found = loss_and_gradients(name, params, dropout_rate=0.2, scan_layers=scan, remat=remat)
    assert_trees_close(found, expected, rtol=1e-4, atol=1e-4)


def test_recomputing_saves_memory():
  def temporaries(policy):
    net = network("t5", remat=policy, num_encoder_layers=4, scan_layers=True)
    tokens_BT = jnp.ones((64, 32), jnp.int32)
    p = jax.eval_shape(net.init, jax.random.key(0), tokens_BT)["params"]
    grad = jax.jit(jax.grad(lambda p, x: jnp.sum(net.apply({"params": p}, x) ** 2)))
    return grad.lower(p, tokens_BT).compile().memory_analysis().temp_size_in_bytes

  assert temporaries("full") < 0.7 * temporaries("none")


@pytest.mark.parametrize("name", ["t5", "bert", "pooler"])
def test_bfloat16_stays_close_with_float32_parameters_and_output(name):
  fresh = make_variables(network(name, dtype="bfloat16"))["params"]
  assert {x.dtype for x in jax.tree.leaves(fresh)} == {jnp.dtype("float32")}
  found_BS = encode(name, TOKENS_BT, dtype="bfloat16")
  expected_BS = encode(name, TOKENS_BT)
  assert found_BS.dtype == jnp.float32
  error = np.linalg.norm(found_BS - expected_BS) / np.linalg.norm(expected_BS)
  assert 0 < error < 0.03


@pytest.mark.parametrize("name", STACKS)
def test_dropout_needs_a_key_and_differs_by_key(name):
  @jit
  def noisy(seed):
    net, rngs = network(name, dropout_rate=0.3), {"dropout": jax.random.key(seed)}
    return net.apply({"params": make_params(name)}, TOKENS_BT, deterministic=False, rngs=rngs)

  np.testing.assert_array_equal(noisy(1), noisy(1))
  assert not np.allclose(noisy(1), noisy(2))
  np.testing.assert_array_equal(encode(name, TOKENS_BT, dropout_rate=0.3), encode(name, TOKENS_BT))


@pytest.mark.parametrize("scan", [False, True])
@pytest.mark.parametrize("name", [*STACKS, "pooler"])
def test_every_parameter_has_standard_logical_axes(name, scan):
  variables = make_variables(network(name, scan_layers=scan))
  axes = traverse_util.flatten_dict(
    partitioning.get_axis_names(variables["params_axes"]).unfreeze()
  )
  shapes = traverse_util.flatten_dict(jax.tree.map(lambda x: x.shape, variables["params"]))
  assert set(axes) == set(shapes)
  for path, shape in shapes.items():
    assert len(axes[path]) == len(shape), path
    assert set(axes[path]) <= STANDARD_AXES, path
    assert ("layers" in axes[path]) == (scan and "layers" in path), path


@pytest.mark.filterwarnings("ignore:.*context manager:DeprecationWarning")  # T5X enters meshes so
@pytest.mark.parametrize("enter", [lambda mesh: mesh, jax.set_mesh])
@pytest.mark.parametrize("name", STACKS)
def test_activations_are_laid_out_if_a_mesh_and_rules_are_set(name, enter):
  def program():
    shapes = make_variables(network(name))["params"]
    return str(jax.make_jaxpr(network(name).apply)({"params": shapes}, TOKENS_BT))

  assert "sharding_constraint" not in program()
  mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]).reshape(1, 1), ("data", "model"))
  with enter(mesh), partitioning.axis_rules([("batch", "data"), ("heads", "model")]):
    # Table, vector and its kernel once; per layer three in attention, one each in feed-forward and
    # output, and one for each kernel, which is gathered.
    kernels = {"t5": 7, "bert": 6}[name]
    count, expected = program().count("sharding_constraint["), 3 + (5 + kernels) * 2
    # If flax sees the mesh, it adds those of parameters.
    assert count > expected if enter is jax.set_mesh else count == expected
