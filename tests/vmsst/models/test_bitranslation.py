import functools

import jax
import numpy as np
import pair_batches
import pytest

from vmsst import errors
from vmsst.models import bitranslation
from vmsst.networks import t5, vmsst
from vmsst.text import vocabularies

# Compilation takes most of the time.
jit = functools.partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})

CONFIG = t5.T5Config(
  vocab_size=30, emb_dim=8, num_heads=2, head_dim=4, mlp_dim=12, num_encoder_layers=1
)
NETWORK = vmsst.BitranslationNetwork(CONFIG, latent_dim=6, num_languages=5)
PAIRS = 3


def make_model(**changes):
  return bitranslation.BitranslationModel(
    network=NETWORK.clone(**changes), input_vocabulary=vocabularies.ByteVocabulary()
  )


def make_batch(inputs_length=6, targets_length=8):
  lengths = (inputs_length, targets_length)
  return pair_batches.random_batch(0, PAIRS, lengths, (2, 30), languages=range(1, 5))


@pytest.fixture(scope="module")
def params():
  model = make_model()
  init = jit(lambda rng: model.get_initial_variables(rng, {"inputs": (PAIRS, 6)})["params"])
  return init(jax.random.key(0))


def loss_and_metrics(params, batch):
  loss, metrics = jit(make_model().eval_fn)(params, batch)
  return float(loss), {name: float(m.compute()) for name, m in metrics.items()}


@jit
def decode(params, tokens_1T, language_1, vector_1S):
  def projection(net):
    hidden_1TD = net.decode(net.embed(tokens_1T), language_1, vector_1S)
    return net.project(hidden_1TD, vector_1S)

  return NETWORK.apply({"params": params}, method=projection)


def token_nll(params, tokens_T, language_1, vector_S):
  """Negative log-likelihood of each real token, from one matmul over [z; h] in float64."""
  (hidden_TD,), _, *kernels = decode(params, tokens_T[None], language_1, vector_S[None])
  hidden_kernel_DV, latent_kernel_ZV = map(np.float64, kernels)
  kernel = np.concatenate([latent_kernel_ZV, hidden_kernel_DV])
  both = np.concatenate([np.tile(vector_S, (len(tokens_T), 1)), hidden_TD], axis=1)
  logits_TV = np.float64(both) @ kernel
  log_p_TV = logits_TV - np.log(np.exp(logits_TV).sum(axis=1, keepdims=True))
  real = np.flatnonzero(tokens_T)
  return -log_p_TV[real, tokens_T[real]], (log_p_TV.argmax(axis=1) == tokens_T)[real]


def test_loss_and_metrics_sentence_by_sentence(params):
  batch = make_batch()
  score = jit(make_model().score_batch)
  vectors = {name: np.asarray(score(params, {"inputs": batch[name]})) for name in
             ("inputs", "targets")}  # fmt: skip
  nll, correct = [], []
  for pair in range(PAIRS):
    for side, other, code in (
      ("inputs", "targets", "input_language"),
      ("targets", "inputs", "target_language"),
    ):
      vector_S = vectors[other][pair]
      nll_T, correct_T = token_nll(params, batch[side][pair], batch[code][pair], vector_S)
      nll.extend(nll_T)
      correct.extend(correct_T)
  loss, metrics = loss_and_metrics(params, batch)
  assert loss == pytest.approx(sum(nll) / PAIRS, rel=1e-5)
  assert metrics["loss"] == pytest.approx(loss, rel=1e-6)
  assert metrics["nll/translation"] == pytest.approx(np.mean(nll), rel=1e-5)
  assert metrics["token_accuracy/translation"] == pytest.approx(np.mean(correct))
  assert metrics["tokens_per_example"] == pytest.approx(len(nll) / PAIRS)
  both = np.concatenate(list(vectors.values()))
  assert metrics["embedding_norm"] == pytest.approx(np.linalg.norm(both, axis=1).mean(), rel=1e-5)


def test_padding_changes_nothing(params):
  batch = make_batch()
  wider = {**batch, "inputs": np.pad(batch["inputs"], ((0, 0), (0, 5)))}
  expected, found = loss_and_metrics(params, batch), loss_and_metrics(params, wider)
  assert found[0] == pytest.approx(expected[0], rel=1e-5)
  assert found[1] == pytest.approx(expected[1], rel=1e-5)


def test_the_network_keeps_the_names_of_the_sentence_encoder_and_no_language_encoder(params):
  assert set(params) == {
    "token_embedder", "encoder", "mean", "decoder", "logits_hidden", "logits_latent",
  }  # fmt: skip
  assert params["logits_latent"]["kernel"].shape == (6, 30)


@pytest.mark.parametrize("count", [None, 3])
def test_the_decoder_may_be_deeper_than_the_encoder(count, params):
  model = make_model(num_decoder_layers=count)
  made = jax.eval_shape(
    lambda: model.get_initial_variables(jax.random.key(0), {"inputs": (PAIRS, 6)})
  )["params"]
  names = [f"layers_{i}" for i in range(count or 1)]
  assert {name for name in made["decoder"] if name.startswith("layers_")} == set(names)
  layer = params["decoder"]["layers_0"]
  deep = {**params, "decoder": {**params["decoder"], **dict.fromkeys(names, layer)}}
  loss = jit(lambda p: model.eval_fn(p, make_batch())[0])
  losses = [loss(deep)]
  for name in names:  # every layer takes part
    changed = jax.tree.map(lambda x: 1.5 * x, deep["decoder"][name])
    losses.append(loss({**deep, "decoder": {**deep["decoder"], name: changed}}))
  assert len(set(map(float, losses))) == len(losses)


def test_a_bad_size_is_named():
  with pytest.raises(errors.InputError, match="num_decoder_layers is 0"):
    make_model(num_decoder_layers=0)
