import jax
import jax.numpy as jnp
import numpy as np
import tiny_models
from flax import traverse_util

from vmsst.models import base


def test_vectors_are_auxiliary_to_the_tokens_of_inputs():
  model, batch = tiny_models.pair_model(), tiny_models.random_batch(8, 8, (6, 6), (2, 60))
  params = tiny_models.random_params(model.network)
  tokens_BT, aux = tiny_models.jit(model.predict_batch_with_aux)(params, batch)
  np.testing.assert_array_equal(tokens_BT, batch["inputs"])
  vector_BS = tiny_models.jit(model.network.apply)({"params": params}, batch["inputs"])
  np.testing.assert_allclose(aux["embedding"], vector_BS, atol=1e-6)
  _, metrics = jax.eval_shape(model.eval_fn, params, batch)
  for leaf in traverse_util.flatten_dict(dict(metrics)).values():
    assert {leaf.total.shape, leaf.count.shape} == {()}


def test_averages_of_microbatches_merge():
  whole = base.average(jnp.arange(8.0)).compute()
  halves = base.average(jnp.arange(3.0)).merge(base.average(jnp.arange(3.0, 8.0)))
  assert halves.compute() == whole
