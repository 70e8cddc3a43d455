"""LASER against torch and NumPy; test_every_model.py has what all models have."""

import dataclasses

import jax
import numpy as np
import pytest
import scipy.special
import tiny_encoders
import tiny_models
from tiny_models import jit

from ems_jax.models import laser as models
from ems_jax.networks import laser as networks
from vmsst import languages
from vmsst.data import vocabularies
from vmsst.networks import lstm, transformer

V, EOS = 300, 1
EN, ES, DE, FR = (languages.language(code).index for code in ("en", "es", "de", "fr"))
# With LASER's 0.1, small networks are almost linear.
LSTM = lstm.LstmConfig(vocab_size=V, emb_dim=6, hidden_dim=5, num_layers=1, initializer_range=0.5)
BERT = tiny_encoders.bert_config(vocab_size=V, mlp_dim=12, initializer_std=0.3)
# `emb_dim` is the width of [token; language; sentence], 4 + 3 + 8 with BERT as the encoder.
DECODER = dataclasses.replace(BERT, emb_dim=15, num_heads=3, activation="relu")
TRANSFORMER = (("transformer_decoder", DECODER),)
SIZES = {
  "target_emb_dim": 4, "decoder_dim": 7, "decoder_output_dim": 5, "language_dim": 3,
  "initializer_range": 0.5,
}  # fmt: skip
# (inputs, targets) of each pair: into English or Spanish, out of them, both and neither.
PAIRS = ((DE, EN), (EN, FR), (ES, EN), (DE, FR), (ES, DE), (EN, ES), (FR, ES), (FR, DE))
INTO = {
  ("en", "es"): [(0, 1), (1, 0), (2, 0), (2, 1), (4, 0), (5, 0), (5, 1), (6, 1)],
  ("en",): [(0, 1), (1, 0), (2, 1), (5, 0)],
}


def make_model(*, config=LSTM, network=(), **options):
  return models.LaserModel(
    network=networks.LaserNetwork(config, **(SIZES | dict(network))),
    vocabulary=vocabularies.ByteVocabulary(),
    max_length=9,
    **options,
  )


def make_batch(pairs=PAIRS):
  """Sentences of 1 token and more, each with EOS; one of each side has only EOS."""
  batch = tiny_models.random_batch(0, len(pairs), (7, 9), (3, V), eos=EOS)
  for name in ("inputs", "targets"):
    batch[name][0, 1:] = 0
    batch[name][0, 0] = EOS
  names = ("input_language", "target_language")
  for name, column in zip(names, zip(*pairs, strict=True), strict=True):
    batch[name] = np.array(column, np.int32)[:, None]
  return batch


# --------------------------------------------------------------------------------------------
# The decoders, one sentence at a time; other tests compare the encoders with torch


def lstm_logits(params, ids_T, language, vector_S):
  """Logits by `torch.nn.LSTMCell`; one of its two biases is zero."""
  torch = pytest.importorskip("torch", reason="needs torch to compare with")
  p = {name: torch.tensor(np.array(array)) for name, array in params["decoder"].items()}
  cell = torch.nn.LSTMCell(4 + 10 + 3, 7)
  table_VE = torch.tensor(np.array(params["target_embedder"]["embedding"]))
  vector_S = torch.tensor(np.array(vector_S))
  with torch.no_grad():
    cell.weight_ih.copy_(torch.cat([p[f"{x}_kernel"] for x in ("token", "sentence", "language")]).T)
    cell.weight_hh.copy_(p["recurrent_kernel"][0].T)
    cell.bias_ih.copy_(p["gates_bias"])
    cell.bias_hh.zero_()
    state = (vector_S @ p["initial_state_kernel"] + p["initial_state_bias"]).chunk(2)
    outputs = []
    for token_E in (p["start_embedding"], *table_VE[torch.tensor(ids_T[:-1]).long()]):
      state = cell(torch.cat([token_E, vector_S, p["language_embedding"][language]]), state)
      outputs.append(state[0] @ p["output_kernel"] + p["output_bias"])
  return np.float64(torch.stack(outputs)) @ params["logits"]["kernel"]


decoder_layer = jit(transformer.EncoderLayer(DECODER, deterministic=True).apply)


def transformer_logits(params, ids_T, language, vector_S):
  decoder_params, length = params["decoder"], DECODER.max_positions
  before_T = np.pad(ids_T[:-1], (0, length - len(ids_T)))
  token_TE = np.stack(
    [decoder_params["start_embedding"], *params["target_embedder"]["embedding"][before_T]]
  )
  token_TE = token_TE + decoder_params["position_embedding"]
  once_Y = np.concatenate([decoder_params["language_embedder"]["embedding"][language], vector_S])
  x_1TD = np.concatenate([token_TE, np.tile(once_Y, (length, 1))], axis=1)[None]
  bias_11TT = np.where(np.tri(length), 0.0, -1e9).astype(np.float32)[None, None]
  for i in range(DECODER.num_layers):  # imports of BERT compare these layers with transformers
    x_1TD, _ = decoder_layer({"params": decoder_params[f"layers_{i}"]}, x_1TD, bias_11TT)
  return np.float64(x_1TD[0, : len(ids_T)]) @ params["logits"]["kernel"]


@pytest.mark.filterwarnings("ignore")  # warnings of another library
@pytest.mark.parametrize(
  ("config", "network", "logits_of", "targets"),
  [
    (LSTM, (), lstm_logits, ("en", "es")),
    (LSTM, (), lstm_logits, ("en",)),
    (BERT, TRANSFORMER, transformer_logits, ("en", "es")),
  ],
)
def test_loss_and_metrics_equal_one_translation_at_a_time(config, network, logits_of, targets):
  model = make_model(config=config, network=network, target_languages=targets)
  batch, params = make_batch(), tiny_models.random_params(model.network)
  score = jit(model.score_batch)
  vectors = [score(params, {"inputs": batch[name]}) for name in ("inputs", "targets")]
  nll, correct = [], []
  for row, side in INTO[targets]:
    ids_T = batch[("inputs", "targets")[side]][row]
    ids_T = ids_T[ids_T != 0]
    logits_TV = logits_of(params, ids_T, PAIRS[row][side], vectors[1 - side][row])
    log_p_TV = scipy.special.log_softmax(logits_TV, axis=1)
    nll += (-log_p_TV[np.arange(len(ids_T)), ids_T]).tolist()
    correct += (log_p_TV.argmax(axis=1) == ids_T).tolist()
  loss, metrics = tiny_models.evaluate(model.eval_fn, params, batch)
  tokens = sum(np.count_nonzero(batch[name]) for name in ("inputs", "targets"))
  assert metrics == pytest.approx(
    {
      "loss": np.mean(nll),
      "nll/translation": np.mean(nll),
      "token_accuracy/translation": np.mean(correct),
      "translations_per_example": len(INTO[targets]) / len(PAIRS),
      "tokens_per_example": tokens / len(PAIRS),
    },
    rel=2e-5,
  )
  assert loss == pytest.approx(np.mean(nll), rel=2e-5)


@pytest.mark.parametrize(
  ("module", "inputs", "shapes"),
  [
    (lstm.LstmEncoder(dataclasses.replace(LSTM, num_layers=2, dropout_rate=0.5)),
     (np.ones((2, 4, 6), np.float32), np.ones((2, 4), bool)), [(4, 2, 10)] * 2),
    (networks.TransformerDecoder(dataclasses.replace(DECODER, dropout_rate=0.5), 3, 5, 0.5),
     (np.ones((2, 4, 4), np.float32), np.ones(2, int), np.ones((2, 8), np.float32)),
     # token, attention weights, output of the attention and of the feed-forward layer
     [(2, 4, 4), (2, 3, 4, 4), (2, 4, 15), (2, 4, 15)]),
  ],
)  # fmt: skip
def test_dropout_is_where_fairseq_has_it(module, inputs, shapes):
  params = tiny_models.random_values(
    jax.eval_shape(module.init, jax.random.key(0), *inputs)["params"]
  )
  _, factors = tiny_models.with_dropout_factors(module, params, *inputs)
  assert [factor.shape for factor in factors] == shapes
  assert {value for factor in factors for value in np.unique(factor)} == {0, 2}


def test_a_batch_without_a_translation_has_no_loss_and_no_gradient():
  model = make_model()
  params = tiny_models.random_params(model.network)
  run = jit(jax.value_and_grad(model.loss_fn, has_aux=True))
  (loss, metrics), gradients = run(params, make_batch(((DE, FR),) * 8), None)
  assert loss == metrics["translations_per_example"].compute() == 0
  assert np.isnan(metrics["loss"].compute())
  assert not any(np.any(x) for x in jax.tree.leaves(gradients))
