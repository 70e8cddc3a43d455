import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny_encoders
import tiny_models
from flax import traverse_util

from vmsst import errors
from vmsst.networks import sentence_encoder, t5, transformer

SIZES = {"vocab_size": 50, "emb_dim": 12, "num_heads": 3, "mlp_dim": 20, "num_layers": 2}
BERT = tiny_encoders.bert_config(**SIZES, max_positions=16, num_token_types=2)
TOKENS_BT = np.array([[5, 6, 7, 8, 9, 1], [11, 12, 1, 0, 0, 0], [49, 1, 0, 0, 0, 0]], np.int32)


def test_a_sentence_longer_than_the_position_table_is_refused():
  encoder = transformer.TransformerEncoder(dataclasses.replace(BERT, position_offset=2))
  with pytest.raises(errors.InputError, match=r"15 tokens.*positions for only 14"):
    encoder.init(jax.random.key(0), jnp.zeros((1, 15, 12)), np.ones((1, 15), bool))


def test_initial_distributions_of_bert():
  sizes = {"emb_dim": 96, "mlp_dim": 128, "vocab_size": 200, "max_positions": 60}
  config = dataclasses.replace(BERT, **sizes, initializer_std=0.02, scan_layers=True)
  wide = sentence_encoder.SentenceEncoder(config, 96, head=False)
  variables = jax.jit(wide.init)(jax.random.key(0), TOKENS_BT)
  flat = traverse_util.flatten_dict(variables["params"], sep="/")
  for name, array in flat.items():
    if name.endswith(("kernel", "embedding")):
      assert np.std(array) == pytest.approx(0.02, rel=0.15), name
    else:
      np.testing.assert_array_equal(array, float(name.endswith("/scale")), name)
  kernel_LDM = flat["encoder/layers/mlp/wi/kernel"]
  assert not np.allclose(kernel_LDM[0], kernel_LDM[1])


def bert_in_numpy(config, params, embedded_TD, drop):
  """The encoder of one sentence without padding in float64; calls `drop` where BERT has dropout."""
  p = jax.tree.map(np.float64, params)

  def norm(x_TD, name, of=p):
    centered_TD = x_TD - x_TD.mean(axis=1, keepdims=True)
    deviation_T1 = np.sqrt((centered_TD**2).mean(axis=1, keepdims=True) + config.layer_norm_eps)
    return centered_TD / deviation_T1 * of[name]["scale"] + of[name]["bias"]

  def dense(x_TD, layer):
    return x_TD @ layer["kernel"] + layer["bias"]

  def attention(x_TD, layer):
    query, key, value = (
      dense(x_TD, layer[name]).reshape(len(x_TD), config.num_heads, -1)
      for name in ("query", "key", "value")
    )
    powers = np.exp(np.einsum("qhd,khd->hqk", query, key) / math.sqrt(query.shape[-1]))
    weights = drop(powers / powers.sum(axis=2, keepdims=True))
    return dense(np.einsum("hqk,khd->qhd", weights, value).reshape(x_TD.shape), layer["out"])

  def mlp(x_TD, layer):
    wide_TM = dense(x_TD, layer["wi"])
    return dense(wide_TM / (1 + np.exp(-wide_TM)), layer["wo"])

  x_TD = embedded_TD + p["position_embedding"][: len(embedded_TD)] + p["token_type_embedding"][0]
  x_TD = drop(norm(x_TD, "embedding_layer_norm"))
  for index in range(config.num_layers):
    layer = p[f"layers_{index}"]
    for name, block in (("attention", attention), ("mlp", mlp)):
      pre, post = f"pre_{name}_layer_norm", f"post_{name}_layer_norm"
      if config.norm_place == "after":
        x_TD = norm(x_TD + drop(block(x_TD, layer[name])), post, layer)
      elif config.norm_place == "before":
        x_TD = x_TD + drop(block(norm(x_TD, pre, layer), layer[name]))
      else:
        x_TD = x_TD + drop(norm(block(norm(x_TD, pre, layer), layer[name]), post, layer))
  return x_TD if config.norm_place == "after" else norm(x_TD, "encoder_norm")


@pytest.mark.parametrize("norm_place", transformer.NORM_PLACES)
def test_dropout_is_where_bert_has_it(norm_place):
  config = dataclasses.replace(BERT, dropout_rate=0.5, norm_place=norm_place)
  encoder = transformer.TransformerEncoder(config)
  embedded_BTD = np.random.default_rng(0).normal(size=(2, 5, 12)).astype(np.float32)
  arguments = (embedded_BTD, np.ones((2, 5), bool))
  shapes = jax.eval_shape(encoder.init, jax.random.key(0), *arguments)["params"]
  params = tiny_models.random_values(shapes)
  found_BTD, factors = tiny_models.with_dropout_factors(encoder, params, *arguments)
  for row in range(2):
    remaining = iter(factors)
    expected_TD = bert_in_numpy(
      config, params, embedded_BTD[row],
      lambda x, row=row, remaining=remaining: x * next(remaining)[row],
    )  # fmt: skip
    np.testing.assert_allclose(found_BTD[row], expected_TD, atol=1e-3)
    assert next(remaining, None) is None
  for factor in factors:  # each value alone
    assert set(np.unique(factor)) == {0, 2}
    assert not np.array_equal(factor, np.broadcast_to(factor[..., :1, :], factor.shape))


def test_softmax_and_norms_of_bfloat16_are_computed_in_float32():
  query, key, value = (
    jnp.array(x, jnp.bfloat16)[None, :, None] for x in ([[16, 1]], [[16, 1], [16, 0]], [[1], [0]])
  )  # logits of 257 and 256, one number in bfloat16
  found = t5.attend(query, key, value, jnp.zeros((1, 1, 1, 2)), lambda x: x)
  assert float(found[0, 0, 0]) == pytest.approx(1 / (1 + math.exp(-1)), rel=0.01)
  x_BD = jnp.array(100 + np.random.default_rng(0).normal(size=(1, 64)), jnp.bfloat16)
  params = {"scale": jnp.ones(64), "bias": jnp.zeros(64)}
  found_BD = transformer.LayerNorm(1e-12, "bfloat16").apply({"params": params}, x_BD)
  exact_BD = np.float64(x_BD)
  exact_BD = (exact_BD - exact_BD.mean()) / exact_BD.std()
  np.testing.assert_allclose(np.float64(found_BD), exact_BD, atol=0.02)
