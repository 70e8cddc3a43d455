"""One vector for a sentence of token vectors."""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float


def masked_mean(
  hidden_BTD: Float[Array, "B T D"], mask_BT: Bool[Array, "B T"]
) -> Float[Array, "B D"]:
  """Mean of the real tokens' vectors, float32 whatever the input's dtype.

  Padding never reaches the mean, not even as NaN. A row without a real token gives zeros.
  """
  hidden_BTD = jnp.where(mask_BT[..., None], hidden_BTD.astype(jnp.float32), 0.0)
  count_B1 = jnp.sum(mask_BT, axis=1, keepdims=True, dtype=jnp.float32)
  return jnp.sum(hidden_BTD, axis=1) / jnp.maximum(count_B1, 1.0)
