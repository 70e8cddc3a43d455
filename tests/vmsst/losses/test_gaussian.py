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


def test_tiny_variances_are_finite():
  mean_BS, log_variance_BS = jnp.eye(4), jnp.full((4, 4), -100.0)
  shared = jax.jit(gaussian.mutual_information)(mean_BS, log_variance_BS, jax.random.key(0))
  assert float(shared) == pytest.approx(np.log(4), abs=1e-4)
  zeros = lambda z: jnp.zeros(4)  # noqa: E731
  latents = [(mean_BS, log_variance_BS)]
  both = gaussian.likelihood_bounds(zeros, latents, samples=2, rng=jax.random.key(0))
  np.testing.assert_allclose(both.importance_weighted_B, both.elbo_B, rtol=0.05)


def test_mutual_information_equals_a_loop_in_float64_with_the_same_samples():
  # Far from the origin, so that products cancel.
  rng = np.random.default_rng(0)
  mean_BS = np.float32(500 + rng.normal(size=(12, 40)))
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


# x = a z_1 + b z_2 + noise, so that p(x) is normal with variance a^2 + b^2 + 1.
A, B = 1.5, 0.5
X_B = np.array([0.3, -2.0, 4.0])


def log_likelihood(z):
  first_B1, second_B1 = z
  error_B = X_B - A * first_B1[:, 0] - B * second_B1[:, 0]
  return -0.5 * (error_B**2 + np.log(2 * np.pi))


def bounds(samples, *, gain=0.3, variance=0.7):
  """Means over keys of both bounds for a poor posterior, and their standard errors."""
  latents = [
    (jnp.array(gain * X_B)[:, None], jnp.full((3, 1), np.log(variance))),
    (jnp.zeros((3, 1)), jnp.zeros((3, 1))),
  ]
  one = functools.partial(gaussian.likelihood_bounds, log_likelihood, latents, samples=samples)
  found = jax.jit(jax.vmap(lambda key: one(rng=key)))(jax.random.split(jax.random.key(0), 4000))
  return [(np.mean(x, axis=0), np.std(x, axis=0) / np.sqrt(4000)) for x in found]


def test_the_elbo_equals_its_closed_form_and_the_other_bound_rises_to_the_likelihood():
  log_p_B = scipy.stats.norm.logpdf(X_B, 0, np.sqrt(A**2 + B**2 + 1))
  # E log p(x | z) - KL of the first latent; the second is at its prior.
  error_B = (X_B - A * 0.3 * X_B) ** 2 + A**2 * 0.7 + B**2
  kl_B = 0.5 * ((0.3 * X_B) ** 2 + 0.7 - 1 - np.log(0.7))
  elbo_B = -0.5 * (error_B + np.log(2 * np.pi)) - kl_B
  gaps = []
  for samples in (1, 4, 64):
    (elbo, elbo_error), (weighted, weighted_error) = bounds(samples)
    assert np.all(np.abs(elbo - elbo_B) < 4 * elbo_error), samples
    assert np.all(weighted < log_p_B + 4 * weighted_error)
    gaps.append(log_p_B - weighted)
  single, few, many = gaps
  # One sample: the ELBO itself. More: closer.
  np.testing.assert_allclose(single, log_p_B - elbo_B, rtol=0.1)
  assert np.all(few < 0.8 * single)
  assert np.all(many < 0.4 * few)
