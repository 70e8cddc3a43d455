"""Lower bounds on the log-likelihood of latent-variable models, from samples.

References: Kingma and Welling 2013 (ELBO); Burda et al. 2016 (importance-weighted bound).
"""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from vmsst.losses import gaussian

Latent = tuple[Float[Array, "B S"], Float[Array, "B S"]]  # mean and log-variance


class Bounds(NamedTuple):
  """Lower bounds on log p(x) of each row, in nats.

  Attributes:
    elbo_B: Mean log-likelihood of K samples, minus the KLs.
    importance_weighted_B: log 1/K sum_k p(x, z_k) / q(z_k | x), whose expectation is at least that
      of the ELBO and rises to log p(x) with K.
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
  """Returns both bounds, from the same samples.

  Args:
    log_likelihood: Maps one sample of each latent to log p(x | z) of each row, in nats.
    latents: Posteriors of independent latents, with standard normal priors.
    samples: Number of samples (K), computed one after the other.
    rng: Key of the samples.
  """

  def one(rng: jax.Array) -> tuple[jax.Array, jax.Array]:
    keys = jax.random.split(rng, len(latents))
    z = [gaussian.sample(*latent, key) for latent, key in zip(latents, keys, strict=True)]
    log_p_B = log_likelihood(z)
    weight_B = log_p_B
    for x_BS, latent in zip(z, latents, strict=True):
      zeros_BS = jnp.zeros_like(x_BS)
      prior_B = gaussian.log_density(x_BS, zeros_BS, zeros_BS)
      weight_B = weight_B + prior_B - gaussian.log_density(x_BS, *latent)
    return log_p_B, weight_B

  log_p_KB, weight_KB = jax.lax.map(one, jax.random.split(rng, samples))
  kl_B = sum(gaussian.kl_from_standard(*latent) for latent in latents)
  return Bounds(
    jnp.mean(log_p_KB, axis=0) - kl_B,
    jax.nn.logsumexp(weight_KB, axis=0) - math.log(samples),
  )
