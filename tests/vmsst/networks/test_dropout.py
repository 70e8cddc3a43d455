import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vmsst.networks import dropout


def apply(x, rate, *, seed=0, **options):
  module = dropout.Dropout(rate, deterministic=False, **options)
  return np.asarray(module.apply({}, jnp.asarray(x), rngs={"dropout": jax.random.key(seed)}))


def test_random_levels_are_the_halves_of_random_words():
  key = jax.random.key(0)
  own = jax.random.wrap_key_data(jax.random.bits(key, (2,), jnp.uint32), impl="threefry2x32")
  words = np.asarray(jax.random.bits(own, (64, 17, 65), jnp.uint32))
  halves = np.concatenate([words & 0xFFFF, words >> 16], axis=1)
  np.testing.assert_array_equal(dropout.random_levels(key, (64, 33, 65)), halves[:, :33])


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


def test_nothing_changes_without_dropout():
  x = np.ones((2, 3, 4), np.float32)
  np.testing.assert_array_equal(dropout.Dropout(0.5).apply({}, x, deterministic=True), x)
  np.testing.assert_array_equal(dropout.Dropout(0.0, deterministic=False).apply({}, x), x)
