import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax.linen import partitioning

from vmsst.arrays import layouts
from vmsst.losses import vocabulary
from vmsst.train import partitioning as runtime_partitioning


@pytest.mark.parametrize(
  ("axes", "spec"), [(("embed", "mlp"), (None, "model")), (("joined_kv", "embed"), ("model", None))]
)
def test_kernels_are_gathered_along_embed_and_stay_sharded_along_other_axes(axes, spec):
  mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]).reshape(1, 1), ("data", "model"))
  fully_sharded = runtime_partitioning.standard_logical_axis_rules(1, 2)
  with jax.set_mesh(mesh), partitioning.axis_rules(fully_sharded):
    program = jax.make_jaxpr(lambda kernel: layouts.gather(kernel, axes))(jnp.ones((2, 4)))
  (equation,) = program.eqns
  assert equation.params["sharding"].spec == jax.sharding.PartitionSpec(*spec)


def test_a_kernel_stays_as_it_is_without_rules():
  kernel = jnp.ones((2, 4))
  assert layouts.gather(kernel, ("embed", "mlp")) is kernel


def arrays(*shapes):
  rng = np.random.default_rng(0)
  return [rng.normal(size=shape).astype(np.float32) for shape in shapes]


@pytest.mark.parametrize(("width", "other"), [(3, 5), (5, 3), (4, 4)])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_product_of_rows_sums_outer_products(width, other, dtype):
  a_MA, b_MB = (jnp.asarray(x, dtype) for x in arrays((7, width), (7, other)))
  expected = sum(np.outer(a, b) for a, b in zip(*map(np.float64, (a_MA, b_MB)), strict=True))
  for product in (
    lambda a, b: layouts.product_of_rows(a, b, dtype=jnp.float32),
    lambda a, b: vocabulary.product_of_rows(a, b, dtype),
    lambda a, b: vocabulary.matmul(a.T, b, dtype),
  ):
    found = jax.jit(product)(a_MA, b_MB)
    assert found.dtype == jnp.float32
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


def test_gradients_of_linear_are_those_of_a_matmul():
  x_MA, kernel_AB, weight_MB = arrays((6, 3), (3, 5), (6, 5))

  def gradients(product):
    return jax.jit(jax.grad(lambda x, w: jnp.sum(product(x, w) ** 2 * weight_MB), (0, 1)))(
      x_MA, kernel_AB
    )

  np.testing.assert_allclose(layouts.linear(x_MA, kernel_AB), x_MA @ kernel_AB, rtol=1e-5)
  for found, expected in zip(gradients(layouts.linear), gradients(jnp.matmul), strict=True):
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
