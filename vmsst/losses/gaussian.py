"""Diagonal Gaussian latents: samples, distance from the prior, and whether they carry anything.

References: Kingma and Welling 2013; Burda et al. 2016 (active units).
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


def sample(
  mean_BS: Float[Array, "B S"], log_variance_BS: Float[Array, "B S"], rng: jax.Array | None
) -> Float[Array, "B S"]:
  """A reparameterized sample, mean + exp(log_variance / 2) * noise; without a key the mean."""
  if rng is None:
    return mean_BS
  noise_BS = jax.random.normal(rng, mean_BS.shape, mean_BS.dtype)
  return mean_BS + jnp.exp(0.5 * log_variance_BS) * noise_BS


def kl_from_standard(
  mean_BS: Float[Array, "B S"], log_variance_BS: Float[Array, "B S"]
) -> Float[Array, "B"]:
  """KL(N(mean, exp(log_variance)) || N(0, 1)) of each row, summed over dimensions, in nats.

  1/2 sum(mean^2 + exp(log_variance) - 1 - log_variance)

  Examples:
    >>> float(kl_from_standard(jnp.array([[2.0, 0.0]]), jnp.zeros((1, 2)))[0])
    2.0
  """
  # expm1: near the prior the difference is far smaller than its parts.
  excess_BS = jnp.expm1(log_variance_BS) - log_variance_BS
  return 0.5 * jnp.sum(jnp.square(mean_BS) + excess_BS, axis=-1)


def active_units(mean_BS: Float[Array, "B S"], *, threshold: float = 0.01) -> Float[Array, ""]:
  """Number of dimensions whose posterior mean varies over the batch by more than `threshold`.

  The variance over B of E[z | x] (Burda et al. 2016): zero units are a collapsed posterior.
  """
  return jnp.sum(jnp.var(mean_BS, axis=0) > threshold, dtype=jnp.float32)
