import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax.linen import partitioning

from vmsst.arrays import sharding
from vmsst.train import partitioning as runtime_partitioning


@pytest.mark.parametrize(
  ("axes", "spec"), [(("embed", "mlp"), (None, "model")), (("joined_kv", "embed"), ("model", None))]
)
def test_kernels_are_gathered_along_embed_and_stay_sharded_along_other_axes(axes, spec):
  mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]).reshape(1, 1), ("data", "model"))
  fully_sharded = runtime_partitioning.standard_logical_axis_rules(1, 2)
  with jax.set_mesh(mesh), partitioning.axis_rules(fully_sharded):
    program = jax.make_jaxpr(lambda kernel: sharding.gathered(kernel, axes))(jnp.ones((2, 4)))
  (equation,) = program.eqns
  assert equation.params["sharding"].spec == jax.sharding.PartitionSpec(*spec)


def test_a_kernel_stays_as_it_is_without_rules():
  kernel = jnp.ones((2, 4))
  assert sharding.gathered(kernel, ("embed", "mlp")) is kernel
