"""Token ids of texts with another prefix, from those with the first one."""

from collections.abc import Sequence

import jax.numpy as jnp
from jaxtyping import Array, Int

from vmsst import arrays


def replace(
  tokens_NT: Int[Array, "N T"],
  old: Sequence[int],
  new: Sequence[int],
  *,
  eos_id: int | None,
  max_length: int,
) -> Int[Array, "N U"]:
  """Returns the ids of the same texts after other leading ids; rows of padding stay so.

  Args:
    tokens_NT: Ids of texts, with EOS tokens if the vocabulary has one; 0 is padding.
    old: The leading ids of every text.
    new: The ids to put in their place.
    eos_id: The EOS token, or None.
    max_length: Texts with more ids are cut, but keep the EOS token.
  """
  text_NU = tokens_NT[:, len(old) :]
  is_text_N1 = jnp.any(tokens_NT != arrays.PAD_ID, axis=1, keepdims=True)
  start_NP = jnp.where(is_text_N1, jnp.array(new, jnp.int32).reshape(1, -1), arrays.PAD_ID)
  found_NT = jnp.concatenate([start_NP, text_NU], axis=1)
  cut_NU = found_NT[:, :max_length]
  if eos_id is None or found_NT.shape[1] <= max_length:
    return cut_NU
  is_cut_N = found_NT[:, max_length] != arrays.PAD_ID
  last_N = jnp.where(is_cut_N, eos_id, cut_NU[:, -1])
  return cut_NU.at[:, -1].set(last_N)
