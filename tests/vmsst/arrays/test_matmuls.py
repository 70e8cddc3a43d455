import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vmsst.arrays import matmuls
from vmsst.losses import fused_gradients


def arrays(*shapes):
  rng = np.random.default_rng(0)
  return [rng.normal(size=shape).astype(np.float32) for shape in shapes]


@pytest.mark.parametrize(("width", "other"), [(3, 5), (5, 3), (4, 4)])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_product_of_rows_sums_outer_products(width, other, dtype):
  a_MA, b_MB = (jnp.asarray(x, dtype) for x in arrays((7, width), (7, other)))
  expected = sum(np.outer(a, b) for a, b in zip(*map(np.float64, (a_MA, b_MB)), strict=True))
  for product in (
    lambda a, b: matmuls.product_of_rows(a, b, dtype=jnp.float32),
    lambda a, b: fused_gradients.product_of_rows(a, b, dtype),
    lambda a, b: fused_gradients.matmul(a.T, b, dtype),
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

  np.testing.assert_allclose(matmuls.linear(x_MA, kernel_AB), x_MA @ kernel_AB, rtol=1e-5)
  for found, expected in zip(gradients(matmuls.linear), gradients(jnp.matmul), strict=True):
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
