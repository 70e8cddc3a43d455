"""Weighted sums of losses whose gradients are computed in the forward pass.

A softmax over a large vocabulary is best differentiated while its logits exist. The loss is a
weighted sum with weights known in advance, so the forward pass can compute the gradients chunk by
chunk, and the backward pass only multiplies them by a number. Logits of a whole batch never exist,
and the results are exact.
"""

import math
from typing import Any, TypeVar

import jax
import jax.numpy as jnp

from vmsst.arrays import devices, layouts

Inputs = TypeVar("Inputs")

# Rows of logits at a time on CPUs and unknown devices. On a CPU, fewer cost time for the kernel and
# its gradient, and more only take memory (benchmarks/vocab_projection.py).
_CHUNK = 512
# Time of a chunk's kernels and gradients, as a part of that of its matmuls, and logits, as a part
# of the memory. The latter has precedence.
_KERNEL_SHARE = 0.1
_MEMORY_SHARE = 1 / 12
_LOGIT_BYTES = 6  # logits in float32, and their gradients in bfloat16


def default_chunk(columns: int, device: devices.Device | None) -> int:
  """Returns the rows of logits that a device should hold at a time, a power of two.

  In every chunk of M rows, a kernel of K elements is read twice, and its float32 gradient is read
  and written: 12 K bytes. The matmuls take 6 M K FLOPs. Enough rows make the former negligible, if
  the memory has room for their logits.

  >>> default_chunk(250112, devices.BY_NAME["H100 SXM"])
  4096

  Args:
    columns: Columns of the kernel on the device.
    device: The device; None for a CPU.
  """
  if device is None:
    return _CHUNK
  enough = 2 * device.flops / device.bandwidth / _KERNEL_SHARE
  most = _MEMORY_SHARE * device.memory / (_LOGIT_BYTES * columns)
  return max(_CHUNK, 2 ** math.floor(math.log2(min(2 ** math.ceil(math.log2(enough)), most))))


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


def product_of_rows(a: jax.Array, b: jax.Array, dtype: str) -> jax.Array:
  """Returns `a.T @ b` with operands cast to `dtype` and accumulated in `accumulation_dtype`."""
  return layouts.product_of_rows(a.astype(dtype), b.astype(dtype), dtype=accumulation_dtype(dtype))


def scale_gradients(
  plan: Any, gradients: Inputs, cotangents: tuple[jax.Array, Any]
) -> tuple[Inputs, None]:
  """Backward pass of (plan, inputs, targets): scales the gradients computed in the forward pass.

  Auxiliary outputs, the second of the function, have no gradient.
  """
  del plan
  return jax.tree.map(lambda x: (cotangents[0] * x).astype(x.dtype), gradients), None
