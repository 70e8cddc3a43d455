import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny_models
from tiny_models import jit

from vmsst.networks import decoder, t5
from vmsst.networks import vmsst as networks

CONFIG = t5.T5Config(
  vocab_size=50, emb_dim=12, num_heads=3, head_dim=4, mlp_dim=20, num_encoder_layers=1,
  relpos_buckets=8, relpos_max_distance=20,
)  # fmt: skip
LAYERS, LANGUAGES, ROWS, LENGTH, SENTENCE = 2, 5, 3, 30, 7
LANGUAGES_B = np.array([1, 4, 0])


def network(**changes):
  return decoder.LatentDecoder(dataclasses.replace(CONFIG, **changes), LAYERS, LANGUAGES)


def arrays(rows=ROWS, length=LENGTH):
  rng = np.random.default_rng(0)
  embedded_BTD = rng.standard_normal((rows, length, CONFIG.emb_dim)).astype(np.float32)
  return embedded_BTD, rng.standard_normal((rows, SENTENCE)).astype(np.float32)


@pytest.fixture(scope="module")
def params():
  embedded_BTD, sentence_BZ = arrays()
  init = functools.partial(network().init, jax.random.key(0), embedded_BTD, LANGUAGES_B)
  return tiny_models.random_values(jax.eval_shape(init, sentence_BZ)["params"])


def decode(params, embedded_BTD, sentence_BZ, languages_B=LANGUAGES_B, **changes):
  apply = jax.jit(network(**changes).apply)
  return np.asarray(apply({"params": params}, embedded_BTD, languages_B, sentence_BZ))


def rms_norm(x, scale):
  return x / np.sqrt(np.mean(x**2, axis=-1, keepdims=True) + 1e-6) * scale


def gelu(x):
  return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def bucket(query, key):
  """T5's bucket of a key that is not after the query, with 8 buckets up to distance 20."""
  distance = query - key
  if distance < 4:
    return distance
  return min(7, 4 + sum(distance >= 4 * 5 ** (step / 4) - 1e-9 for step in (1, 2, 3)))


def in_numpy(params, embedded_TD, language, sentence_Z, drop=lambda x: x):
  """The decoder of one sentence in float64: position by position, one matmul over [x; z].

  `drop` is called wherever T5X's decoder has dropout, and after the injection.
  """
  p = jax.tree.map(np.float64, params)
  x_TD = np.concatenate([p["language_embedder"]["embedding"][language][None], embedded_TD[:-1]])
  x_TD = drop(x_TD)
  for index in range(LAYERS):
    layer = p[f"layers_{index}"]
    normed_TD = rms_norm(x_TD, layer["pre_self_attention_layer_norm"]["scale"])
    query, key, value = (
      (normed_TD @ layer["self_attention"][name]["kernel"]).reshape(len(x_TD), 3, 4)
      for name in ("query", "key", "value")
    )
    weights = np.zeros((3, len(x_TD), len(x_TD)))
    for t in range(len(x_TD)):
      for head in range(3):
        logits = [
          query[t, head] @ key[s, head] + p["relpos_bias"]["rel_embedding"][head, bucket(t, s)]
          for s in range(t + 1)
        ]
        powers = np.exp(logits - np.max(logits))
        weights[head, t, : t + 1] = powers / powers.sum()
    weights = drop(weights)
    attended = np.stack([weights[head] @ value[:, head] for head in range(3)], axis=1)
    out_TD = attended.reshape(len(x_TD), 12) @ layer["self_attention"]["out"]["kernel"]
    x_TD = x_TD + drop(out_TD)
    normed_TD = rms_norm(x_TD, layer["pre_injection_layer_norm"]["scale"])
    both = np.concatenate([normed_TD, np.tile(sentence_Z, (len(x_TD), 1))], axis=1)
    kernel = np.concatenate([layer["injection"][name]["kernel"] for name in ("hidden", "sentence")])
    x_TD = x_TD + drop(both @ kernel)
    normed_TD = rms_norm(x_TD, layer["pre_mlp_layer_norm"]["scale"])
    mlp = {name: kernel["kernel"] for name, kernel in layer["mlp"].items()}
    hidden_TM = drop(gelu(normed_TD @ mlp["wi_0"]) * (normed_TD @ mlp["wi_1"]))
    x_TD = x_TD + drop(hidden_TM @ mlp["wo"])
  return drop(rms_norm(x_TD, p["decoder_norm"]["scale"]))


def test_hidden_states_equal_a_loop_with_dropout_where_t5x_has_it(params):
  arguments = arrays()
  found_BTD, factors = tiny_models.with_dropout_factors(
    network(dropout_rate=0.5), params, arguments[0], LANGUAGES_B, arguments[1]
  )
  for row in range(ROWS):
    remaining = iter(factors)
    expected_TD = in_numpy(
      params, arguments[0][row], LANGUAGES_B[row], arguments[1][row],
      lambda x, row=row, remaining=remaining: x * next(remaining)[row],
    )  # fmt: skip
    np.testing.assert_allclose(found_BTD[row], expected_TD, atol=2e-4)
    assert next(remaining, None) is None
  for factor in factors:
    assert set(np.unique(factor)) == {0, 2}
    np.testing.assert_array_equal(factor, np.broadcast_to(factor[..., :1, :], factor.shape))
  assert not np.array_equal(factors[0], factors[-1])


def test_steps_with_cached_keys_and_values_equal_a_loop_over_positions(params):
  embedded_BTD, sentence_BZ = arrays(length=12)

  @jax.jit
  def step(position, previous_B1D, cache):
    now = decoder.Step(position, 12)
    return network().apply(
      {"params": params, **cache}, previous_B1D, LANGUAGES_B, sentence_BZ, step=now,
      mutable=["cache"],
    )  # fmt: skip

  previous_B1D = np.full((ROWS, 1, CONFIG.emb_dim), 7.0, np.float32)  # ignored at the first step
  _, shapes = jax.eval_shape(step, 0, previous_B1D, {})
  cache = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
  found = []
  for position in range(12):
    hidden_B1D, cache = step(position, previous_B1D, cache)
    found.append(hidden_B1D[:, 0])
    previous_B1D = embedded_BTD[:, position : position + 1]
  for row in range(ROWS):
    expected_TD = in_numpy(params, embedded_BTD[row], LANGUAGES_B[row], sentence_BZ[row])
    np.testing.assert_allclose(np.stack(found, axis=1)[row], expected_TD, atol=2e-4)


def test_scanned_and_recomputed_layers_compute_the_same_function(params):
  embedded_BTD, sentence_BZ = arrays(length=6)
  stacked = {name: x for name, x in params.items() if not name.startswith("layers_")}
  layers = [params[f"layers_{i}"] for i in range(LAYERS)]
  stacked["layers"] = jax.tree.map(lambda *x: jnp.stack(x), *layers)
  found = decode(stacked, embedded_BTD, sentence_BZ, scan_layers=True, remat="minimal")
  np.testing.assert_allclose(found, decode(params, embedded_BTD, sentence_BZ), atol=1e-5)


@pytest.mark.parametrize("factorized", [False, True])
def test_all_parts_of_a_split_kernel_start_as_one(factorized):
  cfg = dataclasses.replace(CONFIG, emb_dim=128, head_dim=8)
  net = networks.VmsstNetwork(cfg, latent_dim=128, num_languages=2, factorized=factorized)
  fresh = jit(net.init)(jax.random.key(0), np.ones((1, 2), int))["params"]
  injection = fresh["decoder"]["layers_0"]["injection"]
  logits = [fresh["logits_hidden"], fresh["logits_factor" if factorized else "logits_latent"]]
  for parts in (injection, *([[logits[0]], logits[1]] if factorized else [logits])):
    kernels = jax.tree.leaves(parts)
    for kernel in kernels:
      std = 1 / math.sqrt(sum(map(len, kernels)))
      assert np.std(kernel) == pytest.approx(std, rel=0.05)
