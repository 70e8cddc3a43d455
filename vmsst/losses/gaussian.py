"""Diagonal Gaussian latents: sampling, KL divergence, mutual information, likelihood bounds.

References: Kingma and Welling 2013 (ELBO); Hoffman and Johnson 2016 (mutual information); Burda et
al. 2016 (importance-weighted bound).
"""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


def sample(
  mean_BS: Float[Array, "B S"], log_variance_BS: Float[Array, "B S"], rng: jax.Array | None
) -> Float[Array, "B S"]:
  """Returns mean + exp(log_variance / 2) * noise, or the mean if the key is None."""
  if rng is None:
    return mean_BS
  noise_BS = jax.random.normal(rng, mean_BS.shape, mean_BS.dtype)
  return mean_BS + jnp.exp(0.5 * log_variance_BS) * noise_BS


def kl_from_standard(
  mean_BS: Float[Array, "B S"], log_variance_BS: Float[Array, "B S"]
) -> Float[Array, "B"]:
  """Returns KL(N(mean, exp(log_variance)) || N(0, 1)) of each row, summed over dimensions, in nats.

  1/2 sum(mean^2 + exp(log_variance) - 1 - log_variance)

  Examples:
    >>> float(kl_from_standard(jnp.array([[2.0, 0.0]]), jnp.zeros((1, 2)))[0])
    2.0
  """
  return jnp.sum(kl_of_dimensions(mean_BS, log_variance_BS), axis=-1)


def kl_of_dimensions(
  mean_BS: Float[Array, "B S"], log_variance_BS: Float[Array, "B S"]
) -> Float[Array, "B S"]:
  """Returns the KL divergence of each dimension; `kl_from_standard` sums these values."""
  # If the log-variance v is close to 0, exp(v) - 1 loses precision, but expm1(v) does not.
  excess_BS = jnp.expm1(log_variance_BS) - log_variance_BS
  return 0.5 * (jnp.square(mean_BS) + excess_BS)


def active_dimensions(
  mean_BS: Float[Array, "B S"], log_variance_BS: Float[Array, "B S"], *, threshold: float = 0.01
) -> Float[Array, ""]:
  """Counts the dimensions whose KL, averaged over the batch, exceeds `threshold` nats."""
  kl_S = jnp.mean(kl_of_dimensions(mean_BS, log_variance_BS), axis=0)
  return jnp.sum(kl_S > threshold, dtype=jnp.float32)


def log_density(
  x_BS: Float[Array, "B S"], mean_BS: Float[Array, "B S"], log_variance_BS: Float[Array, "B S"]
) -> Float[Array, "B"]:
  """Returns log N(x; mean, exp(log_variance)) of each row, in nats."""
  # Scaling before squaring avoids overflow.
  square_BS = jnp.square((x_BS - mean_BS) * jnp.exp(-0.5 * log_variance_BS))
  return -0.5 * jnp.sum(square_BS + log_variance_BS + math.log(2 * math.pi), axis=-1)


def mutual_information(
  mean_BS: Float[Array, "B S"], log_variance_BS: Float[Array, "B S"], rng: jax.Array
) -> Float[Array, ""]:
  """Estimates mutual information between latent and text, in nats, from one sample per row.

  The mutual information of a text x and its latent z is I(x; z) = E[log q(z|x) - log q(z)], where
  q(z) = 1/B sum_j q(z|x_j) is the aggregate posterior over the batch. I(x; z) is at most log B. If
  I(x; z) = 0, all rows have the same posterior, so the latent carries no information about the text
  (it has collapsed). The mean KL from the prior does not reveal a collapse: it equals I(x; z) +
  KL(q(z) || p(z)), which can be large even if I(x; z) = 0.

  Args:
    mean_BS: Posterior means.
    log_variance_BS: Logarithms of the posterior variances; values below -80 are clipped to -80.
    rng: Random key for the samples.
  """
  log_variance_BS = jnp.maximum(log_variance_BS, -80.0)  # exp(80) is finite in float32.
  z_BS = sample(mean_BS, log_variance_BS, rng)
  diagonal_B = log_density(z_BS, mean_BS, log_variance_BS)
  # Matmuls compute the squared differences between samples and means without a [B, B, S] array, but
  # cancellation causes rounding errors. Centering the samples and means reduces these errors. The
  # errors are largest on the diagonal, so the diagonal is replaced by exact values below.
  center_S = jnp.mean(mean_BS, axis=0)
  z_BS, mean_BS = z_BS - center_S, mean_BS - center_S
  precision_BS = jnp.exp(-log_variance_BS)

  def products(x_BS: Float[Array, "B S"], y_BS: Float[Array, "B S"]) -> Float[Array, "B B"]:
    return jnp.matmul(x_BS, y_BS.T, precision=jax.lax.Precision.HIGHEST)

  square_BB = products(jnp.square(z_BS), precision_BS)
  square_BB -= 2 * products(z_BS, mean_BS * precision_BS)
  normalizer_BS = jnp.square(mean_BS) * precision_BS + log_variance_BS + math.log(2 * math.pi)
  log_q_BB = -0.5 * (square_BB + jnp.sum(normalizer_BS, axis=-1))
  log_q_BB = jnp.where(jnp.eye(len(diagonal_B), dtype=bool), diagonal_B[:, None], log_q_BB)
  aggregate_B = jax.nn.logsumexp(log_q_BB, axis=1) - math.log(len(diagonal_B))
  return jnp.mean(diagonal_B - aggregate_B)


Latent = tuple[Float[Array, "B S"], Float[Array, "B S"]]  # mean and log-variance


class Bounds(NamedTuple):
  """Lower bounds on log p(x) of each row, in nats.

  Attributes:
    elbo_B: Log-likelihood, averaged over K samples, minus the KLs.
    importance_weighted_B: log 1/K sum_k p(x, z_k) / q(z_k | x). Its expectation is at least the
      expected ELBO and approaches log p(x) as K grows.
  """

  elbo_B: Float[Array, "B"]
  importance_weighted_B: Float[Array, "B"]


def likelihood_bounds(
  log_likelihood: Callable[[Sequence[Float[Array, "B S"]]], Float[Array, "B"]],
  latents: Sequence[Latent],
  *,
  samples: int,
  rng: jax.Array,
) -> Bounds:
  """Returns both bounds on log p(x), estimated from the same samples.

  Args:
    log_likelihood: Function that maps one sample of each latent to log p(x | z) of each row, in
      nats.
    latents: Posteriors of independent latents, with standard normal priors.
    samples: Number of samples (K), which are processed one at a time.
    rng: Random key for the samples.
  """

  def draw(rng: jax.Array) -> tuple[jax.Array, jax.Array]:
    keys = jax.random.split(rng, len(latents))
    z = [sample(*latent, key) for latent, key in zip(latents, keys, strict=True)]
    log_p_B = log_likelihood(z)
    weight_B = log_p_B
    for x_BS, latent in zip(z, latents, strict=True):
      zeros_BS = jnp.zeros_like(x_BS)
      prior_B = log_density(x_BS, zeros_BS, zeros_BS)
      weight_B = weight_B + prior_B - log_density(x_BS, *latent)
    return log_p_B, weight_B

  log_p_KB, weight_KB = jax.lax.map(draw, jax.random.split(rng, samples))
  kl_B = sum(kl_from_standard(*latent) for latent in latents)
  return Bounds(
    jnp.mean(log_p_KB, axis=0) - kl_B, jax.nn.logsumexp(weight_KB, axis=0) - math.log(samples)
  )
