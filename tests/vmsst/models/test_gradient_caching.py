import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny_models

from vmsst.data import vocabularies
from vmsst.models import contrastive, gradient_caching
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
