"""VMSST and BITRANSLATION; tests/runs/test_every_model.py has what all models have."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny_encoders
import tiny_models
from flax import traverse_util
from tiny_models import jit

from vmsst import errors
from vmsst.data import vocabularies
from vmsst.losses import gaussian
from vmsst.models import bitranslation, contrastive, vmsst
from vmsst.networks import sentence_encoder, t5
from vmsst.networks import vmsst as networks

CONFIG = tiny_encoders.t5_config(vocab_size=30, mlp_dim=12)
NETWORK = networks.VmsstNetwork(CONFIG, latent_dim=6, num_languages=5)
NETWORK_OF_ENCODER = sentence_encoder.SentenceEncoder(CONFIG, latent_dim=6)
PAIRS = 3


def make_model(model_cls=vmsst.VmsstModel, network=NETWORK, **options):
  vocabulary = vocabularies.ByteVocabulary()
  return model_cls(network=network, vocabulary=vocabulary, **options)


def make_batch(pairs=PAIRS):
  return tiny_models.random_batch(0, pairs, (6, 8), (2, 30), languages=range(1, 5))


@pytest.fixture(scope="module")
def params():
  # Larger heads, so that latents have an effect and log-variances are not small.
  scale = {"mean": 2, "log_variance": 3, "language_mean": 2, "language_log_variance": 3}
  fresh = tiny_models.random_params(NETWORK)
  return fresh | {name: {"kernel": by * fresh[name]["kernel"]} for name, by in scale.items()}


def loss_and_metrics(model, params, batch, rng=None, step=None):
  return tiny_models.evaluate(model.loss_fn, params, batch, rng, step)


@jit
def posteriors_of(params, tokens_1T, language_1):
  def posteriors(net):
    return net.posteriors(net.embed(tokens_1T), tokens_1T != 0, language_1)

  return [x_1K[0] for x_1K in NETWORK.apply({"params": params}, method=posteriors)]


@jit
def decode(params, tokens_1T, language_1, sentence_1Z):
  def hidden(net):
    return net.decode(net.embed(tokens_1T), language_1, sentence_1Z)

  return NETWORK.apply({"params": params}, method=hidden)[0]


def nll(params, tokens_T, language_1, language_latent_G, semantic_S):
  """Negative log-likelihood of a sentence, from one matmul over [z_lang; z_sem; h] in float64.

  The second result is the number of correct tokens.
  """
  sentence_Z = np.concatenate([language_latent_G, semantic_S])
  hidden_TD = decode(params, tokens_T[None], language_1, np.float32(sentence_Z)[None])
  both = np.concatenate([np.tile(sentence_Z, (len(tokens_T), 1)), hidden_TD], axis=1)
  kernel = np.concatenate([params[f"logits_{x}"]["kernel"] for x in ("latent", "hidden")])
  logits_TV = np.float64(both) @ np.float64(kernel)
  log_p_TV = logits_TV - np.log(np.exp(logits_TV).sum(axis=1, keepdims=True))
  real = np.flatnonzero(tokens_T)
  correct_T = log_p_TV.argmax(axis=1) == tokens_T
  return np.array([-log_p_TV[real, tokens_T[real]].sum(), correct_T[real].sum()])


def chosen_posteriors(params, batch, row, step):
  """Mean and log-variance of the latents of a pair, float64."""
  sides = (("inputs", "input_language"), ("targets", "target_language"))
  posteriors = [
    list(map(np.float64, posteriors_of(params, batch[side][row][None], batch[code][row])))
    for side, code in sides
  ]
  language = {name: posteriors[i][2:] for i, name in enumerate(vmsst.LATENTS[1:])}
  return {"semantic": posteriors[(row + step) % 2][:2], **language}


def in_numpy(params, batch, *, noise, step, elbo_weight, kl_weight, language_mean=False):
  """Loss, sums of terms and KLs, pair by pair; samples are `noise` deviations above the mean."""
  sums = dict.fromkeys(vmsst.LATENTS, 0.0)
  scored = {"translation": np.zeros(2), "reconstruction": np.zeros(2)}
  norms = []
  for row in range(PAIRS):
    tokens = [batch["inputs"][row], batch["targets"][row]]
    codes = [batch["input_language"][row], batch["target_language"][row]]
    means = [posteriors_of(params, x[None], y)[0] for x, y in zip(tokens, codes, strict=True)]
    norms += [np.linalg.norm(mean) for mean in means]
    chosen = chosen_posteriors(params, batch, row, step)
    z = {name: mean + noise * np.exp(v / 2) for name, (mean, v) in chosen.items()}
    for side, name in enumerate(vmsst.LATENTS[1:]):
      scored["reconstruction"] += nll(params, tokens[side], codes[side], z[name], z["semantic"])
      other_mean = np.float64(means[1 - side])
      language_G = chosen[name][0] if language_mean else np.zeros(6)
      scored["translation"] += nll(params, tokens[side], codes[side], language_G, other_mean)
    for name, (mean, v) in chosen.items():
      sums[name] += 0.5 * np.sum(mean**2 + np.exp(v) - 1 - v)
  kl = sum(sums.values())
  for name, (sum_of_nll, correct) in scored.items():
    sums |= {name: sum_of_nll, f"correct/{name}": correct}
  sums["norm"] = np.mean(norms)
  elbo = -sums["reconstruction"] - kl_weight * kl
  return (sums["translation"] - elbo_weight * elbo) / PAIRS, sums


def test_elbo_and_translation_pair_by_pair(params, monkeypatch):
  monkeypatch.setattr(gaussian, "sample", lambda mean, v, rng: mean + 0.7 * jnp.exp(v / 2))
  batch = make_batch()
  run = jit(make_model(elbo_weight=0.3, kl_weight=0.8, kl_anneal_steps=10).loss_fn)
  for step, kl_weight in ((0, 0.0), (3, 0.24), (1000, 0.8)):
    loss, metrics = run(params, batch, jax.random.key(0), step)
    metrics = tiny_models.values(metrics)
    settings = {"noise": 0.7, "step": step, "elbo_weight": 0.3, "kl_weight": kl_weight}
    expected, sums = in_numpy(params, batch, **settings)
    assert [float(loss), metrics["loss"]] == pytest.approx([expected] * 2, rel=1e-5)
    assert metrics["kl_weight"] == pytest.approx(kl_weight)
    tokens = sum(np.count_nonzero(batch[name]) for name in ("inputs", "targets"))
    for name in ("translation", "reconstruction"):
      assert metrics[f"nll/{name}"] == pytest.approx(sums[name] / tokens, rel=1e-5)
      accuracy = sums[f"correct/{name}"] / tokens
      assert metrics[f"token_accuracy/{name}"] == pytest.approx(accuracy)
    for name in vmsst.LATENTS:
      assert metrics[f"kl/{name}"] == pytest.approx(sums[name] / PAIRS, rel=1e-5)
      assert metrics[f"kl_per_dim/{name}"] == pytest.approx(sums[name] / PAIRS / 6, rel=1e-5)
    assert metrics["tokens_per_example"] == pytest.approx(tokens / PAIRS)
    assert metrics["embedding_norm"] == pytest.approx(sums["norm"], rel=1e-5)


def test_evaluation_computes_the_training_objective_without_dropout(params, monkeypatch):
  monkeypatch.setattr(gaussian, "sample", lambda mean, v, rng: mean + 0.7 * jnp.exp(v / 2))
  batch = make_batch()
  network = NETWORK.clone(config=dataclasses.replace(CONFIG, dropout_rate=0.5))
  model = make_model(network=network, elbo_weight=0.3, kl_anneal_steps=10)
  loss, metrics = tiny_models.evaluate(model.eval_fn, params, batch, 3)
  # z_sem is from the same sides at every step.
  settings = {"noise": 0.7, "step": 0, "elbo_weight": 0.3}
  expected, sums = in_numpy(params, batch, kl_weight=0.3, **settings)
  assert loss == pytest.approx(expected, rel=1e-5)
  assert metrics["kl_weight"] == pytest.approx(0.3)
  # The samples are equal: so are the terms of the ELBO, which has the full KL weight at any step.
  elbo = -sums["reconstruction"] - sum(sums[name] for name in vmsst.LATENTS)
  assert metrics["elbo"] == pytest.approx(elbo / PAIRS, rel=1e-5)
  # log p(z) - log q(z|x), with z a noise of 0.7 from the mean, in place of the KL.
  log_ratio = 0.0
  for row in range(PAIRS):
    for mean, v in chosen_posteriors(params, batch, row, 0).values():
      z = mean + 0.7 * np.exp(v / 2)
      log_ratio += np.sum(-(z**2) / 2 + 0.7**2 / 2 + v / 2)
  bound = -sums["reconstruction"] + log_ratio
  assert metrics["importance_weighted_bound"] == pytest.approx(bound / PAIRS, rel=1e-5)


def test_latents_may_be_means_in_training(params):
  batch = make_batch()
  model = make_model(kl_anneal_steps=10, elbo_weight=0.3, elbo_sample=False, language_mean=True)
  loss, _ = loss_and_metrics(model, params, batch, jax.random.key(0), 5)
  expected, _ = in_numpy(
    params, batch, noise=0, step=5, elbo_weight=0.3, kl_weight=0.5, language_mean=True
  )
  assert loss == pytest.approx(expected, rel=1e-5)


def test_a_latent_that_ignores_the_text_shows_in_spite_of_its_kl():
  same_BK = jnp.tile(jnp.array([3.0, -2.0]), (8, 1))
  latents = {"same": (same_BK, jnp.zeros((8, 2))), "text": (10 * jnp.eye(8, 2), jnp.zeros((8, 2)))}
  values = tiny_models.values(jit(vmsst.latent_metrics)(latents, jax.random.key(0)))
  assert values["kl/same"] == pytest.approx((9 + 4) / 2)
  assert values["kl_per_dim/same"] == pytest.approx((9 + 4) / 4)
  assert values["active_dims/same"] == 2
  assert values["mutual_information/same"] == pytest.approx(0, abs=1e-5)
  assert [values["collapsed/same"], values["collapsed/text"]] == [1, 0]
  assert 0.5 < values["mutual_information/text"] <= np.log(8)


def test_latents_are_sampled_by_a_key_of_their_own_that_evaluation_fixes(params, monkeypatch):
  keys = []
  sample = gaussian.sample
  monkeypatch.setattr(gaussian, "sample", lambda *x: (keys.append(x[2]), sample(*x))[1])
  batch, model = make_batch(), make_model()
  first, second = (float(model.loss_fn(params, batch, jax.random.key(x), 0)[0]) for x in (1, 2))
  assert first != second
  assert len({tuple(jax.random.key_data(key).tolist()) for key in keys[:3]}) == 3
  run = jit(model.eval_fn)
  assert run(params, batch)[0] == run(params, batch)[0]


def test_training_without_a_step_is_refused_where_the_kl_weight_would_rise(params):
  batch, key = make_batch(), jax.random.key(1)
  with pytest.raises(
    errors.InputError, match=r"does not pass the step, so .* --gin_file=runs/upstream\.gin"
  ):
    loss_and_metrics(make_model(), params, batch, key)
  for model in (make_model(kl_anneal_steps=0), make_model(kl_weight=0)):
    jax.eval_shape(model.loss_fn, params, batch, key)


def without_language(params):
  """The subset of VMSST's parameters that BITRANSLATION has."""
  kept = {name: params[name] for name in ("token_embedder", "encoder", "mean", "logits_hidden")}
  kept["logits_latent"] = {"kernel": params["logits_latent"]["kernel"][6:]}
  decoder = traverse_util.flatten_dict(params["decoder"])
  kept["decoder"] = traverse_util.unflatten_dict(
    {path: x[6:] if path[-2:] == ("sentence", "kernel") else x for path, x in decoder.items()}
  )
  return kept


def test_without_the_elbo_it_is_bitranslation(params):
  batch = make_batch()
  network = networks.BitranslationNetwork(CONFIG, latent_dim=6, num_languages=5)
  plain = make_model(bitranslation.BitranslationModel, network)
  expected, plain_metrics = tiny_models.evaluate(plain.eval_fn, without_language(params), batch)
  loss, metrics = loss_and_metrics(make_model(elbo_weight=0), params, batch, jax.random.key(0), 5)
  assert loss == pytest.approx(expected, rel=1e-6)
  assert plain_metrics == pytest.approx({x: metrics[x] for x in plain_metrics}, rel=1e-6)


def test_gradients_equal_finite_differences_in_float64(params, monkeypatch):
  # The library computes in float32; here that name refers to float64.
  monkeypatch.setattr(jnp, "float32", jnp.float64)
  sizes = {"vocab_size": 11, "emb_dim": 4, "num_heads": 1, "head_dim": 3, "mlp_dim": 5}
  config = tiny_encoders.t5_config(**sizes)
  object.__setattr__(config, "dtype", "float64")
  head = functools.partial(t5.Dense, 3, ("embed", "kv"), dtype="float64")
  monkeypatch.setattr(networks.BitranslationNetwork, "_head", lambda self: head())
  network = networks.VmsstNetwork(config, latent_dim=3, num_languages=3)
  model = make_model(
    vmsst.VmsstContrastiveModel, network, vmsst_weight=0.7, elbo_weight=0.5, kl_anneal_steps=10
  )
  rng = np.random.default_rng(0)
  batch = {name: rng.integers(1, 11, (3, 4)) for name in ("inputs", "targets")}
  batch["inputs"][0, 2:] = 0
  batch |= {name: rng.integers(0, 3, (3, 1)) for name in ("input_language", "target_language")}
  with jax.enable_x64(True):
    point = jax.tree.map(np.float64, tiny_models.random_params(model.network))

    def loss(p):
      return model.loss_fn(p, batch, jax.random.key(5), 4)[0]

    value_and_gradient = jit(jax.value_and_grad(loss))
    value, gradient = value_and_gradient(point)
    assert value.dtype == jnp.float64
    flat, slopes = traverse_util.flatten_dict(point), traverse_util.flatten_dict(gradient)
    for path, x in flat.items():
      direction = rng.standard_normal(x.shape)

      def along(by, path=path, x=x, direction=direction):
        moved = {**flat, path: x + by * direction}
        return value_and_gradient(traverse_util.unflatten_dict(moved))[0]

      expected = (along(1e-5) - along(-1e-5)) / 2e-5
      found = float(np.sum(np.asarray(slopes[path]) * direction))
      assert found == pytest.approx(float(expected), rel=1e-5, abs=1e-8), path
      assert found != 0, path


def test_contrastive_is_added_with_its_weight(params):
  batch = make_batch()
  batch["inputs"][2] = batch["inputs"][0]
  options = {"similarity": "cosine", "scale": 5.0, "mask_duplicates": True, "matryoshka_dims": (3,)}
  model = make_model(vmsst.VmsstContrastiveModel, vmsst_weight=0.25, **options)
  loss, metrics = loss_and_metrics(model, params, batch, jax.random.key(0), 7)
  plain, plain_metrics = loss_and_metrics(make_model(), params, batch, jax.random.key(0), 7)
  alone = make_model(contrastive.ContrastiveModel, NETWORK_OF_ENCODER, **options)
  own = {name: params[name] for name in ("token_embedder", "encoder", "mean")}
  expected, expected_metrics = tiny_models.evaluate(alone.eval_fn, own, batch)
  assert loss == pytest.approx(expected + 0.25 * plain, rel=1e-5)
  assert expected > 0.01 * plain  # the terms are of comparable size
  del plain_metrics["loss"], expected_metrics["loss"]
  terms = {"loss": loss, "loss/contrastive": expected, "loss/vmsst": plain}
  assert metrics == pytest.approx({**plain_metrics, **expected_metrics, **terms}, rel=1e-5)
