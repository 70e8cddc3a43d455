"""Array layouts: sharding over a mesh by logical axis names, and memory layouts for gradients.

The gradient of the kernel in `x @ kernel` is `x.T @ gradient`, a matmul with a transposed operand.
XLA's CPU backend multiplies transposed matrices at 0.4 to 0.7 times the usual speed. An explicit
transpose does not help, because XLA fuses the transpose into the matmul that follows. `linear` and
`product_of_rows` therefore transpose the smaller matrix behind an optimization barrier, which
prevents the fusion. Other backends read either layout at the same speed.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
from flax.linen import partitioning
from jaxtyping import Array, Float


def constrain(x: jax.Array, axes: tuple[str | None, ...]) -> jax.Array:
  """Constrains the sharding of `x` by the current logical axis rules, if any are set.

  Unlike the corresponding flax function, this function also works with a mesh entered by `with
  mesh:`, as in T5X's partitioners.

  Args:
    x: An activation.
    axes: Logical name for each axis of `x`, or None for an axis that is not sharded.
  """
  if not partitioning.get_axis_rules():
    return x
  return jax.lax.with_sharding_constraint(x, partitioning.logical_to_mesh_axes(axes))


def gather(kernel: jax.Array, axes: tuple[str, str]) -> jax.Array:
  """Gathers the "embed" axis of a kernel on every device; other axes stay sharded.

  Without an explicit gather, XLA may split a matmul with a fully sharded kernel into partial
  matmuls that each read and write all outputs. If no logical axis rules are set, the kernel is
  returned unchanged.

  Args:
    kernel: Parameters [M, N]. Cast them to the compute dtype first, so that devices exchange fewer
      bytes.
    axes: Logical names of both axes.
  """
  return constrain(kernel, tuple(None if axis == "embed" else axis for axis in axes))


def mesh_axes(**sizes: int) -> tuple[tuple[str, ...], ...]:
  """Returns the mesh axes over which the current rules shard each logical axis of an array.

  The result contains a tuple of mesh axes for each logical axis. The tuple is empty if the logical
  axis is not sharded, if its size is not divisible by the number of shards, or if no mesh
  was entered with `jax.set_mesh`.

  Args:
    **sizes: Size of each logical axis.
  """
  mesh = jax.sharding.get_abstract_mesh().shape
  if not mesh or not partitioning.get_axis_rules():
    return ((),) * len(sizes)
  specs = partitioning.logical_to_mesh_axes(tuple(sizes)) or (None,) * len(sizes)
  axes = []
  for spec, size in zip(specs, sizes.values(), strict=True):
    names = spec if isinstance(spec, tuple) else (spec,)
    names = tuple(name for name in names if mesh.get(name, 1) > 1)
    axes.append(names if size % math.prod(mesh[name] for name in names) == 0 else ())
  return tuple(axes)


def local_size(**size: int) -> int:
  """Returns the size of a logical axis on each device; see `mesh_axes`.

  Args:
    **size: Size of one logical axis.
  """
  (names,), (total,) = mesh_axes(**size), size.values()
  mesh = jax.sharding.get_abstract_mesh().shape
  return total // math.prod(mesh[name] for name in names)


@jax.custom_vjp
def linear(x_MA: Float[Array, "M A"], kernel_AB: Float[Array, "A B"]) -> Float[Array, "M B"]:
  """Returns `x @ kernel` for operands of the same dtype; supports only reverse-mode gradients."""
  return x_MA @ kernel_AB


def _linear_forward(x_MA: jax.Array, kernel_AB: jax.Array) -> tuple[jax.Array, Any]:
  return x_MA @ kernel_AB, (x_MA, kernel_AB)


def _linear_backward(residuals: Any, gradient_MB: jax.Array) -> tuple[jax.Array, jax.Array]:
  x_MA, kernel_AB = residuals
  return gradient_MB @ kernel_AB.T, product_of_rows(x_MA, gradient_MB)


linear.defvjp(_linear_forward, _linear_backward)


def product_of_rows(
  a_MA: Float[Array, "M A"], b_MB: Float[Array, "M B"], *, dtype: Any = None
) -> Float[Array, "A B"]:
  """Returns `a.T @ b`, the sum over rows m of the outer products of a_m and b_m.

  Args:
    a_MA: The first matrix.
    b_MB: The second matrix, with the same number of rows.
    dtype: Dtype of the sums and the result (default: the dtype of the operands).
  """

  def directly(a_MA: jax.Array, b_MB: jax.Array) -> jax.Array:
    return jnp.matmul(a_MA.T, b_MB, preferred_element_type=dtype)

  def transposing_first(a_MA: jax.Array, b_MB: jax.Array) -> jax.Array:
    if a_MA.shape[1] <= b_MB.shape[1]:
      a_AM = jax.lax.optimization_barrier(a_MA.T)
      return jnp.matmul(a_AM, b_MB, preferred_element_type=dtype)
    b_BM = jax.lax.optimization_barrier(b_MB.T)
    product_BA = jnp.matmul(b_BM, a_MA, preferred_element_type=dtype)
    return jax.lax.optimization_barrier(product_BA).T

  return jax.lax.platform_dependent(a_MA, b_MB, cpu=transposing_first, default=directly)
