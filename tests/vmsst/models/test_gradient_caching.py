import jax
import jax.numpy as jnp
import numpy as np
import tiny_models

from vmsst.models import gradient_caching


def test_each_slice_has_its_own_dropout():
  def encode(x_BD, rng):
    return x_BD * jax.random.bernoulli(rng, 0.5, x_BD.shape)

  out_BD = gradient_caching.map_slices(encode, jnp.ones((4, 64)), slices=2, rng=jax.random.key(0))
  # Rows 0 and 2 are the first slice, rows 1 and 3 the second.
  assert not np.array_equal(out_BD[0::2], out_BD[1::2])


def test_slices_need_less_memory():
  batch = jax.tree.map(jnp.asarray, tiny_models.random_batch(0, 256, (32, 32), (2, 60)))

  def temporaries(count):
    model = tiny_models.pair_model(embedding_slices=count)
    step = jax.jit(jax.grad(model.loss_fn, has_aux=True))
    params = tiny_models.shapes_of(model.network)["params"]
    return step.lower(params, batch, None).compile().memory_analysis().temp_size_in_bytes

  assert temporaries(8) < temporaries(1) / 4
