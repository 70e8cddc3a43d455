import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from vmsst.losses import likelihood_bounds

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
  one = functools.partial(
    likelihood_bounds.likelihood_bounds, log_likelihood, latents, samples=samples
  )
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


def test_with_the_exact_posterior_every_importance_weight_is_the_likelihood():
  mean_B, variance = A * X_B / (A**2 + 1), 1 / (A**2 + 1)
  found = likelihood_bounds.likelihood_bounds(
    lambda z: -0.5 * ((X_B - A * z[0][:, 0]) ** 2 + np.log(2 * np.pi)),
    [(jnp.array(mean_B)[:, None], jnp.full((3, 1), np.log(variance)))],
    samples=2,
    rng=jax.random.key(1),
  )
  log_p_B = scipy.stats.norm.logpdf(X_B, 0, np.sqrt(A**2 + 1))
  np.testing.assert_allclose(found.importance_weighted_B, log_p_B, rtol=1e-5)
  assert found.elbo_B.mean() == pytest.approx(log_p_B.mean(), abs=2)
