"""CONTRASTIVE, with and without hard negatives, and what models share.

tests/ems_jax/models/test_every_model.py has the rest.
"""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny_models
from flax import traverse_util
from tiny_models import jit, random_params

from ems_jax.models import hard_negatives
from vmsst import errors
from vmsst.data import vocabularies
from vmsst.models import base, contrastive, generation, gradient_caching
from vmsst.models import vmsst as models
from vmsst.networks import sentence_encoder, t5
from vmsst.networks import vmsst as networks

B, K, S = 8, 3, 16
CONFIG = t5.T5Config(
  vocab_size=60, emb_dim=S, num_heads=2, head_dim=8, mlp_dim=16, num_encoder_layers=1
)


def make_model(model_cls=contrastive.ContrastiveModel, **options):
  network = sentence_encoder.SentenceEncoder(CONFIG, latent_dim=S)
  vocabulary = vocabularies.ByteVocabulary()
  return model_cls(network=network, vocabulary=vocabulary, **options)


def make_batch(pairs=B, inputs_length=6, targets_length=6):
  return tiny_models.random_batch(pairs, pairs, (inputs_length, targets_length), (2, 60))


@pytest.fixture(scope="module")
def params():
  """Parameters so small that the softmax is not saturated."""
  return jax.tree.map(lambda x: 0.6 * x, tiny_models.random_params(make_model().network))


def side_vectors(params, batch):
  """Vectors of sources and targets, encoded separately."""
  score_batch = jit(make_model().score_batch)
  return [np.float64(score_batch(params, {"inputs": batch[x]})) for x in ("inputs", "targets")]


def by_loops(vectors, batch, *, similarity="dot_product", scale=1.0, mask_duplicates=False):
  """Loss and accuracies of vectors of sources, targets and hard negatives, pair by pair."""
  source, target, wrong = vectors

  def score(x, y):
    length = np.linalg.norm(x) * np.linalg.norm(y) if similarity == "cosine" else 1.0
    return scale * float(x @ y) / length

  def text(tokens_T):
    return tuple(tokens_T[tokens_T != 0].tolist())

  texts = [{text(batch[side][i]) for side in ("inputs", "targets")} for i in range(B)]

  def is_rival(i, j):
    return i != j and not (mask_duplicates and texts[i] & texts[j])

  def is_wrong(i, k):
    answers = set().union(*(texts[j] for j in range(B) if not is_rival(i, j)))
    wrong = text(batch["negatives"][i, k])
    return wrong and not (mask_duplicates and wrong in answers)

  losses, forward_right, backward_right, mined_right = [], [], [], []
  for i in range(B):
    right = score(source[i], target[i])
    others = [j for j in range(B) if is_rival(i, j)]
    forward = [score(source[i], target[j]) for j in others]
    backward = [score(source[j], target[i]) for j in others]
    mined = [score(source[i], wrong[i, k]) for k in range(K) if is_wrong(i, k)]
    sums = (sum(map(math.exp, [right, *x])) for x in (forward + mined, backward))
    losses.append(sum(map(math.log, sums)) / 2 - right)
    forward_right.append(right > max(forward))
    backward_right.append(right > max(backward))
    mined_right += [x < right for x in mined]
  accuracies = {
    "accuracy/forward": np.mean(forward_right),
    "accuracy/backward": np.mean(backward_right),
  }
  if mined_right:
    accuracies["accuracy/negatives"] = np.mean(mined_right)
  return np.mean(losses), accuracies


CONTRASTIVE, HARD = contrastive.ContrastiveModel, hard_negatives.HardNegativesModel


@pytest.mark.parametrize(
  ("model_cls", "options"),
  [
    (CONTRASTIVE, {}),
    (CONTRASTIVE, {"similarity": "cosine", "scale": 5.0, "matryoshka_dims": (4, 9)}),
    (CONTRASTIVE, {"similarity": "cosine", "scale": 7.0, "mask_duplicates": True}),
    (CONTRASTIVE, {"mask_duplicates": True, "embedding_slices": 4}),
    (HARD, {"similarity": "cosine", "scale": 10.0, "matryoshka_dims": (3,)}),
    (HARD, {"scale": 0.5, "mask_duplicates": True}),
    (HARD, {"scale": 0.5, "mask_duplicates": True, "embedding_slices": 2}),
  ],
)
def test_loss_and_metrics_are_those_of_loops(params, model_cls, options):
  options = dict(options)
  model, batch = make_model(model_cls, **options), make_batch(targets_length=9)
  batch["inputs"][5] = batch["inputs"][6]
  batch["targets"][3] = batch["targets"][0]
  batch["negatives"] = np.random.default_rng(0).integers(2, 60, (B, K, 7), dtype=np.int32)
  batch["negatives"][1, :, 3:] = 0
  batch["negatives"][0, 1] = batch["negatives"][2] = 0  # do not exist
  # A target that is the source of another pair, and hard negatives that equal the target, the
  # source, and the target of a pair with the same source.
  batch["targets"][7], batch["targets"][6, 7:] = 0, 0
  batch["targets"][7, :6] = batch["inputs"][1]
  batch["targets"][1, :3], batch["targets"][1, 3:] = batch["targets"][4, :3], 0  # a prefix
  batch["negatives"][6, 0] = batch["negatives"][5, 2] = batch["targets"][6, :7]
  batch["negatives"][4, 1] = np.pad(batch["inputs"][4], (0, 1))
  if model_cls is CONTRASTIVE:
    batch["negatives"][:] = 0
  loss, found = tiny_models.evaluate(model.eval_fn, params, batch)
  source_BS, target_BS = side_vectors(params, batch)
  tokens_NT = batch["negatives"].reshape(-1, 7)
  wrong_NS = np.float64(jit(make_model().score_batch)(params, {"inputs": tokens_NT}))
  dims = options.pop("matryoshka_dims", ())
  options.pop("embedding_slices", None)
  losses = []
  for dim in (S, *dims):
    cut = (source_BS[:, :dim], target_BS[:, :dim], wrong_NS.reshape(B, K, S)[..., :dim])
    mean, accuracies = by_loops(cut, batch, **options)
    losses.append(mean)
    prefix = "" if dim == S else f"first_{dim}/"
    assert {name: found[f"{prefix}{name}"] for name in accuracies} == pytest.approx(accuracies)
    if prefix:
      assert found[f"{prefix}loss"] == pytest.approx(mean, rel=1e-4)
  assert [loss, found["loss"]] == pytest.approx([np.mean(losses)] * 2, rel=1e-4)
  real = sum(np.count_nonzero(batch[side]) for side in ("inputs", "targets"))
  assert found["tokens_per_example"] == pytest.approx(real / B)
  norms = np.linalg.norm(np.concatenate([source_BS, target_BS]), axis=1)
  assert found["embedding_norm"] == pytest.approx(norms.mean(), rel=1e-4)
  if model_cls is HARD:
    masked = 3 if options.get("mask_duplicates") else 0
    assert found["negatives_per_example"] == (B * K - 1 - K - masked) / B


def test_each_slice_has_its_own_dropout():
  def encode(x_BD, rng):
    return x_BD * jax.random.bernoulli(rng, 0.5, x_BD.shape)

  out_BD = gradient_caching.map_slices(encode, jnp.ones((4, 64)), slices=2, rng=jax.random.key(0))
  # Rows 0 and 2 are the first slice, rows 1 and 3 the second.
  assert not np.array_equal(out_BD[0::2], out_BD[1::2])


def test_slices_need_less_memory(params):
  batch = jax.tree.map(jnp.asarray, make_batch(256, 32, 32))

  def temporaries(count):
    model = make_model(embedding_slices=count)
    step = jax.jit(jax.grad(model.loss_fn, has_aux=True))
    return step.lower(params, batch, None).compile().memory_analysis().temp_size_in_bytes

  assert temporaries(8) < temporaries(1) / 4


def test_vectors_are_auxiliary_to_the_tokens_of_inputs(params):
  model, batch = make_model(), make_batch()
  tokens_BT, aux = jit(model.predict_batch_with_aux)(params, batch)
  np.testing.assert_array_equal(tokens_BT, batch["inputs"])
  np.testing.assert_allclose(aux["embedding"], side_vectors(params, batch)[0], atol=1e-6)


def test_metrics_of_microbatches_merge(params):
  model, batch = make_model(), make_batch()
  whole = base.average(jnp.arange(8.0)).compute()
  halves = base.average(jnp.arange(3.0)).merge(base.average(jnp.arange(3.0, 8.0)))
  assert halves.compute() == whole
  _, metrics = jax.eval_shape(model.eval_fn, params, batch)
  for leaf in traverse_util.flatten_dict(dict(metrics)).values():
    assert {leaf.total.shape, leaf.count.shape} == {()}


ABLATIONS_CONFIG = t5.T5Config(
  vocab_size=30, emb_dim=8, num_heads=2, head_dim=4, mlp_dim=12, num_encoder_layers=1
)
PLAIN = networks.VmsstNetwork(ABLATIONS_CONFIG, latent_dim=6, num_languages=5)
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


def ablations_make_model(network, **options):
  return models.VmsstModel(network=network, vocabulary=vocabularies.ByteVocabulary(), **options)


def ablations_make_batch(inputs_languages=(1, 2), targets_languages=(3, 3)):
  return {
    "inputs": TOKENS_BT[:2],
    "targets": TOKENS_BT[2:],
    "input_language": np.array(inputs_languages, np.int32)[:, None],
    "target_language": np.array(targets_languages, np.int32)[:, None],
  }


def without(params, prefix):
  return {name: value for name, value in params.items() if not name.startswith(prefix)}


@pytest.mark.parametrize("network_cls", [networks.VmsstNetwork, networks.BitranslationNetwork])
def test_factorized_scores_are_those_of_two_products_with_sentence_and_hidden_state(network_cls):
  network = network_cls(ABLATIONS_CONFIG, latent_dim=6, num_languages=5, factorized=True)
  params = random_params(network)
  sentence_BZ = some_sentences()[:, : network.sentence_dim]
  tokens_BRT, weights_BR = TOKENS_BT.reshape(2, 2, 6), np.array([[0.5, 1.0], [2.0, 0.1]])
  found = jit(functools.partial(generation.score, network, dropout_rng=None))(
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
  for kl_weight in (0.0, 1.0):
    model = ablations_make_model(PLAIN, kl_weight=kl_weight)
    batch = ablations_make_batch()
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


@pytest.mark.parametrize(
  "changes",
  [
    {**FULL, "factorized": True},
    {"single_encoder": True, "encoder_language_embedding": False},
    {"language_encoder_groups": GROUPS, "num_decoder_layers": 2},
  ],
)
def test_every_parameter_has_axes_of_t5x(changes):
  tiny_models.assert_standard_axes(tiny_models.shapes_of(PLAIN.clone(**changes)))


@pytest.mark.parametrize(
  ("changes", "message"),
  [
    ({"decoder_groups": (0, 1)}, "decoder_groups has groups of 2 languages; num_languages is 5"),
    ({"decoder_groups": (0, 2, 0, 0, 0)}, "decoder_groups must number groups from 0"),
    ({"language_encoder_groups": (-2, 0, 0, 0, 0)}, "language_encoder_groups must number"),
    ({"language_encoder_groups": (-1,) * 5}, "language_encoder_groups must number"),
    ({"single_encoder": True, "language_encoder_groups": GROUPS}, "single_encoder leaves no"),
    ({"num_decoder_layers": 0}, "num_decoder_layers is 0"),
  ],
)
def test_invalid_groups_are_reported(changes, message):
  with pytest.raises(errors.InputError, match=message):
    PLAIN.clone(**changes)
