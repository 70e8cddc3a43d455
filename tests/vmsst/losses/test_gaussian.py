import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.integrate
import scipy.special
import scipy.stats

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
  np.testing.assert_array_equal(gaussian.sample(MEAN_BS, LOG_VARIANCE_BS, None), MEAN_BS)


def test_active_dimensions_have_a_kl():
  mean_BS = np.array([[1.0, 0.1, 0.0, 0.0], [1.0, -0.1, 0.0, 0.0]], np.float32)
  log_variance_BS = np.array([[0.0, 0.0, 0.0, -1.0]] * 2, np.float32)
  # KLs: 0.5, 0.005, 0, (exp(-1) - 1 + 1) / 2 = 0.18.
  assert gaussian.active_dimensions(mean_BS, log_variance_BS) == 2
  assert gaussian.active_dimensions(mean_BS, log_variance_BS, threshold=0.3) == 1


def test_log_density_equals_scipy_s():
  x_BS = np.array([[0.5, 0.0, 2.0], [1.0, -1.0, 0.3]])
  std_BS = np.exp(LOG_VARIANCE_BS / 2)
  expected_B = scipy.stats.norm.logpdf(x_BS, MEAN_BS, std_BS).sum(axis=1)
  found_B = gaussian.log_density(x_BS, MEAN_BS, LOG_VARIANCE_BS)
  np.testing.assert_allclose(found_B, expected_B, rtol=1e-5)


def test_mutual_information_equals_the_integral_of_the_entropies():
  """I(x; z) = H(q(z)) - E H(q(z|x)), from densities on a grid, for one dimension."""
  mean_B, std_B = np.array([-1.0, 0.2, 0.5, 3.0]), np.array([0.5, 1.0, 0.3, 0.8])
  grid = np.linspace(-12, 12, 200_001)
  density = scipy.stats.norm.pdf(grid[:, None], mean_B, std_B).mean(axis=1)
  entropy = scipy.integrate.trapezoid(scipy.special.entr(density), grid)
  expected = entropy - np.mean(0.5 * np.log(2 * np.pi * np.e * std_B**2))
  posteriors = jnp.float32(mean_B[:, None]), jnp.float32(2 * np.log(std_B)[:, None])
  estimate = functools.partial(gaussian.mutual_information, *posteriors)
  found = np.asarray(jax.jit(jax.vmap(estimate))(jax.random.split(jax.random.key(0), 20_000)))
  assert found.mean() == pytest.approx(expected, abs=4 * found.std() / np.sqrt(20_000))
  assert found.std() / np.sqrt(20_000) < 0.005 < expected


def test_mutual_information_equals_a_loop_in_float64_with_the_same_samples():
  # Far from the origin, so that products cancel.
  rng = np.random.default_rng(0)
  mean_BS = np.float32(20 + rng.normal(size=(12, 40)))
  log_variance_BS = np.float32(rng.normal(-1, 1, size=(12, 40)))
  mean_BS[1] = mean_BS[0] + 0.02  # nearly the same text
  log_variance_BS[1] = log_variance_BS[0]
  key = jax.random.key(3)
  z_BS = np.asarray(gaussian.sample(jnp.array(mean_BS), jnp.array(log_variance_BS), key))
  std_BS = np.exp(np.float64(log_variance_BS) / 2)
  log_q_BB = np.array(
    [[scipy.stats.norm.logpdf(z, m, s).sum() for m, s in zip(mean_BS, std_BS, strict=True)]
     for z in np.float64(z_BS)]
  )  # fmt: skip
  aggregate_B = scipy.special.logsumexp(log_q_BB, axis=1) - np.log(12)
  expected = np.mean(np.diag(log_q_BB) - aggregate_B)
  found = gaussian.mutual_information(jnp.array(mean_BS), jnp.array(log_variance_BS), key)
  assert found == pytest.approx(expected, abs=2e-3)
  assert 2 < expected < np.log(12)  # the two texts share an information of log 2
