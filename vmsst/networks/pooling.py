"""Pooling: one vector per sentence from the hidden states of its tokens."""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float


def masked_mean(
  hidden_BTD: Float[Array, "B T D"], mask_BT: Bool[Array, "B T"]
) -> Float[Array, "B D"]:
  """Returns the mean of the real tokens' vectors, float32 for any input dtype.

  Padding never affects the mean, not even as NaN. A row without real tokens gives zeros.
  """
  hidden_BTD = jnp.where(mask_BT[..., None], hidden_BTD.astype(jnp.float32), 0.0)
  count_B1 = jnp.sum(mask_BT, axis=1, keepdims=True, dtype=jnp.float32)
  return jnp.sum(hidden_BTD, axis=1) / jnp.maximum(count_B1, 1.0)


def masked_max(
  hidden_BTD: Float[Array, "B T D"], mask_BT: Bool[Array, "B T"]
) -> Float[Array, "B D"]:
  """Returns the largest of the real tokens' values in each dimension, float32 for any input dtype.

  Padding never affects the maximum, not even as NaN. A row without real tokens gives zeros.

  The gradient goes to the first of equal values. The gradient of `jnp.max` compares values with the
  maximum: if the compiler computes them twice with different rounding, none is equal, and the
  gradient is NaN.
  """
  hidden_BTD = hidden_BTD.astype(jnp.float32)
  place_BD = jnp.argmax(jnp.where(mask_BT[..., None], hidden_BTD, -jnp.inf), axis=1)
  chosen_BTD = jnp.arange(hidden_BTD.shape[1])[:, None] == place_BD[:, None]
  return jnp.sum(jnp.where(chosen_BTD & mask_BT[..., None], hidden_BTD, 0.0), axis=1)
