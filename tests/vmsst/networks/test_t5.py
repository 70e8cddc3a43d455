import dataclasses
import math

import jax
import numpy as np
import pytest
import tiny_models
from flax import linen as nn
from flax import traverse_util
from tiny_models import jit

from vmsst.networks import dropout, lstm, sentence_encoder, t5, transformer

V = 50


T5 = t5.T5Config(
  vocab_size=V, emb_dim=16, num_heads=3, head_dim=4, mlp_dim=24, num_encoder_layers=2
)


BERT = transformer.TransformerConfig(
  vocab_size=V, emb_dim=12, num_heads=3, mlp_dim=20, num_layers=2, max_positions=16,
  num_token_types=2,
)  # fmt: skip


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


TOKENS_BT = np.array([[5, 6, 7, 8, 9, 1], [11, 12, 1, 0, 0, 0], [49, 1, 0, 0, 0, 0]], np.int32)


def network(name, **changes):
  net = ENCODERS[name]
  return net.clone(config=dataclasses.replace(net.config, **changes))


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


def test_dropout_is_shared_along_the_length():
  layer = t5.EncoderLayer(dataclasses.replace(T5, dropout_rate=0.5), deterministic=False)
  arrays = (np.broadcast_to(np.linspace(1, 2, 16, dtype=np.float32), (2, 7, 16)), np.zeros(()))
  rngs = {"params": jax.random.key(0), "dropout": jax.random.key(1)}
  params = tiny_models.random_values(jax.eval_shape(layer.init, rngs, *arrays)["params"])
  # Without attention, whose weights are dropped one by one, equal positions stay equal.
  params["attention"]["out"]["kernel"] *= 0
  found_BTD, _ = jit(layer.apply)({"params": params}, *arrays, rngs=rngs)
  np.testing.assert_array_equal(found_BTD, np.broadcast_to(found_BTD[:, :1], found_BTD.shape))
  assert not np.array_equal(found_BTD[0], found_BTD[1])


def test_dropout_is_where_t5_has_it():
  config = dataclasses.replace(T5, num_encoder_layers=1, dropout_rate=0.1)
  tokens_BT, places = np.ones((3, 5), int), []

  def record(call, args, kwargs, context):
    module = context.module
    if isinstance(module, dropout.Dropout) and not kwargs.get(
      "deterministic", module.deterministic
    ):
      shape = args[0].shape
      shared = [i - len(shape) in module.broadcast_dims for i in range(len(shape))]
      places.append(tuple(np.where(shared, 1, shape).tolist()))
    return call(*args, **kwargs)

  network = sentence_encoder.SentenceEncoder(config, 8)
  rngs = {"params": jax.random.key(0), "dropout": jax.random.key(1)}
  with nn.intercept_methods(record):
    jax.eval_shape(lambda: network.init(rngs, tokens_BT, deterministic=False))
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
    f"{layer}/attention/key/kernel": 1 / math.sqrt(256),
    f"{layer}/attention/value/kernel": 1 / math.sqrt(256),
    f"{layer}/attention/out/kernel": 1 / math.sqrt(256),
    f"{layer}/mlp/wi_0/kernel": 1 / math.sqrt(256),
    f"{layer}/mlp/wi_1/kernel": 1 / math.sqrt(256),
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


# With LASER's range, 0.1, small networks are almost linear.
CONFIG = lstm.LstmConfig(
  vocab_size=50, emb_dim=6, hidden_dim=5, num_layers=2, decoder_dim=7, decoder_output_dim=4,
  language_dim=3, initializer_range=0.5,
)  # fmt: skip


LENGTHS = (6, 3, 1, 4)


MASK_BT = np.arange(6) < np.array(LENGTHS)[:, None]


EMBEDDED_BTE = np.random.default_rng(0).normal(size=(4, 6, 6)).astype(np.float32)


def encoder(**changes):
  return lstm.LstmEncoder(dataclasses.replace(CONFIG, **changes))


@pytest.fixture(scope="module")
def params():
  return jax.jit(encoder().init)(jax.random.key(0), EMBEDDED_BTE, MASK_BT)["params"]
