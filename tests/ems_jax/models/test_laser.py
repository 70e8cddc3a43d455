import dataclasses
import functools

import eight_devices
import jax
import jax.numpy as jnp
import numpy as np
import pair_batches
import pytest
import sharded_models
from flax import traverse_util

from ems_jax.models import laser as models
from ems_jax.networks import laser as networks
from vmsst import errors, languages
from vmsst.checkpoints import encoder_json
from vmsst.networks import bert, lstm, sentence_encoder
from vmsst.text import vocabularies

# Compilation takes most of the time.
jit = functools.partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})

V, EOS = 300, 1
EN, ES, DE, FR = (languages.language(code).index for code in ("en", "es", "de", "fr"))
# With LASER's 0.1, small networks are almost linear.
LSTM = lstm.LstmConfig(vocab_size=V, emb_dim=6, hidden_dim=5, num_layers=1, initializer_range=0.5)
NOISY = dataclasses.replace(LSTM, dropout_rate=0.3)
BERT = bert.BertConfig(
  vocab_size=V,
  emb_dim=8,
  num_heads=2,
  mlp_dim=12,
  num_layers=1,
  max_positions=9,
  initializer_std=0.3,
)
# Its width is that of [token; language; sentence], 4 + 3 + 8 with BERT as the encoder.
DECODER = dataclasses.replace(BERT, emb_dim=15, num_heads=3, activation="relu")
TRANSFORMER = (("transformer_decoder", DECODER),)
SIZES = {
  "target_emb_dim": 4,
  "decoder_dim": 7,
  "decoder_output_dim": 5,
  "language_dim": 3,
  "initializer_range": 0.5,
}
# (inputs, targets) of each pair: into English or Spanish, out of them, both and neither.
PAIRS = ((DE, EN), (EN, FR), (ES, EN), (DE, FR), (ES, DE), (EN, ES), (FR, ES), (FR, DE))
INTO = {
  ("en", "es"): [(0, 1), (1, 0), (2, 0), (2, 1), (4, 0), (5, 0), (5, 1), (6, 1)],
  ("en",): [(0, 1), (1, 0), (2, 1), (5, 0)],
}


def make_model(*, config=LSTM, network=(), **options):
  return models.LaserModel(
    network=networks.LaserNetwork(config, **(SIZES | dict(network))),
    input_vocabulary=vocabularies.ByteVocabulary(),
    max_length=9,
    **options,
  )


def make_batch(pairs=PAIRS):
  """Sentences of 1 token and more, each with EOS; one of each side has only EOS."""
  batch = pair_batches.random_batch(0, len(pairs), (7, 9), (3, V), eos=EOS)
  for name in ("inputs", "targets"):
    batch[name][0, 1:] = 0
    batch[name][0, 0] = EOS
  names = ("input_language", "target_language")
  for name, column in zip(names, zip(*pairs, strict=True), strict=True):
    batch[name] = np.array(column, np.int32)[:, None]
  return batch


def make_variables(config=LSTM, network=()):
  """Shapes of parameters and their logical axes."""
  tokens_BT = jnp.ones((1, 2), jnp.int32)
  model = make_model(config=config, network=network)
  return jax.eval_shape(model.network.init, jax.random.key(0), tokens_BT)


def make_params(config=LSTM, network=()):
  rng = np.random.default_rng(0)
  return jax.tree.map_with_path(
    lambda path, x: np.float32((path[-1].key == "scale") + 0.3 * rng.normal(size=x.shape)),
    make_variables(config, network)["params"],
  )


@functools.cache
def compiled(config, network=()):
  model = make_model(config=config, network=network)
  return jit(jax.value_and_grad(model.loss_fn, has_aux=True))


def run(params, batch, *, config=LSTM, network=()):
  """Loss, metrics and gradients, without a key."""
  (loss, metrics), gradients = compiled(config, network)(params, batch, None)
  return float(loss), {name: float(value.compute()) for name, value in metrics.items()}, gradients


# --------------------------------------------------------------------------------------------
# LASER in torch, one sentence at a time


def torch_lstm(torch, inputs, weights, **options):
  """A `torch.nn.LSTM` or `LSTMCell` with given weights; one of its two biases is zero."""
  first = next(name for name in weights if name.startswith("weight_hh"))
  kind = torch.nn.LSTM if first.endswith("_l0") else torch.nn.LSTMCell
  module = kind(inputs, weights[first].shape[1], **options)
  with torch.no_grad():
    for name, weight in module.named_parameters():
      weight.copy_(torch.tensor(weights[name])) if name in weights else weight.zero_()
  return module


def torch_encoder(torch, params):
  layer = {name: np.array(array) for name, array in params["encoder"]["layers_0"].items()}
  weights = {}
  for direction, suffix in enumerate(("", "_reverse")):
    part = slice(20 * direction, 20 * (direction + 1))
    weights[f"weight_ih_l0{suffix}"] = layer["input_kernel"][:, part].T
    weights[f"weight_hh_l0{suffix}"] = layer["recurrent_kernel"][direction].T
    weights[f"bias_ih_l0{suffix}"] = layer["bias"][part]
  module = torch_lstm(torch, 6, weights, bidirectional=True)
  table_VE = torch.tensor(np.array(params["token_embedder"]["embedding"]))
  return lambda ids: module(table_VE[ids])[0].max(dim=0).values


def torch_decoder(torch, params):
  """Logits of each token of a sentence, given its language and a vector."""
  p = {name: torch.tensor(np.array(array)) for name, array in params["decoder"].items()}
  kernels = [p[f"{name}_kernel"] for name in ("token", "sentence", "language")]
  weights = {
    "weight_ih": torch.cat(kernels).T.numpy(),
    "weight_hh": p["recurrent_kernel"][0].T.numpy(),
    "bias_ih": p["gates_bias"].numpy(),
  }
  cell = torch_lstm(torch, 4 + 10 + 3, weights)
  table_VE = torch.tensor(np.array(params["target_embedder"]["embedding"]))
  kernel_OV = torch.tensor(np.array(params["logits"]["kernel"]))

  def decode(ids, language, vector_S):
    state = (vector_S @ p["initial_state_kernel"] + p["initial_state_bias"]).chunk(2)
    logits = []
    for token_E in (p["start_embedding"], *table_VE[ids[:-1]]):
      state = cell(torch.cat([token_E, vector_S, p["language_embedding"][language]]), state)
      logits.append((state[0] @ p["output_kernel"] + p["output_bias"]) @ kernel_OV)
    return torch.stack(logits)

  return decode


@pytest.mark.filterwarnings("ignore")  # those of another library
@pytest.mark.parametrize("targets", INTO)
def test_loss_and_metrics_are_those_of_torch_for_each_translation_alone(targets):
  torch = pytest.importorskip("torch", reason="needs torch to compare with")
  params, batch = make_params(), make_batch()
  encode, decode = torch_encoder(torch, params), torch_decoder(torch, params)
  nll, correct = [], []
  for row, side in INTO[targets]:
    sides = [torch.tensor(batch[name][row][batch[name][row] != 0]).long() for name in
             ("inputs", "targets")]  # fmt: skip
    with torch.no_grad():
      logits_TV = decode(sides[side], PAIRS[row][side], encode(sides[1 - side]))
    nll += (-logits_TV.log_softmax(dim=1)[range(len(sides[side])), sides[side]]).tolist()
    correct += (logits_TV.argmax(dim=1) == sides[side]).tolist()
  if targets == ("en", "es"):
    loss, found, _ = run(params, batch)
  else:  # dropout is only for training
    model = make_model(config=NOISY, target_languages=targets)
    loss, found = jit(model.eval_fn)(params, batch)
    found = {name: float(value.compute()) for name, value in found.items()}
  tokens = sum(np.count_nonzero(batch[name]) for name in ("inputs", "targets"))
  assert found == pytest.approx(
    {
      "loss": np.mean(nll),
      "nll/translation": np.mean(nll),
      "token_accuracy/translation": np.mean(correct),
      "translations_per_example": len(INTO[targets]) / len(PAIRS),
      "tokens_per_example": tokens / len(PAIRS),
    },
    rel=2e-5,
  )
  assert float(loss) == pytest.approx(np.mean(nll), rel=2e-5)


# --------------------------------------------------------------------------------------------
# A transformer decoder, in NumPy, one sentence at a time


def norm(x_TD, layer, name):
  centered_TD = x_TD - x_TD.mean(axis=1, keepdims=True)
  scaled_TD = centered_TD / np.sqrt(np.mean(centered_TD**2, axis=1, keepdims=True) + 1e-12)
  return scaled_TD * layer[name]["scale"] + layer[name]["bias"]


def attention(x_TD, layer, heads):
  """Causal attention: each query by itself, over the keys up to its own position."""
  query_TD, key_TD, value_TD = (
    x_TD @ layer[name]["kernel"] + layer[name]["bias"] for name in ("query", "key", "value")
  )
  found_TD, width = np.zeros_like(x_TD), x_TD.shape[1] // heads
  for head in range(heads):
    part = slice(head * width, (head + 1) * width)
    for t in range(len(x_TD)):
      weights_T = np.exp(key_TD[: t + 1, part] @ query_TD[t, part] / np.sqrt(width))
      found_TD[t, part] = weights_T / weights_T.sum() @ value_TD[: t + 1, part]
  return found_TD @ layer["out"]["kernel"] + layer["out"]["bias"]


def transformer_logits(params, ids_T, language, vector_S):
  own = params["decoder"]
  token_TE = np.stack([own["start_embedding"], *params["target_embedder"]["embedding"][ids_T[:-1]]])
  token_TE = token_TE + own["position_embedding"][: len(ids_T)]
  once_Y = np.concatenate([own["language_embedder"]["embedding"][language], vector_S])
  x_TD = np.concatenate([token_TE, np.tile(once_Y, (len(ids_T), 1))], axis=1)
  for i in range(DECODER.num_layers):
    layer = own[f"layers_{i}"]
    attended_TD = attention(x_TD, layer["attention"], DECODER.num_heads)
    x_TD = norm(x_TD + attended_TD, layer, "post_attention_layer_norm")
    wide_TM = np.maximum(x_TD @ layer["mlp"]["wi"]["kernel"] + layer["mlp"]["wi"]["bias"], 0)
    fed_TD = wide_TM @ layer["mlp"]["wo"]["kernel"] + layer["mlp"]["wo"]["bias"]
    x_TD = norm(x_TD + fed_TD, layer, "post_mlp_layer_norm")
  return x_TD @ params["logits"]["kernel"]


def test_a_transformer_decoder_scores_each_translation_as_in_numpy():
  params, batch = make_params(BERT, TRANSFORMER), make_batch()
  in_float64 = jax.tree.map(np.float64, params)
  score = jit(make_model(config=BERT, network=TRANSFORMER).score_batch)
  vectors = [score(params, {"inputs": batch[name]}) for name in ("inputs", "targets")]
  nll = []
  for row, side in INTO["en", "es"]:
    ids_T = batch[("inputs", "targets")[side]][row]
    ids_T = ids_T[ids_T != 0]
    vector_S = np.float64(vectors[1 - side][row])
    logits_TV = transformer_logits(in_float64, ids_T, PAIRS[row][side], vector_S)
    log_p_TV = logits_TV - np.log(np.exp(logits_TV).sum(axis=1, keepdims=True))
    nll += (-log_p_TV[np.arange(len(ids_T)), ids_T]).tolist()
  loss, _, _ = run(params, batch, config=BERT, network=TRANSFORMER)
  assert loss == pytest.approx(np.mean(nll), rel=2e-5)


# --------------------------------------------------------------------------------------------
# Which translations count


def test_pairs_without_a_translation_change_nothing():
  params, batch, other = make_params(), make_batch(), make_batch()
  for row in (3, 7):
    for name in ("inputs", "targets"):
      other[name][row] = np.roll(other[name][row], 1)
      other[name][row, 0] = V - 1
  loss, _, gradients = run(params, batch)
  other_loss, _, other_gradients = run(params, other)
  assert other_loss == loss
  jax.tree.map(np.testing.assert_array_equal, other_gradients, gradients)


def test_a_batch_without_a_translation_has_no_loss_and_no_gradient():
  loss, found, gradients = run(make_params(), make_batch(((DE, FR),) * 8))
  assert loss == found["translations_per_example"] == 0
  assert np.isnan(found["loss"])
  assert not any(np.any(x) for x in jax.tree.leaves(gradients))


@pytest.mark.parametrize(
  ("options", "message"),
  [
    ({"target_languages": ()}, r"target_languages is \(\)"),
    ({"target_languages": "en"}, "target_languages is 'en'"),
    ({"target_languages": ("en", "klingon")}, "klingon"),
    ({"network": (("num_languages", 50),)}, "num_languages is 50"),
    ({"network": (("decoder_dim", 0),)}, "decoder_dim is 0"),
    ({"network": (("language_dim", 1.5),)}, "language_dim is 1.5"),
    ({"network": TRANSFORMER}, "emb_dim is 15; set it to 17"),
  ],
)
def test_options_that_cannot_be_used_are_named(options, message):
  with pytest.raises(errors.InputError, match=message):
    make_model(**options)


# --------------------------------------------------------------------------------------------
# Vectors and parameters


def test_a_vector_is_the_largest_hidden_state_and_sees_no_padding():
  config = BERT  # the LSTM is compared with torch above, without padding
  model, params = make_model(config=config), make_params(config)
  tokens_BT = make_batch()["inputs"]
  vector_BS = jit(model.score_batch)(params, {"inputs": np.pad(tokens_BT, ((0, 0), (0, 2)))})
  assert vector_BS.dtype == np.float32
  hidden_BTD = jit(sentence_encoder.new_encoder(config).apply)(
    {"params": params["encoder"]},
    np.array(params["token_embedder"]["embedding"])[tokens_BT],
    tokens_BT != 0,
  )
  for vector_S, hidden_TD, tokens_T in zip(vector_BS, hidden_BTD, tokens_BT, strict=True):
    largest_S = np.max(hidden_TD[: np.count_nonzero(tokens_T)], axis=0)
    np.testing.assert_allclose(vector_S, largest_S, rtol=1e-4, atol=1e-5)


def test_a_run_s_folder_gives_the_encoder_without_the_decoder(tmp_path):
  model, params = make_model(), make_params()
  encoder_json.save_encoder_assets(model, tmp_path)
  loaded = encoder_json.load_encoder_assets(tmp_path).network
  assert loaded == model.sentence_encoder
  tokens_BT = make_batch()["targets"]
  wanted = jax.eval_shape(loaded.init, jax.random.key(0), tokens_BT)["params"]
  assert set(wanted) == {"token_embedder", "encoder"}
  own = {name: params[name] for name in wanted}
  assert jax.tree.map(lambda x: x.shape, own) == jax.tree.map(lambda x: x.shape, wanted)
  found_BS = jit(loaded.apply)({"params": own}, tokens_BT)
  expected_BS = jit(model.network.apply)({"params": params}, tokens_BT)
  np.testing.assert_allclose(found_BS, expected_BS, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
  ("config", "network", "table"),
  [
    (LSTM, (), ("language_embedding",)),
    (BERT, TRANSFORMER, ("language_embedder", "embedding")),
  ],
  ids=["lstm", "transformer"],
)
def test_gradients_reach_every_parameter(config, network, table):
  _, _, gradients = run(make_params(config, network), make_batch(), config=config, network=network)
  for path, gradient in traverse_util.flatten_dict(gradients, sep="/").items():
    if not path.endswith("key/bias"):  # a softmax ignores it
      assert np.abs(gradient).max() > 0, path
  changed = np.any(functools.reduce(dict.__getitem__, table, gradients["decoder"]), axis=1)
  assert set(np.flatnonzero(changed)) == {EN, ES}


def test_parameters_have_laser_s_initial_values_and_number():
  network = networks.LaserNetwork(lstm.LstmConfig(vocab_size=50_000))
  shapes = jax.eval_shape(network.init, jax.random.key(0), jnp.ones((1, 2), jnp.int32))["params"]
  count = sum(x.size for x in jax.tree.leaves(shapes))
  # A torch.nn.LSTM with one bias, and the released decoder without the bias of pieces.
  gates = 4 * 512
  encoder = 2 * gates * (320 + 512 + 1) + 4 * 2 * gates * (1024 + 512 + 1)
  cell = 4 * 2048 * (320 + 1024 + 32 + 2048 + 1)
  decoder = cell + (1024 + 1) * 2 * 2048 + (2048 + 1) * 512 + 512 * 50_000
  tables = 2 * 50_000 * 320 + languages.NUM_LANGUAGES * 32 + 320  # and the start
  assert count == encoder + decoder + tables
  assert network.latent_dim == 1024
  table = networks.token_table(V, 16, 0.1, "float32").init(
    jax.random.key(0), jnp.ones((1, 1), jnp.int32)
  )
  table_VE = np.array(table["params"]["embedding"])
  assert np.abs(table_VE).max() <= 0.1
  assert table_VE.std() == pytest.approx(0.1 / np.sqrt(3), rel=0.05)


@pytest.mark.parametrize("decoder", ["lstm", "transformer"])
def test_dropout_differs_by_key(decoder):
  config, network = NOISY, ()
  if decoder == "transformer":  # whose own dropout it is
    config = BERT
    network = (("transformer_decoder", dataclasses.replace(DECODER, dropout_rate=0.3)),)
  params, batch = make_params(config, network), make_batch()
  model = make_model(config=config, network=network, target_languages=("en",))
  loss_fn = jit(model.loss_fn)
  losses = [float(loss_fn(params, batch, jax.random.key(i))[0]) for i in (1, 1, 2)]
  assert losses[0] == losses[1] != losses[2]


# --------------------------------------------------------------------------------------------
# Several devices


def make_sharded():
  """Network, loss function, parameters and batch of the test on eight devices."""
  model = make_model()
  return model.network, lambda p, batch: model.loss_fn(p, batch, None), make_params(), make_batch()


def run_on_eight_devices(folder):
  """Saves loss, metrics and gradients."""
  arrays, _ = sharded_models.leaves_on_mesh((4, 2), *make_sharded())
  sharded_models.save(folder / "eight.npz", arrays)


@pytest.mark.slow
def test_eight_devices_have_the_results_of_one(tmp_path):
  eight_devices.run(__file__, tmp_path)
  expected = sharded_models.leaves(*make_sharded()[1:])
  sharded_models.assert_saved_equal(tmp_path / "eight.npz", expected, rtol=1e-4, atol=1e-6)
