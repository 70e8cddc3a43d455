import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vmsst.networks import dropout


def apply(x, rate, *, seed=0, **options):
  module = dropout.Dropout(rate, deterministic=False, **options)
  return np.asarray(module.apply({}, jnp.asarray(x), rngs={"dropout": jax.random.key(seed)}))


def test_random_levels_are_uniform_and_independent():
  """Tests each bit, and the correlations between neighbors in any direction."""
  levels = np.asarray(dropout.random_levels(jax.random.key(0), (64, 33, 65)))
  assert levels.shape == (64, 33, 65)
  assert levels.max() < 2**16
  bits = (levels[..., None] >> np.arange(16)) & 1
  tolerance = 5 * 0.5 / np.sqrt(levels.size)  # five standard deviations
  np.testing.assert_allclose(bits.mean(axis=(0, 1, 2)), 0.5, atol=tolerance)
  noise = (levels - levels.mean()) / levels.std()
  for axis, size in enumerate(levels.shape):
    for distance in (1, size // 2, (size + 1) // 2):
      products = noise * np.roll(noise, distance, axis)
      assert abs(products.mean()) < 10 * tolerance


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


def test_broadcast_axes_share_their_fate():
  dropped = apply(np.ones((8, 16, 32), np.float32), 0.5, broadcast_dims=(-2,))
  np.testing.assert_array_equal(dropped, np.broadcast_to(dropped[:, :1], dropped.shape))
  assert 0 < np.mean(dropped[:, 0] == 0) < 1


def test_keys_differ_and_infinities_vanish():
  x = np.full((4, 8, 16), np.inf, np.float32)
  first, second = (apply(x, 0.5, seed=seed) for seed in range(2))
  assert set(np.unique(first)) == {0.0, np.inf}
  assert np.any(first != second)


def test_nothing_changes_without_dropout():
  x = np.ones((2, 3, 4), np.float32)
  np.testing.assert_array_equal(dropout.Dropout(0.5).apply({}, x, deterministic=True), x)
  np.testing.assert_array_equal(dropout.Dropout(0.0, deterministic=False).apply({}, x), x)
