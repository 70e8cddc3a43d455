import dataclasses
import math

import jax
import numpy as np
import pytest
import tiny_encoders
import tiny_models
from flax import traverse_util

from vmsst.networks import sentence_encoder, t5

T5 = tiny_encoders.t5_config(
  vocab_size=50, emb_dim=16, num_heads=3, mlp_dim=24, num_encoder_layers=2
)
TOKENS_BT = np.array([[5, 6, 7, 8, 9, 1], [11, 12, 1, 0, 0, 0], [49, 1, 0, 0, 0, 0]], np.int32)


def test_buckets_by_exact_arithmetic():
  found_TT = t5.relative_position_buckets(300, buckets=32, max_distance=128)
  for query, key in [(0, d) for d in range(300)] + [(d, 0) for d in range(300)]:
    distance = abs(query - key)
    expected = 16 if key > query else 0
    if distance < 8:
      expected += distance
    else:
      # Bucket 8 + b holds distances of at least 8 * 16^(b/8): in integers, d^2 >= 64 * 2^b.
      expected += min(15, 8 + max(b for b in range(9) if distance**2 >= 64 * 2**b))
    assert found_TT[query, key] == expected, (query, key)


def test_dropout_is_where_t5_has_it_and_shared_along_the_length():
  config = dataclasses.replace(T5, num_encoder_layers=1, dropout_rate=0.5)
  network = sentence_encoder.SentenceEncoder(config, 8)
  params = tiny_models.random_params(network)
  _, factors = tiny_models.with_dropout_factors(network, params, np.ones((3, 5), int))
  places = [
    tuple(
      1 if np.array_equal(factor, np.broadcast_to(factor.take([0], axis), factor.shape)) else size
      for axis, size in enumerate(factor.shape)
    )
    for factor in factors
  ]
  width, wide, heads = config.emb_dim, config.mlp_dim, config.num_heads
  assert places == [
    (3, 1, width),  # token embeddings
    (3, heads, 1, 5), (3, 1, width),  # attention weights, the attention's output
    (3, 1, wide), (3, 1, width),  # the feed-forward layer, its output
    (3, 5, width),  # the output of the stack
  ]  # fmt: skip


def test_initial_distributions_of_t5():
  cfg = t5.T5Config(
    vocab_size=400, emb_dim=256, num_heads=8, head_dim=32, mlp_dim=512, num_encoder_layers=1
  )
  init = jax.jit(sentence_encoder.SentenceEncoder(cfg, latent_dim=256).init)
  variables = init(jax.random.key(0), TOKENS_BT)
  flat = traverse_util.flatten_dict(variables["params"], sep="/")
  layer = "encoder/layers_0"
  expected_std = {
    "token_embedder/embedding": 1,
    f"{layer}/attention/query/kernel": 1 / math.sqrt(256 * 32),
    **{
      f"{layer}/{name}/kernel": 1 / math.sqrt(256)
      for name in ("attention/key", "attention/value", "attention/out", "mlp/wi_0", "mlp/wi_1")
    },
    f"{layer}/mlp/wo/kernel": 1 / math.sqrt(512),
    "encoder/relpos_bias/rel_embedding": 1 / math.sqrt((8 + 32) / 2),
    "mean/kernel": 1 / math.sqrt(256),
  }
  for name, std in expected_std.items():
    assert np.std(flat[name]) == pytest.approx(std, rel=0.1), name
  norms = {name for name in flat if name.endswith("/scale")}
  assert set(flat) == set(expected_std) | norms
  for name in norms:
    np.testing.assert_array_equal(flat[name], 1)
  # Truncated at two standard deviations of the underlying normal; a plain normal is not.
  assert np.max(np.abs(flat[f"{layer}/mlp/wi_0/kernel"])) * 16 < 2.3
  assert np.max(np.abs(flat[f"{layer}/attention/key/kernel"])) * 16 > 3
