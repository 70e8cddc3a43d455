import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny_models
from flax import traverse_util
from tiny_models import jit

from vmsst.data import vocabularies
from vmsst.models import base, contrastive
from vmsst.networks import sentence_encoder, t5

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
