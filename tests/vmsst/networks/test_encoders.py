"""Encoders and pooling; tests/vmsst/formats compares values with transformers."""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny_models
from flax import linen as nn
from flax import traverse_util
from tiny_models import assert_trees_close, jit

from vmsst import errors
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


@pytest.mark.parametrize("name", [*STACKS, "pooler", "chain"])
def test_every_parameter_has_standard_logical_axes(name):
  tiny_models.assert_standard_axes(tiny_models.shapes_of(network(name, scan_layers=True)))


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


@pytest.mark.parametrize(
  ("changes", "message"),
  [
    ({"pooling": "mean+min"}, "pooling is 'min'; known: mean, max"),
    ({"pooling": "cls+mean"}, "latent_dim is 12; .* 24"),
    ({"head": (sentence_encoder.Dense(7),)}, "latent_dim is 12; .* 7"),
  ],
)
def test_layers_that_do_not_fit_are_named(changes, message):
  with pytest.raises(errors.InputError, match=message):
    sentence_encoder.SentenceEncoder(BERT, 12, **{"head": False, **changes})


def test_a_sentence_longer_than_the_position_table_is_refused():
  encoder = transformer.TransformerEncoder(dataclasses.replace(BERT, position_offset=2))
  with pytest.raises(errors.InputError, match=r"15 tokens.*positions for 14"):
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


def apply(x, rate, *, seed=0, **options):
  module = dropout.Dropout(rate, deterministic=False, **options)
  return np.asarray(module.apply({}, jnp.asarray(x), rngs={"dropout": jax.random.key(seed)}))


def test_random_levels_are_the_halves_of_random_words():
  key = jax.random.key(0)
  own = jax.random.wrap_key_data(jax.random.bits(key, (2,), jnp.uint32), impl="threefry2x32")
  words = np.asarray(jax.random.bits(own, (64, 17, 65), jnp.uint32))
  halves = np.concatenate([words & 0xFFFF, words >> 16], axis=1)
  np.testing.assert_array_equal(dropout.random_levels(key, (64, 33, 65)), halves[:, :33])


@pytest.mark.parametrize("shape", [(7,), (3, 1, 5), (2, 128, 256)])
def test_random_words_are_those_of_jax(shape):
  key = jax.random.key(3, impl="threefry2x32")
  found = jax.jit(lambda key: dropout.random_words(key, shape))(jax.random.key_data(key))
  np.testing.assert_array_equal(found, jax.random.bits(key, shape, jnp.uint32))


@pytest.mark.parametrize("rate", [0.1, 0.3, 0.75])
def test_values_are_zero_at_the_rate_and_keep_their_mean(rate):
  dropped = apply(np.ones((64, 31, 512), np.float32), rate)
  deviation = 5 * np.sqrt(rate * (1 - rate) / dropped.size)
  assert abs(np.mean(dropped == 0) - rate) < deviation
  np.testing.assert_allclose(dropped[dropped != 0], 1 / (1 - rate), rtol=1e-4)


def test_keys_differ_and_infinities_vanish():
  x = np.full((4, 8, 16), np.inf, np.float32)
  first, second = (apply(x, 0.5, seed=seed) for seed in range(2))
  assert set(np.unique(first)) == {0.0, np.inf}
  assert np.any(first != second)


def test_nothing_changes_without_dropout():
  x = np.ones((2, 3, 4), np.float32)
  np.testing.assert_array_equal(dropout.Dropout(0.5).apply({}, x, deterministic=True), x)
  np.testing.assert_array_equal(dropout.Dropout(0.0, deterministic=False).apply({}, x), x)


# With LASER's range, 0.1, small networks are almost linear.
CONFIG = lstm.LstmConfig(
  vocab_size=50, emb_dim=6, hidden_dim=5, num_layers=2, decoder_dim=7, decoder_output_dim=4,
  language_dim=3, initializer_range=0.5,
)  # fmt: skip
LENGTHS = (6, 3, 1, 4)
MASK_BT = np.arange(6) < np.array(LENGTHS)[:, None]
EMBEDDED_BTE = np.random.default_rng(0).normal(size=(4, 6, 6)).astype(np.float32)
SENTENCE_BZ = np.random.default_rng(1).normal(size=(4, 10)).astype(np.float32)
LANGUAGES_B = np.array([0, 2, 1, 2])


def encoder(**changes):
  return lstm.LstmEncoder(dataclasses.replace(CONFIG, **changes))


def decoder(**changes):
  return lstm.LstmDecoder(dataclasses.replace(CONFIG, **changes), num_languages=3)


@pytest.fixture(scope="module")
def params():
  return jax.jit(encoder().init)(jax.random.key(0), EMBEDDED_BTE, MASK_BT)["params"]


@pytest.fixture(scope="module")
def decoder_params():
  init = jax.jit(decoder().init)
  return init(jax.random.key(1), EMBEDDED_BTE, LANGUAGES_B, SENTENCE_BZ)["params"]


def lstm_encode(params, embedded_BTE=EMBEDDED_BTE, mask_BT=MASK_BT, **changes):
  return jax.jit(encoder(**changes).apply)({"params": params}, embedded_BTE, mask_BT)


def decode(params, embedded_BTE=EMBEDDED_BTE, languages_B=LANGUAGES_B, **changes):
  apply = jax.jit(decoder(**changes).apply)
  return apply({"params": params}, embedded_BTE, languages_B, SENTENCE_BZ)


@pytest.mark.filterwarnings("ignore")  # those of another library
def test_states_and_gradients_equal_those_of_torch(params):
  torch = pytest.importorskip("torch", reason="needs torch to compare with")
  reference = torch.nn.LSTM(6, 5, num_layers=2, bidirectional=True, batch_first=True)

  def theirs(tree):
    """Our layers' arrays under torch's names; its two biases are one here."""
    found = {}
    for i in range(2):
      layer = {name: np.asarray(array) for name, array in tree[f"layers_{i}"].items()}
      for direction, suffix in enumerate(("", "_reverse")):
        part = slice(20 * direction, 20 * (direction + 1))
        found[f"weight_ih_l{i}{suffix}"] = layer["input_kernel"][:, part].T
        found[f"weight_hh_l{i}{suffix}"] = layer["recurrent_kernel"][direction].T
        found[f"bias_ih_l{i}{suffix}"] = layer["bias"][part]
    return found

  with torch.no_grad():
    for name, weight in reference.named_parameters():
      array = theirs(params).get(name)
      weight.zero_() if array is None else weight.copy_(torch.tensor(array))
  inputs_BTE = torch.tensor(EMBEDDED_BTE, requires_grad=True)
  packed = torch.nn.utils.rnn.pack_padded_sequence(
    inputs_BTE, torch.tensor(LENGTHS), batch_first=True, enforce_sorted=False
  )
  expected_BTD, _ = torch.nn.utils.rnn.pad_packed_sequence(reference(packed)[0], batch_first=True)
  np.testing.assert_allclose(lstm_encode(params), expected_BTD.detach().numpy(), atol=2e-6)

  weight_BTD = np.random.default_rng(2).normal(size=expected_BTD.shape).astype(np.float32)
  (expected_BTD * torch.tensor(weight_BTD)).sum().backward()

  @jax.jit
  @jax.grad
  def gradients(inputs):
    return jnp.sum(encoder().apply({"params": inputs[0]}, inputs[1], MASK_BT) * weight_BTD)

  grad, grad_BTE = gradients((params, EMBEDDED_BTE))
  np.testing.assert_allclose(grad_BTE, inputs_BTE.grad.numpy(), atol=1e-5)
  for name, array in theirs(grad).items():
    np.testing.assert_allclose(array, getattr(reference, name).grad.numpy(), atol=1e-5)


def test_gradients_equal_those_of_a_plain_loop():
  """With initial states, two directions, and skipped steps in the middle."""
  rng = np.random.default_rng(0)
  shapes = ((4, 2, 3, 12), (2, 3, 12), (2, 3, 3), (2, 3, 3))
  arrays = tuple(jnp.asarray(rng.normal(size=shape), jnp.float32) for shape in shapes)
  weight_TRBC = rng.normal(size=(4, 2, 3, 3)).astype(np.float32)
  mask_TRB = np.ones((4, 2, 3), bool)
  mask_TRB[1, 0, 0] = mask_TRB[2, 1, :2] = mask_TRB[0, 1, 2] = mask_TRB[3, 0, 1] = False

  def plain(gates_TRBQ, kernel_RCQ, mask_TRB, hidden_RBC, cell_RBC):
    states = []
    for gates_RBQ, mask_RB in zip(gates_TRBQ, mask_TRB, strict=True):
      gates_RBQ = gates_RBQ + jnp.einsum("rbc,rcq->rbq", hidden_RBC, kernel_RCQ)
      i, f, g, o = (gates_RBQ[..., 3 * n : 3 * n + 3] for n in range(4))
      new_RBC = jax.nn.sigmoid(f) * cell_RBC + jax.nn.sigmoid(i) * jnp.tanh(g)
      cell_RBC = jnp.where(mask_RB[..., None], new_RBC, cell_RBC)
      new_RBC = jax.nn.sigmoid(o) * jnp.tanh(new_RBC)
      hidden_RBC = jnp.where(mask_RB[..., None], new_RBC, hidden_RBC)
      states.append(hidden_RBC)
    return jnp.stack(states)

  def value_and_gradients(function):
    def value(gates_TRBQ, kernel_RCQ, hidden_RBC, cell_RBC):
      return jnp.sum(function(gates_TRBQ, kernel_RCQ, mask_TRB, hidden_RBC, cell_RBC) * weight_TRBC)

    return jax.jit(jax.value_and_grad(value, argnums=(0, 1, 2, 3)))(*arrays)

  jax.tree.map(
    lambda found, expected: np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5),
    value_and_gradients(lstm.lstm),
    value_and_gradients(plain),
  )


def test_a_language_outside_the_table_gives_nan(decoder_params):
  assert np.isnan(decode(decoder_params, languages_B=np.array([0, 0, 0, 3]))[3]).all()


def test_every_parameter_starts_uniform():
  for net, inputs in (
    (encoder(initializer_range=0.1), (EMBEDDED_BTE, MASK_BT)),
    (decoder(initializer_range=0.1), (EMBEDDED_BTE, LANGUAGES_B, SENTENCE_BZ)),
  ):
    variables = jax.jit(net.init)(jax.random.key(0), *inputs)
    for name, array in traverse_util.flatten_dict(variables["params"]).items():
      assert np.abs(array).max() <= 0.1, name
      if array.size > 100:
        assert np.std(array) == pytest.approx(0.1 / np.sqrt(3), rel=0.15), name
