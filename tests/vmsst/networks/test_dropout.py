import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vmsst.networks import dropout


def apply(x, rate, *, seed=0, **options):
  module = dropout.Dropout(rate, deterministic=False, **options)
  return np.asarray(module.apply({}, jnp.asarray(x), rngs={"dropout": jax.random.key(seed)}))


@pytest.mark.parametrize("shape", [(7,), (3, 1, 5), (2, 128, 256)])
def test_random_words_are_those_of_jax(shape):
  key = jax.random.key(3, impl="threefry2x32")
  found = jax.jit(lambda key: dropout.random_words(key, shape))(jax.random.key_data(key))
  np.testing.assert_array_equal(found, jax.random.bits(key, shape, jnp.uint32))


@pytest.mark.parametrize("rate", [0.1, 0.3, 0.75])
def test_values_are_zero_at_the_rate_and_keep_their_mean(rate):
  dropped = apply(np.ones((64, 31, 512), np.float32), rate)
  deviation = 5 * np.sqrt(rate * (1 - rate) / dropped.size)
  assert abs(np.mean(dropped == 0) - rate) < deviation
  np.testing.assert_allclose(dropped[dropped != 0], 1 / (1 - rate), rtol=1e-4)


def test_keys_differ_and_infinities_vanish():
  x = np.full((4, 8, 16), np.inf, np.float32)
  first, second = (apply(x, 0.5, seed=seed) for seed in range(2))
  assert set(np.unique(first)) == {0.0, np.inf}
  assert np.any(first != second)
