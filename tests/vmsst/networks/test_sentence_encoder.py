"""Properties that every encoder has within a sentence encoder."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny_models
from flax.linen import partitioning
from tiny_models import assert_trees_close, jit

from vmsst import errors
from vmsst.networks import bert, lstm, sentence_encoder, t5

V = 50
T5 = t5.T5Config(
  vocab_size=V, emb_dim=16, num_heads=3, head_dim=4, mlp_dim=24, num_encoder_layers=2
)
BERT = bert.BertConfig(
  vocab_size=V, emb_dim=12, num_heads=3, mlp_dim=20, num_layers=2, max_positions=16,
  num_token_types=2,
)  # fmt: skip
LSTM = lstm.LstmConfig(vocab_size=V, emb_dim=6, hidden_dim=5, num_layers=2)
ENCODERS = {
  "t5": sentence_encoder.SentenceEncoder(T5, 10),
  "bert": sentence_encoder.SentenceEncoder(BERT, 10),
  "pooler": sentence_encoder.SentenceEncoder(BERT, 12, head=False, pooling="pooler"),
  "lstm": sentence_encoder.SentenceEncoder(LSTM, 10, head=False, pooling="max"),
}
STACKS = ("t5", "bert")  # those with layers to scan and to recompute
TOKENS_BT = np.array([[5, 6, 7, 8, 9, 1], [11, 12, 1, 0, 0, 0], [49, 1, 0, 0, 0, 0]], np.int32)


def network(name, **changes):
  net = ENCODERS[name]
  return net.clone(config=dataclasses.replace(net.config, **changes))


@functools.cache
def make_params(name):
  return tiny_models.random_params(network(name))


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
  fresh = tiny_models.shapes_of(network(name, dtype="bfloat16"))["params"]
  assert {x.dtype for x in jax.tree.leaves(fresh)} == {jnp.dtype("float32")}
  found_BS = encode(name, TOKENS_BT, dtype="bfloat16")
  expected_BS = encode(name, TOKENS_BT)
  assert found_BS.dtype == jnp.float32
  error = np.linalg.norm(found_BS - expected_BS) / np.linalg.norm(expected_BS)
  assert 0 < error < 0.03


@pytest.mark.parametrize("name", [*STACKS, "pooler"])
def test_every_parameter_has_standard_logical_axes(name):
  tiny_models.assert_standard_axes(tiny_models.shapes_of(network(name, scan_layers=True)))


@pytest.mark.filterwarnings("ignore:.*context manager:DeprecationWarning")  # T5X enters meshes so
@pytest.mark.parametrize("enter", [lambda mesh: mesh, jax.set_mesh])
@pytest.mark.parametrize("name", STACKS)
def test_activations_are_laid_out_if_a_mesh_and_rules_are_set(name, enter):
  def program():
    return str(jax.make_jaxpr(network(name).apply)({"params": make_params(name)}, TOKENS_BT))

  assert "sharding_constraint" not in program()
  mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]).reshape(1, 1), ("data", "model"))
  with enter(mesh), partitioning.axis_rules([("batch", "data"), ("heads", "model")]):
    # At least three per layer in attention, one each in feed-forward and output, and one for each
    # kernel, which is gathered.
    assert program().count("sharding_constraint[") > (5 + 6) * 2


@pytest.mark.parametrize(
  ("config", "field", "value"),
  [
    *((config, "dtype", "float16") for config in (T5, BERT, LSTM)),
    *((config, "emb_dim", 0) for config in (T5, LSTM)),
    *((config, "dropout_rate", 1.0) for config in (T5, BERT, LSTM)),
    *((config, "vocab_size", "9") for config in (T5, BERT, LSTM)),
    *((config, "remat", "some") for config in (T5, BERT)),
    (T5, "relpos_buckets", 6), (BERT, "emb_dim", 13), (BERT, "activation", "silu"),
    (BERT, "num_token_types", -1), (BERT, "position_offset", 16), (BERT, "layer_norm_eps", 0.0),
    (BERT, "initializer_std", float("nan")), (LSTM, "num_layers", True),
    (LSTM, "initializer_range", 0.0),
  ],
)  # fmt: skip
def test_a_configuration_names_the_bad_value(config, field, value):
  with pytest.raises(errors.InputError, match=field):
    dataclasses.replace(config, **{field: value})
