"""CONTRASTIVE and what models share; tests/ems_jax/models/test_every_model.py has the rest."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny_models
from flax import traverse_util
from tiny_models import jit

from vmsst.models import base, contrastive, gradient_caching
from vmsst.networks import sentence_encoder, t5
from vmsst.text import vocabularies

CONFIG = t5.T5Config(
  vocab_size=60, emb_dim=16, num_heads=2, head_dim=8, mlp_dim=16, num_encoder_layers=1
)


def make_model(**options):
  network = sentence_encoder.SentenceEncoder(CONFIG, latent_dim=16)
  vocabulary = vocabularies.ByteVocabulary()
  return contrastive.ContrastiveModel(network=network, input_vocabulary=vocabulary, **options)


def make_batch(pairs=8, inputs_length=6, targets_length=6):
  return tiny_models.random_batch(pairs, pairs, (inputs_length, targets_length), (2, 60))


@pytest.fixture(scope="module")
def params():
  """Parameters so small that the softmax is not saturated."""
  return jax.tree.map(lambda x: 0.6 * x, tiny_models.random_params(make_model().network))


def side_vectors(params, batch):
  """Vectors of sources and targets, encoded separately."""
  score_batch = jit(make_model().score_batch)
  return [np.float64(score_batch(params, {"inputs": batch[x]})) for x in ("inputs", "targets")]


def loss_of_scores(score_BB, rival_BB=None):
  """The loss from scores, pair by pair; `rival_BB` is False for pairs that are not negatives."""
  if rival_BB is None:
    rival_BB = np.ones(score_BB.shape, bool)
  losses = []
  for i in range(len(score_BB)):
    for scores, rivals in ((score_BB[i], rival_BB[i]), (score_BB[:, i], rival_BB[:, i])):
      losses.append(np.log(np.exp(scores[rivals]).sum()) - scores[i])
  return np.mean(losses)


def test_loss_and_metrics_from_the_vectors_of_each_side(params):
  model, batch = make_model(), make_batch(targets_length=9)
  loss, metrics = tiny_models.evaluate(model.eval_fn, params, batch)
  source_BS, target_BS = side_vectors(params, batch)
  score_BB = source_BS @ target_BS.T
  expected = loss_of_scores(score_BB)
  assert loss == pytest.approx(expected, rel=1e-4)
  assert metrics["loss"] == pytest.approx(expected, rel=1e-4)
  assert metrics["accuracy/forward"] == np.mean(score_BB.argmax(axis=1) == np.arange(8))
  assert metrics["accuracy/backward"] == np.mean(score_BB.argmax(axis=0) == np.arange(8))
  tokens = sum(np.count_nonzero(x) for x in batch.values())
  assert metrics["tokens_per_example"] == pytest.approx(tokens / 8)
  norms = np.linalg.norm(np.concatenate([source_BS, target_BS]), axis=1)
  assert metrics["embedding_norm"] == pytest.approx(norms.mean(), rel=1e-4)


def test_a_matryoshka_loss_is_the_mean_over_cut_vectors(params):
  model, batch = make_model(similarity="cosine", scale=5.0, matryoshka_dims=(4, 9)), make_batch()
  loss, metrics = tiny_models.evaluate(model.eval_fn, params, batch)
  expected = {}
  for dim in (16, 4, 9):
    cut = [vectors[:, :dim] for vectors in side_vectors(params, batch)]
    source_BS, target_BS = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in cut)
    score_BB = 5.0 * source_BS @ target_BS.T
    expected[dim] = loss_of_scores(score_BB)
    prefix = "" if dim == 16 else f"first_{dim}/"
    accuracy = np.mean(score_BB.argmax(axis=1) == np.arange(8))
    assert metrics[f"{prefix}accuracy/forward"] == accuracy
  assert metrics["first_4/loss"] == pytest.approx(expected[4], rel=1e-4)
  assert metrics["first_9/loss"] == pytest.approx(expected[9], rel=1e-4)
  assert loss == pytest.approx(np.mean([*expected.values()]), rel=1e-4)
  assert metrics["loss"] == pytest.approx(np.mean([*expected.values()]), rel=1e-4)


def test_cosine_and_duplicates_are_options(params):
  batch = make_batch()
  batch["targets"][3] = batch["targets"][0]
  batch["inputs"][5] = batch["inputs"][6]
  model = make_model(similarity="cosine", scale=7.0, mask_duplicates=True)
  loss, metrics = tiny_models.evaluate(model.eval_fn, params, batch)
  source_BS, target_BS = (
    x / np.linalg.norm(x, axis=1, keepdims=True) for x in side_vectors(params, batch)
  )
  score_BB = 7.0 * source_BS @ target_BS.T
  rival_BB = np.ones((8, 8), bool)
  for i, j in ((3, 0), (5, 6)):
    rival_BB[i, j] = rival_BB[j, i] = False
  assert loss == pytest.approx(loss_of_scores(score_BB, rival_BB), rel=1e-4)
  assert loss != pytest.approx(loss_of_scores(score_BB), rel=1e-3)
  rivals_BB = np.where(rival_BB, score_BB, -np.inf)
  assert metrics["accuracy/forward"] == np.mean(rivals_BB.argmax(axis=1) == np.arange(8))
  assert metrics["accuracy/backward"] == np.mean(rivals_BB.argmax(axis=0) == np.arange(8))


def test_each_slice_has_its_own_dropout():
  def encode(x_BD, rng):
    return x_BD * jax.random.bernoulli(rng, 0.5, x_BD.shape)

  out_BD = gradient_caching.map_slices(encode, jnp.ones((4, 64)), slices=2, rng=jax.random.key(0))
  # Rows 0 and 2 are the first slice, rows 1 and 3 the second.
  assert not np.array_equal(out_BD[0::2], out_BD[1::2])


def test_slices_keep_the_order_and_structure_of_the_batch():
  batch = {"a": jnp.arange(12), "b": jnp.arange(24).reshape(12, 2)}
  found = gradient_caching.map_slices(
    lambda x, rng: {"sum": x["a"][:, None] + x["b"]}, batch, slices=3
  )
  np.testing.assert_array_equal(found["sum"], batch["a"][:, None] + batch["b"])


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
