"""Diagonal Gaussian latents: sampling, KL divergence from the prior, and active units.

References: Kingma and Welling 2013; Burda et al. 2016 (active units).
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


def sample(
  mean_BS: Float[Array, "B S"], log_variance_BS: Float[Array, "B S"], rng: jax.Array | None
) -> Float[Array, "B S"]:
  """Returns the sample mean + exp(log_variance / 2) * noise; the mean without key."""
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
  # expm1, because near the prior the difference is far smaller than its terms.
  excess_BS = jnp.expm1(log_variance_BS) - log_variance_BS
  return 0.5 * jnp.sum(jnp.square(mean_BS) + excess_BS, axis=-1)


def active_units(mean_BS: Float[Array, "B S"], *, threshold: float = 0.01) -> Float[Array, ""]:
  """Returns the number of dimensions whose posterior mean has a variance above `threshold`.

  The variance is that of E[z | x] over the batch (Burda et al. 2016). No active units means that
  the posterior has collapsed.
  """
  return jnp.sum(jnp.var(mean_BS, axis=0) > threshold, dtype=jnp.float32)
