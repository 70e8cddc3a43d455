"""Where activations lie on a mesh, said by logical axis names."""

import jax
from flax.linen import partitioning


def constrain(x: jax.Array, axes: tuple[str | None, ...]) -> jax.Array:
  """Returns `x`, laid out as the logical axis rules in force say; unchanged where there are none.

  Unlike flax's function of this kind it also obeys a mesh entered by `with mesh:`, which is how
  T5X's partitioners enter theirs.

  Args:
    x: An activation.
    axes: A logical name for each axis of `x`; None for one that stays whole on every device.
  """
  if not partitioning.get_axis_rules():
    return x
  return jax.lax.with_sharding_constraint(x, partitioning.logical_to_mesh_axes(axes))
