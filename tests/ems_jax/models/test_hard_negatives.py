import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ems_jax.models import hard_negatives
from vmsst.models import contrastive
from vmsst.networks import sentence_encoder, t5
from vmsst.text import vocabularies

# Compilation takes most of the time.
jit = functools.partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})

B, K, S = 4, 3, 8
NETWORK = sentence_encoder.SentenceEncoder(
  t5.T5Config(vocab_size=50, emb_dim=S, num_heads=2, head_dim=4, mlp_dim=8, num_encoder_layers=1),
  latent_dim=S,
)


def make_model(kind=hard_negatives.HardNegativesModel, **options):
  return kind(network=NETWORK, input_vocabulary=vocabularies.ByteVocabulary(), **options)


def make_batch():
  rng = np.random.default_rng(0)
  tokens = {"inputs": (B, 5), "targets": (B, 6), "negatives": (B, K, 9)}
  batch = {name: rng.integers(2, 50, shape, dtype=np.int32) for name, shape in tokens.items()}
  for array in batch.values():
    array[1, ..., 3:] = 0
  batch["inputs"][3] = batch["inputs"][0]  # a source twice
  batch["negatives"][0, 1] = 0  # does not exist
  batch["negatives"][2] = 0
  return batch


@pytest.fixture(scope="module")
def params():
  variables = jit(NETWORK.init)(jax.random.key(0), jnp.ones((1, 4), jnp.int32))
  return jax.tree.map(lambda x: 3 * x, variables["params"])


@pytest.fixture(scope="module")
def vectors(params):
  """Vectors of the batch's sources, targets and hard negatives by inference."""
  tokens = [x.reshape(-1, x.shape[-1]) for x in make_batch().values()]
  tokens_NT = np.concatenate([np.pad(x, ((0, 0), (0, 9 - x.shape[1]))) for x in tokens])
  vector_NS = np.float64(jit(make_model().score_batch)(params, {"inputs": tokens_NT}))
  return vector_NS[:B], vector_NS[B : 2 * B], vector_NS[2 * B :].reshape(B, K, S)


def by_loops(vectors, batch, *, cosine, scale, mask_duplicates):
  source, target, wrong = vectors

  def score(x, y):
    length = np.linalg.norm(x) * np.linalg.norm(y) if cosine else 1.0
    return scale * float(x @ y) / length

  def is_rival(i, j):
    same = any(np.array_equal(batch[side][i], batch[side][j]) for side in ("inputs", "targets"))
    return not (mask_duplicates and same)

  losses, below, given = [], 0, 0
  for i in range(B):
    right = score(source[i], target[i])
    others = [j for j in range(B) if j != i and is_rival(i, j)]
    mined = [score(source[i], wrong[i, k]) for k in range(K) if batch["negatives"][i, k].any()]
    forward = [right, *(score(source[i], target[j]) for j in others), *mined]
    backward = [right, *(score(source[j], target[i]) for j in others)]
    losses.append(
      (math.log(sum(map(math.exp, forward))) + math.log(sum(map(math.exp, backward)))) / 2 - right
    )
    below += sum(x < right for x in mined)
    given += len(mined)
  return np.mean(losses), below / given, given / B


@pytest.mark.parametrize(
  "options",
  [
    {"similarity": "cosine", "scale": 10.0, "embedding_slices": 2},
    {"scale": 0.5, "mask_duplicates": True},
  ],
)
def test_loss_and_metrics_are_those_of_loops(params, vectors, options):
  batch = make_batch()
  model = make_model(**options)
  loss, metrics = jit(model.loss_fn, static_argnums=2)(params, batch, None)
  expected, below, given = by_loops(
    vectors,
    batch,
    cosine=options.get("similarity") == "cosine",
    scale=options["scale"],
    mask_duplicates=options.get("mask_duplicates", False),
  )
  np.testing.assert_allclose(loss, expected, rtol=1e-4)
  found = {name: float(metric.compute()) for name, metric in metrics.items()}
  assert found["loss"] == pytest.approx(expected, rel=1e-4)
  assert found["accuracy/negatives"] == pytest.approx(below)
  assert found["negatives_per_example"] == given == 8 / B
  real = sum((batch[side] != 0).sum() for side in ("inputs", "targets"))
  assert found["tokens_per_example"] == pytest.approx(real / B)


def test_a_matryoshka_loss_is_the_mean_over_cut_vectors(params, vectors):
  batch, options = make_batch(), {"similarity": "cosine", "scale": 10.0}
  model = make_model(**options, matryoshka_dims=(3,))
  loss, metrics = jit(model.loss_fn, static_argnums=2)(params, batch, None)
  cut = [x[..., :3] for x in vectors]
  options = {"cosine": True, "scale": 10.0, "mask_duplicates": False}
  expected = [by_loops(x, batch, **options)[:2] for x in (vectors, cut)]
  np.testing.assert_allclose(loss, np.mean(expected, axis=0)[0], rtol=1e-4)
  found = {name: float(metric.compute()) for name, metric in metrics.items()}
  assert found["first_3/loss"] == pytest.approx(expected[1][0], rel=1e-4)
  assert found["accuracy/negatives"] == pytest.approx(expected[0][1])
  assert found["first_3/accuracy/negatives"] == pytest.approx(expected[1][1])


def test_without_negatives_it_is_contrastive(params):
  batch = make_batch()
  batch["negatives"][:] = 0
  options = {"similarity": "cosine", "scale": 5.0}
  loss, metrics = jit(make_model(**options).loss_fn, static_argnums=2)(params, batch, None)
  plain = make_model(contrastive.ContrastiveModel, **options)
  expected, plain_metrics = jit(plain.loss_fn, static_argnums=2)(params, batch, None)
  np.testing.assert_allclose(loss, expected, rtol=1e-5)
  for name in ("accuracy/forward", "accuracy/backward", "embedding_norm"):
    np.testing.assert_allclose(metrics[name].compute(), plain_metrics[name].compute(), rtol=1e-5)
