"""Layout of activations over a mesh, by logical axis names."""

import math

import jax
from flax.linen import partitioning


def constrain(x: jax.Array, axes: tuple[str | None, ...]) -> jax.Array:
  """Returns `x` laid out by the current logical axis rules, or unchanged without rules.

  Unlike the corresponding function of flax, it also works with a mesh entered by `with mesh:`, as
  T5X's partitioners enter theirs.

  Args:
    x: An activation.
    axes: Logical name of each axis of `x`; None for an axis that is not sharded.
  """
  if not partitioning.get_axis_rules():
    return x
  return jax.lax.with_sharding_constraint(x, partitioning.logical_to_mesh_axes(axes))


def gathered(kernel: jax.Array, axes: tuple[str, str]) -> jax.Array:
  """Returns a kernel whose "embed" axis is whole on every device; other axes stay sharded.

  Without it, XLA may divide a matmul by a fully sharded kernel into partial ones, each of which
  reads and writes all outputs. Returns the kernel unchanged without logical axis rules.

  Args:
    kernel: Parameters [M, N], cast to the compute dtype, so that devices exchange fewer bytes.
    axes: Logical names of both axes.
  """
  return constrain(kernel, tuple(None if axis == "embed" else axis for axis in axes))


def mesh_axes(**sizes: int) -> tuple[tuple[str, ...], ...]:
  """Returns the mesh axes over which the current rules shard each logical axis of an array.

  Empty for an axis that is not sharded, for one whose size the mesh axes do not divide, and without
  a mesh entered by `jax.set_mesh`.

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
  """Returns the part of a logical axis on each device; see `mesh_axes`.

  Args:
    **size: Size of one logical axis.
  """
  (names,), (whole,) = mesh_axes(**size), size.values()
  mesh = jax.sharding.get_abstract_mesh().shape
  return whole // math.prod(mesh[name] for name in names)
