import functools

import jax
import numpy as np
import pytest
import tiny_encoders
import tiny_models
from tiny_models import jit, random_params

from vmsst import errors
from vmsst.data import vocabularies
from vmsst.models import bitranslation
from vmsst.models import vmsst as models
from vmsst.networks import t5
from vmsst.networks import vmsst as networks

CONFIG = tiny_encoders.t5_config(vocab_size=30, mlp_dim=12)
PLAIN = networks.VmsstNetwork(CONFIG, latent_dim=6, num_languages=5)
GROUPS = (-1, 0, 1, 1, 0)  # of languages 0 to 4
ONE_EACH = (-1, 0, 1, 2, -1)
FULL = {
  "language_encoder_groups": ONE_EACH,
  "decoder_groups": ONE_EACH,
  "encoder_language_embedding": False,
  "decoder_language_embedding": False,
}
TOKENS_BT = np.random.default_rng(0).integers(2, 30, size=(4, 6)).astype(np.int32)
TOKENS_BT[1:3, 4:] = 0
LANGUAGES_B = np.array([1, 2, 3, 4])


@functools.partial(jit, static_argnums=0)
def posteriors(network, params, languages_B=LANGUAGES_B):
  def of_tokens(net):
    return net.posteriors(net.embed(TOKENS_BT), TOKENS_BT != 0, languages_B)

  return network.apply({"params": params}, method=of_tokens)


@functools.partial(jit, static_argnums=0)
def decode(network, params, sentence_BZ, languages_B=LANGUAGES_B):
  def of_tokens(net):
    return net.decode(net.embed(TOKENS_BT), languages_B, sentence_BZ)

  return network.apply({"params": params}, method=of_tokens)


def some_sentences():
  return np.random.default_rng(2).standard_normal((4, 12)).astype(np.float32)


def without(params, prefix):
  return {name: value for name, value in params.items() if not name.startswith(prefix)}


@pytest.mark.parametrize("network_cls", [networks.VmsstNetwork, networks.BitranslationNetwork])
def test_factorized_scores_are_those_of_two_products_with_sentence_and_hidden_state(network_cls):
  network = network_cls(CONFIG, latent_dim=6, num_languages=5, factorized=True)
  params = random_params(network)
  sentence_BZ = some_sentences()[:, : network.sentence_dim]
  tokens_BRT, weights_BR = TOKENS_BT.reshape(2, 2, 6), np.array([[0.5, 1.0], [2.0, 0.1]])
  found = jit(functools.partial(bitranslation.score, network, dropout_rng=None))(
    params,
    tokens_BRT,
    params["token_embedder"]["embedding"][tokens_BRT],
    LANGUAGES_B.reshape(2, 2),
    sentence_BZ.reshape(2, 2, -1),
    weights_BR,
  )
  hidden_BTD = np.float64(decode(network, params, sentence_BZ))
  factor = params["logits_factor"]
  factor_ZD = np.concatenate([factor[x]["kernel"] for x in ("sentence", "hidden")])
  kernel_DV = np.float64(params["logits_hidden"]["kernel"])
  expected = 0.0
  for row, (tokens_T, weight) in enumerate(zip(TOKENS_BT, weights_BR.flat, strict=True)):
    both = np.concatenate([np.tile(sentence_BZ[row], (6, 1)), hidden_BTD[row]], axis=1)
    logits_TV = both @ factor_ZD @ kernel_DV
    log_p_TV = logits_TV - np.log(np.exp(logits_TV).sum(axis=1, keepdims=True))
    nll_T = -log_p_TV[np.arange(6), tokens_T] * (tokens_T != 0)
    np.testing.assert_allclose(found.nll_BRT.reshape(4, 6)[row], nll_T, rtol=1e-4, atol=1e-5)
    expected += weight * nll_T.sum()
  assert found.weighted == pytest.approx(expected, rel=1e-5)


def test_a_row_has_the_encoder_and_the_decoder_of_its_group():
  network = PLAIN.clone(language_encoder_groups=GROUPS, decoder_groups=GROUPS)
  params, sentence_BZ = random_params(network), some_sentences()
  found = posteriors(network, params)
  hidden_BTD = decode(network, params, sentence_BZ)
  for group in (0, 1):
    alone = {"language_encoder": params[f"language_encoders_{group}"]}
    alone |= {"decoder": params[f"decoders_{group}"]} | without(params, "language_encoders_")
    expected = posteriors(PLAIN, alone)
    expected_BTD = decode(PLAIN, alone, sentence_BZ)
    for row, language in enumerate(LANGUAGES_B):
      same = GROUPS[language] == group
      assert np.allclose(hidden_BTD[row], expected_BTD[row], atol=1e-5) == same
      for index, (x_BK, expected_BK) in enumerate(zip(found, expected, strict=True)):
        equal = np.allclose(x_BK[row], expected_BK[row], atol=1e-5)
        assert equal == (same or index < 2)  # the semantic encoder is shared


def test_a_language_of_no_group_gives_nan():
  network = PLAIN.clone(language_encoder_groups=GROUPS, decoder_groups=GROUPS)
  params = random_params(network)
  for nobody in (0, 7):
    found = posteriors(network, params, np.array([1, nobody, 2, 3]))
    assert np.isfinite(found.semantic_mean_BS).all()
    for x_BG in found[2:]:
      np.testing.assert_array_equal(np.isnan(x_BG).all(axis=1), [False, True, False, False])
    hidden_BTD = decode(network, params, some_sentences(), np.array([1, nobody, 2, 3]))
    unseen_BT = np.isnan(hidden_BTD).all(axis=2)
    np.testing.assert_array_equal(unseen_BT, [[row == 1] * 6 for row in range(4)])


def test_a_full_model_has_an_encoder_and_a_decoder_for_each_language_and_shares_the_rest():
  params = tiny_models.shapes_of(PLAIN.clone(**FULL, num_decoder_layers=2))["params"]
  assert set(params) == {
    "token_embedder", "encoder", "mean", "log_variance", "language_mean", "language_log_variance",
    *(f"{name}_{copy}" for name in ("language_encoders", "decoders") for copy in range(3)),
    "logits_hidden", "logits_latent",
  }  # fmt: skip
  starts = [params[f"decoders_{copy}"]["language_embedder"]["embedding"] for copy in range(3)]
  assert [x.shape for x in starts] == [(1, 8)] * 3
  assert all({"layers_0", "layers_1"} < set(params[f"decoders_{copy}"]) for copy in range(3))
  assert "layers_2" not in params["decoders_0"]


def test_an_omitted_kl_may_be_infinite():
  params = random_params(PLAIN)
  huge = jax.tree.map(lambda x: 1e5 * x, params["language_log_variance"])
  params |= {"language_log_variance": huge}
  languages_B1 = np.ones((2, 1), np.int32)
  batch = {"inputs": TOKENS_BT[:2], "targets": TOKENS_BT[2:]}
  batch |= {"input_language": languages_B1, "target_language": languages_B1}
  for kl_weight in (0.0, 1.0):
    vocabulary = vocabularies.ByteVocabulary()
    model = models.VmsstModel(network=PLAIN, vocabulary=vocabulary, kl_weight=kl_weight)
    loss, metrics = tiny_models.evaluate(model.loss_fn, params, batch, None)  # without samples
    assert np.isinf(metrics["kl/input_language"])
    assert np.isfinite(loss) == (kl_weight == 0)
    assert metrics["kl_weight"] == kl_weight


@pytest.mark.parametrize("embedding", [True, False])
def test_a_single_encoder_serves_all_heads(monkeypatch, embedding):
  network = PLAIN.clone(single_encoder=True, encoder_language_embedding=embedding)
  params = random_params(network)
  missing = {"language_encoder"} if embedding else {"language_encoder", "encoder_language_embedder"}
  assert set(params) == set(tiny_models.shapes_of(PLAIN)["params"]) - missing
  calls, plain_call = [], t5.T5Encoder.__call__

  def counted(self, *args, **kwargs):
    calls.append(self.name)
    return plain_call(self, *args, **kwargs)

  # Twins of equal weights; without its embedding, the language encoder sees what the other sees.
  twins = PLAIN.clone(encoder_language_embedding=embedding)
  expected = posteriors(twins, params | {"language_encoder": params["encoder"]})
  monkeypatch.setattr(t5.T5Encoder, "__call__", counted)
  found = posteriors(network, params)
  assert calls == ["encoder"] * (2 if embedding else 1)
  for x_BK, expected_BK in zip(found, expected, strict=True):
    np.testing.assert_allclose(x_BK, expected_BK, atol=1e-6)


@pytest.mark.parametrize("enabled", [True, False])
def test_without_its_embedding_an_encoder_or_decoder_ignores_the_language(enabled):
  network = PLAIN.clone(encoder_language_embedding=enabled)
  params = random_params(network)
  assert ("encoder_language_embedder" in params) == enabled
  one, other = (posteriors(network, params, x) for x in (LANGUAGES_B, LANGUAGES_B[::-1]))
  np.testing.assert_array_equal(one.semantic_mean_BS, other.semantic_mean_BS)
  for x_BG, y_BG in zip(one[2:], other[2:], strict=True):
    assert np.allclose(x_BG, y_BG) != enabled

  network = PLAIN.clone(decoder_language_embedding=enabled)
  params, sentence_BZ = random_params(network), some_sentences()
  assert len(params["decoder"]["language_embedder"]["embedding"]) == (5 if enabled else 1)
  assert "encoder_language_embedder" in params
  one, other = (decode(network, params, sentence_BZ, x) for x in (LANGUAGES_B, LANGUAGES_B[::-1]))
  assert np.array_equal(one, other) != enabled


def test_groups_that_would_give_nan_or_no_encoder_are_refused():
  for changes, message in (
    ({"decoder_groups": (0, 1)}, "decoder_groups has 2 entries, but num_languages is 5"),
    ({"decoder_groups": (0, 2, 0, 0, 0)}, "decoder_groups must number groups from 0"),
    ({"single_encoder": True, "language_encoder_groups": GROUPS}, "single_encoder leaves no"),
  ):
    with pytest.raises(errors.InputError, match=message):
      PLAIN.clone(**changes)
