"""Weighted sums of losses whose gradients are computed in the forward pass.

A softmax over a large vocabulary is best differentiated while its logits exist. The loss is a
weighted sum with weights known in advance, so the forward pass can compute the gradients chunk by
chunk, and the backward pass only multiplies them by a number. Logits of a whole batch never exist,
and the results are exact.
"""

from typing import Any, TypeVar

import jax
import jax.numpy as jnp

Inputs = TypeVar("Inputs")


def check_chunk(chunk: int | None) -> None:
  """Raises ValueError for a chunk size below 1; None is the default size."""
  if chunk is not None and chunk < 1:
    raise ValueError(f"chunk is {chunk}; it must be at least 1")


def accumulation_dtype(dtype: str) -> Any:
  """Returns the dtype of matmul results, sums and softmaxes for a compute dtype."""
  return jnp.promote_types(dtype, jnp.float32)


def matmul(a: jax.Array, b: jax.Array, dtype: str) -> jax.Array:
  """Returns `a @ b` with operands cast to `dtype` and accumulated in `accumulation_dtype`."""
  return jnp.matmul(
    a.astype(dtype), b.astype(dtype), preferred_element_type=accumulation_dtype(dtype)
  )


def scale_gradients(
  plan: Any, gradients: Inputs, cotangents: tuple[jax.Array, Any]
) -> tuple[Inputs, None]:
  """Backward pass of (plan, inputs, targets): scales the gradients computed in the forward pass.

  Auxiliary outputs, the second of the function, have no gradient.
  """
  del plan
  return jax.tree.map(lambda x: (cotangents[0] * x).astype(x.dtype), gradients), None
