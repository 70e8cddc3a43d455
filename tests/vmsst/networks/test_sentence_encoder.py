"""Encoders and pooling; tests/vmsst/formats compares values with transformers."""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny_encoders
import tiny_models
from tiny_models import assert_trees_close, jit

from vmsst import errors
from vmsst.networks import lstm, sentence_encoder

V = 50
T5 = tiny_encoders.t5_config(
  vocab_size=50, emb_dim=16, num_heads=3, mlp_dim=24, num_encoder_layers=2
)
SIZES = {"vocab_size": 50, "emb_dim": 12, "num_heads": 3, "mlp_dim": 20, "num_layers": 2}
BERT = tiny_encoders.bert_config(**SIZES, max_positions=16, num_token_types=2)
LSTM = lstm.LstmConfig(vocab_size=V, emb_dim=6, hidden_dim=5, num_layers=2)
ENCODERS = {
  "t5": sentence_encoder.SentenceEncoder(T5, 10),
  "bert": sentence_encoder.SentenceEncoder(BERT, 10),
  "pooler": sentence_encoder.SentenceEncoder(BERT, 10, head=False, pooling="cls", pooler_dim=10),
  "lstm": sentence_encoder.SentenceEncoder(LSTM, 10, head=False, pooling="max"),
  "chain": sentence_encoder.SentenceEncoder(
    BERT,
    8,
    pooling="max+weightedmean+last+mean_sqrt_len_tokens",
    head=(
      sentence_encoder.LayerNorm(),
      sentence_encoder.Dropout(0.5),
      sentence_encoder.Normalize(),
      sentence_encoder.Dense(8, "GELU"),
    ),
  ),
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


@pytest.mark.parametrize("name", ENCODERS)
def test_bfloat16_stays_close_with_float32_parameters_and_output(name):
  fresh = tiny_models.shapes_of(network(name, dtype="bfloat16"))["params"]
  assert {x.dtype for x in jax.tree.leaves(fresh)} == {jnp.dtype("float32")}
  found_BS = encode(name, TOKENS_BT, dtype="bfloat16")
  expected_BS = encode(name, TOKENS_BT)
  assert found_BS.dtype == jnp.float32
  error = np.linalg.norm(found_BS - expected_BS) / np.linalg.norm(expected_BS)
  assert 0 < error < 0.03


@pytest.mark.parametrize("name", STACKS)
def test_every_parameter_of_scanned_layers_has_standard_logical_axes(name):
  tiny_models.assert_standard_axes(tiny_models.shapes_of(network(name, scan_layers=True)))


@pytest.mark.parametrize(
  ("config", "field", "value"),
  [
    *((config, "dropout_rate", 1.0) for config in (T5, BERT, LSTM)),
    (T5, "vocab_size", "9"), (T5, "relpos_buckets", 6), (T5, "remat", "some"),
    (BERT, "emb_dim", 13), (BERT, "position_offset", 16), (LSTM, "dtype", "float16"),
  ],
)  # fmt: skip
def test_a_configuration_names_the_bad_value(config, field, value):
  with pytest.raises(errors.InputError, match=field):
    dataclasses.replace(config, **{field: value})


def test_a_width_that_does_not_fit_the_last_layer_is_named():
  for changes in ({"pooling": "cls+mean"}, {"head": (sentence_encoder.Dense(24),)}):
    with pytest.raises(errors.InputError, match=r"latent_dim is 12, .* set it to 24"):
      sentence_encoder.SentenceEncoder(BERT, 12, **{"head": False, **changes})


def test_bfloat16_is_summed_in_float32():
  hidden_BTD = jnp.ones((1, 1000, 1), jnp.bfloat16)  # a bfloat16 sum would stop at 256
  mean_BD = sentence_encoder.masked_mean(hidden_BTD, jnp.ones((1, 1000), bool))
  assert mean_BD.dtype == jnp.float32
  assert mean_BD[0, 0] == 1
  # The cell of an LSTM grows by small steps.
  gates = jnp.broadcast_to(jnp.array([20, 20, 2**-8, -3], jnp.bfloat16), (600, 1, 1, 4))
  bias, is_real = jnp.zeros((1, 1, 4), jnp.bfloat16), jnp.ones((600, 1, 1), bool)
  state = jnp.zeros((1, 1, 1), jnp.bfloat16), jnp.zeros((1, 1, 1))
  last = lstm.lstm(gates, bias, is_real, *state)[-1, 0, 0, 0]
  assert float(last) == pytest.approx(
    math.tanh(600 * math.tanh(2**-8)) / (1 + math.exp(3)), rel=0.01
  )


@pytest.mark.parametrize("padding", [100.0, np.nan])
def test_pooled_values_and_gradients_ignore_padding(padding):
  hidden_BTD = np.random.default_rng(0).integers(-4, 5, size=(3, 6, 40)).astype(np.float32)
  counts = (6, 2, 0)
  noisy_BTD = np.where(np.arange(6)[:, None] < np.array(counts)[:, None, None], hidden_BTD, padding)
  mask_BT = np.arange(6) < np.array(counts)[:, None]
  largest_BD, of_largest = jax.vjp(lambda x: sentence_encoder.masked_max(x, mask_BT), noisy_BTD)
  mean_BD, of_mean = jax.vjp(lambda x: sentence_encoder.masked_mean(x, mask_BT), noisy_BTD)
  slope_BD = np.full((3, 40), 2.0, np.float32)
  for b, count in enumerate(counts[:2]):
    real_TD = hidden_BTD[b, :count]
    np.testing.assert_array_equal(largest_BD[b], real_TD.max(axis=0))
    first_D = real_TD.argmax(axis=0)  # of equal values
    expected_TD = 2.0 * (np.arange(6)[:, None] == first_D)
    np.testing.assert_array_equal(of_largest(slope_BD)[0][b], expected_TD)
    np.testing.assert_allclose(mean_BD[b], real_TD.mean(axis=0), rtol=1e-6)
    np.testing.assert_allclose(of_mean(slope_BD)[0][b, :count], 2 / count, rtol=1e-6)
    assert not np.any(of_mean(slope_BD)[0][b, count:])
  for found_BD, vjp in ((largest_BD, of_largest), (mean_BD, of_mean)):  # a row without tokens
    assert not np.any(found_BD[2])
    assert not np.any(vjp(slope_BD)[0][2])


@pytest.mark.parametrize("name", sentence_encoder.ACTIVATIONS)
def test_activations_are_those_of_torch(name):
  torch = pytest.importorskip("torch", reason="needs torch to compare with")
  x_BD = np.linspace(-7, 7, 57, dtype=np.float32).reshape(3, 19)
  options = {"dim": -1} if "Softm" in name else {}
  expected_BD = getattr(torch.nn, name)(**options)(torch.tensor(x_BD)).numpy()
  np.testing.assert_allclose(sentence_encoder.ACTIVATIONS[name](x_BD), expected_BD, atol=1e-6)
