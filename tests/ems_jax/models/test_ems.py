"""EMS against its equations in NumPy; test_every_model.py has what all models have."""

import collections
import dataclasses
import functools
import math

import jax
import numpy as np
import pytest
import tiny_encoders
import tiny_models
from tiny_models import jit

from ems_jax.models import ems as models
from ems_jax.networks import ems as networks
from vmsst import languages
from vmsst.data import vocabularies
from vmsst.networks import transformer
from vmsst.opus import recipes

V, S, EOS, MASK = 300, 16, 1, 2
BERT = tiny_encoders.bert_config(vocab_size=V, emb_dim=S, mlp_dim=24, initializer_std=0.3)

# Network attributes and model options of the rows in the paper's Table XIV and section V, and of
# the release.
AMS = {"margin": 0.3}
VARIANTS = {
  "ems": ({}, {}),
  "no_language_token": ({"language_dim": None}, {}),
  "no_contrastive": ({"contrastive": False}, {}),
  "no_xtr": ({"xtr": False}, {}),
  "no_mlp": ({"projection_dim": None}, {}),
  "shared_embedding": ({"share_embedding": True}, {}),
  "labse_vanilla": ({"xtr": False, "projection_dim": None}, AMS),
  "labse_mlp": ({"xtr": False}, AMS),
  "labse_joint": ({}, AMS),
  "release": ({"xtr_layer_norm": True}, {"count_repeats": False, "negative_groups": 2}),
}
ENCODER_NAMES = {"token_embedder", "encoder"}
XTR_NAMES = {"language_embedder", "xtr_transform", "xtr_logits"}
MLP_NAMES = {"projection_hidden", "projection"}


def make_model(*, config=BERT, dropout_rate=0.0, network=(), vocabulary=None, **options):
  network_options = {"config": config, "language_dim": 4, "projection_dim": 6, **dict(network)}
  network_options["config"] = dataclasses.replace(
    network_options["config"], dropout_rate=dropout_rate
  )
  return models.EmsModel(
    network=networks.EmsNetwork(**network_options),
    vocabulary=vocabulary or vocabularies.ByteVocabulary(),
    max_length=9,
    **options,
  )


def make_batch(pairs=6, inputs_length=7, targets_length=9):
  """Sentences of 1 token and more, some with repeated tokens, each with EOS."""
  lengths = (inputs_length, targets_length)
  return tiny_models.random_batch(pairs, pairs, lengths, (3, 12), eos=EOS, languages=range(1, 5))


def vectors_of(model, params, features):
  """Sentence vectors of both sides of pairs by inference, [2, B, S]."""
  tokens_2BT = [np.pad(x, ((0, 0), (0, 9 - x.shape[1]))) for x in features]
  u_NS = jit(model.score_batch)(params, {"inputs": np.concatenate(tokens_2BT)})
  return np.float64(u_NS).reshape(2, -1, S)


# --------------------------------------------------------------------------------------------
# The equations of section III, in NumPy


def layer_norm(x, params):
  x = x - x.mean(axis=-1, keepdims=True)
  return x / np.sqrt(np.square(x).mean(axis=-1, keepdims=True)) * params["scale"] + params["bias"]


def dense(x, params):
  return x @ params["kernel"] + params["bias"]


def log_softmax(x):
  x = x - x.max(axis=-1, keepdims=True)
  return x - np.log(np.exp(x).sum(axis=-1, keepdims=True))


def distribution(tokens, *, count_repeats=True):
  """Equation 7."""
  tokens = [int(token) for token in tokens if token not in (0, EOS)]
  counts = collections.Counter(tokens)
  return {w: (n if count_repeats else 1) / len(tokens) for w, n in counts.items()}


def predicted(params, network, u_BS, languages_B):
  """Logarithms of the distributions of equations 4 and 5."""
  x_BE = u_BS
  if network.language_dim:
    la_BE = params["language_embedder"]["embedding"][languages_B]
    if network.xtr_layer_norm:
      la_BE = layer_norm(la_BE, params["language_layer_norm"])
    x_BE = np.concatenate([la_BE, u_BS], axis=1)
  x_BE = dense(x_BE, params["xtr_transform"])
  x_BE = x_BE / (1 + np.exp(-x_BE))
  if network.xtr_layer_norm:
    x_BE = layer_norm(x_BE, params["xtr_norm"])
  if network.share_embedding:
    return log_softmax(x_BE @ params["token_embedder"]["embedding"].T)
  return log_softmax(x_BE @ params["xtr_logits"]["kernel"])


def kl(p, log_q_V):
  return sum(share * (math.log(share) - log_q_V[w]) for w, share in p.items())


def contrastive(params, network, u_2BS, *, margin=0.0, scale=10.0):
  """Losses of all pairs by equation 8 with a margin, and accuracies of both directions."""
  h = u_2BS
  if network.projection_dim:
    h = dense(np.maximum(dense(u_2BS, params["projection_hidden"]), 0), params["projection"])
  h = h / np.linalg.norm(h, axis=-1, keepdims=True)
  cosine_BB = h[0] @ h[1].T
  pairs = np.arange(len(cosine_BB))
  score_BB = scale * (cosine_BB - margin * np.eye(len(pairs)))
  forward_B = -np.diag(log_softmax(score_BB))
  backward_B = -np.diag(log_softmax(score_BB.T))
  accuracies = [np.mean(x.argmax(axis=1) == pairs) for x in (cosine_BB, cosine_BB.T)]
  return forward_B + backward_B, accuracies


def equation_12(model, params, batch):
  """The metrics, computed from sentence vectors by inference."""
  network, options = model.network, {"margin": model.margin, "scale": model.scale}
  u_2BS = vectors_of(model, params, (batch["inputs"], batch["targets"]))
  params = jax.tree.map(np.float64, params)
  metrics = {"loss": 0.0, "embedding_norm": np.linalg.norm(u_2BS, axis=-1).mean()}
  if network.xtr:
    kl_2B = np.zeros(u_2BS.shape[:2])
    languages_and_tokens = (("target_language", "targets"), ("input_language", "inputs"))
    for kl_B, u_BS, (language, tokens) in zip(kl_2B, u_2BS, languages_and_tokens, strict=True):
      log_q_BV = predicted(params, network, u_BS, batch[language][:, 0])
      for b, tokens_T in enumerate(batch[tokens]):
        kl_B[b] = kl(distribution(tokens_T, count_repeats=model.count_repeats), log_q_BV[b])
    metrics |= {"loss/xtr": kl_2B.sum(axis=0).mean(), "kl/xtr": kl_2B.mean()}
    metrics["loss"] += metrics["loss/xtr"]
  if network.contrastive:
    groups = np.split(u_2BS, model.negative_groups, axis=1)
    losses, accuracies = zip(
      *(contrastive(params, network, group, **options) for group in groups), strict=True
    )
    metrics["loss/contrastive"] = np.mean(losses)
    metrics["accuracy/forward"], metrics["accuracy/backward"] = np.mean(accuracies, axis=0)
    metrics["loss"] += metrics["loss/contrastive"]
  tokens = sum(np.count_nonzero(batch[name]) for name in ("inputs", "targets"))
  return metrics | {"tokens_per_example": tokens / len(batch["inputs"])}


@pytest.mark.parametrize("name", VARIANTS)
def test_losses_and_metrics_follow_the_equations(name):
  network, options = VARIANTS[name]
  model, batch = make_model(network=network, **options), make_batch()
  params = tiny_models.random_params(model.network)
  loss, metrics = tiny_models.evaluate(model.eval_fn, params, batch)
  expected = equation_12(model, params, batch)
  assert metrics == pytest.approx(expected, rel=2e-5)
  assert loss == pytest.approx(expected["loss"], rel=2e-5)
  # What a variant leaves out has no parameters.
  net = model.network
  missing = {
    *(() if net.xtr else XTR_NAMES),
    *(() if net.contrastive and net.projection_dim else MLP_NAMES),
    *(() if net.language_dim else ("language_embedder",)),
    *(("xtr_logits",) if net.share_embedding else ()),
  }
  norms = {"language_layer_norm", "xtr_norm"} if net.xtr_layer_norm else set()
  assert set(params) == (ENCODER_NAMES | XTR_NAMES | MLP_NAMES | norms) - missing


def test_a_matryoshka_loss_is_the_mean_over_cut_vectors_before_the_mlp():
  model, batch = make_model(matryoshka_dims=(3, 5)), make_batch()
  params = tiny_models.random_params(model.network)
  _, metrics = tiny_models.evaluate(model.eval_fn, params, batch)
  u_2BS = vectors_of(model, params, (batch["inputs"], batch["targets"]))
  params64 = jax.tree.map(np.float64, params)
  expected = []
  for dim in (S, 3, 5):
    cut = np.where(np.arange(S) < dim, u_2BS, 0.0)
    losses, _ = contrastive(params64, model.network, cut, scale=model.scale)
    expected.append(losses.mean())
  assert [metrics["first_3/loss"], metrics["first_5/loss"]] == pytest.approx(expected[1:], rel=2e-5)
  assert metrics["loss/contrastive"] == pytest.approx(np.mean(expected), rel=2e-5)
  assert metrics["loss"] == pytest.approx(np.mean(expected) + metrics["loss/xtr"], rel=2e-5)


def test_the_62_languages_of_the_recipe_have_62_tokens_and_chinese_has_one():
  network = networks.EmsNetwork(BERT)
  params = tiny_models.random_params(network)
  codes = [*recipes.language_codes("ems"), "zh_TW"]
  languages_B = np.array([languages.language(code).index for code in codes])
  u_BS = np.ones([len(codes), S], np.float32)
  hidden_BE = jit(functools.partial(network.apply, method="xtr_hidden"))(
    {"params": params}, u_BS, languages_B
  )
  assert len(codes) == 63
  assert len(np.unique(hidden_BE, axis=0)) == 62
  np.testing.assert_array_equal(hidden_BE[codes.index("cmn")], hidden_BE[-1])


def test_the_number_of_parameters_is_as_in_table_iii():
  def count(**options):
    network = networks.EmsNetwork(transformer.TransformerConfig(60_000), **options)
    shapes = tiny_models.shapes_of(network)["params"]
    return sum(math.prod(x.shape) for x in jax.tree.leaves(shapes))

  d, ffn, la, cntrs, vocabulary = 1024, 4096, 128, 128, 60_000
  layer = 4 * (d * d + d) + (d * ffn + ffn) + (ffn * d + d) + 4 * d
  encoder = vocabulary * d + 120 * d + 2 * d + 6 * layer
  heads = (d + la) ** 2 + (d + la) + (d * d + d) + (d * cntrs + cntrs)
  w_emb = vocabulary * (d + la)
  paper = count(num_languages=vocabulary) - w_emb
  assert paper == encoder + heads + vocabulary * la
  assert round(paper / 1e6) == 147
  assert paper - (count(num_languages=62) - w_emb) == (vocabulary - 62) * la == 7_672_064
  assert count() - w_emb == encoder + heads + languages.NUM_LANGUAGES * la


@jit
def mask_by_key(tokens_B2T, key):
  return models.mask_one_token(tokens_B2T, MASK, special_ids=(EOS,), rng=key)


def mask(tokens_B2T, seed=0):
  key = jax.random.key(seed) if isinstance(seed, int) else seed
  return tuple(map(np.array, mask_by_key(tokens_B2T, key)))


def test_one_token_of_one_side_is_masked():
  batch = make_batch(400, 6, 6)
  tokens_B2T = np.stack([batch["inputs"], batch["targets"]], axis=1)
  found_B2T, masked_B2 = mask(tokens_B2T)
  changed_B2T = found_B2T != tokens_B2T
  np.testing.assert_array_equal(changed_B2T.sum(axis=(1, 2)), 1)
  assert (found_B2T[changed_B2T] == MASK).all()
  np.testing.assert_array_equal(masked_B2, (changed_B2T * tokens_B2T).sum(axis=2))
  assert not np.isin(tokens_B2T[changed_B2T], (0, EOS)).any()
  # Sides are equally likely, and so are tokens of a sentence.
  assert abs(changed_B2T[:, 0].any(axis=1).mean() - 0.5) < 0.1
  place_B2T = changed_B2T[(tokens_B2T != 0).sum(axis=2) == 6]
  assert (place_B2T.sum(axis=0)[:5] > 0).all()
  # A side without tokens is not changed.
  empty_B2T = np.array([[[EOS, 0], [EOS, 0]]] * 8)
  found_B2T, masked_B2 = mask(empty_B2T)
  np.testing.assert_array_equal(found_B2T, empty_B2T)
  np.testing.assert_array_equal(masked_B2, 0)


@pytest.mark.parametrize("masking", models.MASKINGS)
def test_a_masked_sentence_predicts_the_masked_token_too(masking):
  network = {"contrastive": False}
  model = make_model(network=network, masking=masking, mask_id=MASK)
  params, batch, key = tiny_models.random_params(model.network), make_batch(), jax.random.key(3)
  mask_rng, _ = jax.random.split(key)
  tokens_B2T = np.stack([np.pad(batch["inputs"], ((0, 0), (0, 2))), batch["targets"]], axis=1)
  read_B2T, masked_B2 = mask(tokens_B2T, mask_rng)
  if masking == "none":
    read_B2T = tokens_B2T
  total, u_2BS = 0.0, vectors_of(model, params, read_B2T.swapaxes(0, 1))
  for index, language in enumerate(("target_language", "input_language")):
    u_BS = u_2BS[index]
    log_q_BV = predicted(
      jax.tree.map(np.float64, params), model.network, u_BS, batch[language][:, 0]
    )
    for b, log_q_V in enumerate(log_q_BV):
      p = distribution(tokens_B2T[b, 1 - index])
      if masking == "ugt" and masked_B2[b, index]:
        p = {w: share / 2 for w, share in p.items()}
        token = int(masked_B2[b, index])
        p[token] = p.get(token, 0.0) + 0.5
      total += kl(p, log_q_V)
  loss, _ = jit(model.loss_fn)(params, batch, key)
  assert float(loss) == pytest.approx(total / len(tokens_B2T), rel=2e-5)
  # Evaluation masks nothing.
  evaluated, _ = tiny_models.evaluate(model.eval_fn, params, batch)
  unmasked_loss, _ = tiny_models.evaluate(make_model(network=network).eval_fn, params, batch)
  assert evaluated == pytest.approx(unmasked_loss, rel=1e-6)


def test_a_language_outside_the_table_gives_nan():
  model, batch = make_model(network={"num_languages": 5}), make_batch()
  batch["input_language"][2] = 5
  loss, _ = tiny_models.evaluate(model.eval_fn, tiny_models.random_params(model.network), batch)
  assert np.isnan(loss)
