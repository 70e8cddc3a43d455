import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vmsst.losses import gaussian

MEAN_BS = np.array([[0.3, -1.0, 0.0], [2.0, 0.1, -0.4]])
LOG_VARIANCE_BS = np.array([[0.0, -1.5, 0.7], [-3.0, 0.2, 1.0]])


def test_kl_equals_a_monte_carlo_estimate():
  rng = np.random.default_rng(0)
  std_BS = np.exp(LOG_VARIANCE_BS / 2)
  noise = rng.standard_normal((400_000, 2, 3))
  z = MEAN_BS + std_BS * noise
  # log q(z) - log p(z); the constants of both densities are the same.
  log_ratio = -0.5 * noise**2 - np.log(std_BS) + 0.5 * z**2
  found_B = gaussian.kl_from_standard(MEAN_BS, LOG_VARIANCE_BS)
  np.testing.assert_allclose(found_B, log_ratio.sum(axis=2).mean(axis=0), rtol=5e-3)


def test_kl_is_zero_and_flat_at_the_prior_and_exact_near_it():
  zeros_BS = jnp.zeros((1, 4))
  assert gaussian.kl_from_standard(zeros_BS, zeros_BS) == 0
  slope = jax.grad(lambda m, v: gaussian.kl_from_standard(m, v)[0], (0, 1))(zeros_BS, zeros_BS)
  np.testing.assert_array_equal(np.stack(slope), 0)
  near = gaussian.kl_from_standard(zeros_BS, jnp.full((1, 4), 1e-2))
  assert near == pytest.approx(4 * 0.25e-4, rel=1e-2)  # v^2 / 4 per dimension


def test_samples_have_the_requested_mean_and_variance():
  mean = np.broadcast_to(MEAN_BS[:1], (100_000, 3))
  log_variance = np.broadcast_to(LOG_VARIANCE_BS[:1], (100_000, 3))
  sampled = np.asarray(gaussian.sample(jnp.array(mean), jnp.array(log_variance), jax.random.key(0)))
  np.testing.assert_allclose(sampled.mean(axis=0), mean[0], atol=0.02)
  np.testing.assert_allclose(sampled.var(axis=0), np.exp(log_variance[0]), rtol=0.03)


def test_without_a_key_the_sample_is_the_mean():
  np.testing.assert_array_equal(gaussian.sample(MEAN_BS, LOG_VARIANCE_BS, None), MEAN_BS)


def test_samples_pass_gradients_to_mean_and_variance():
  key = jax.random.key(1)

  def draw(mean, log_variance):
    return gaussian.sample(mean, log_variance, key).sum()

  noise_BS = jax.random.normal(key, (2, 3))
  by_mean, by_log_variance = jax.grad(draw, (0, 1))(jnp.array(MEAN_BS), jnp.array(LOG_VARIANCE_BS))
  np.testing.assert_array_equal(by_mean, 1)
  expected = 0.5 * np.exp(LOG_VARIANCE_BS / 2) * noise_BS
  np.testing.assert_allclose(by_log_variance, expected, rtol=1e-5)


def test_active_units_are_those_that_vary_with_the_sentence():
  mean_BS = np.array([[1.0, 5.0, 0.00, 0.0], [1.0, -5.0, 0.15, 0.3]], np.float32)
  # Variances over the two rows: 0, 25, 0.0056, 0.0225.
  assert gaussian.active_units(mean_BS) == 2
  assert gaussian.active_units(mean_BS, threshold=1.0) == 1
