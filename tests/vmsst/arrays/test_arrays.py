import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax.linen import partitioning

from vmsst.arrays import devices, matmuls, sharding
from vmsst.losses import fused_gradients
from vmsst.train import partitioning as runtime_partitioning


@pytest.mark.parametrize(
  ("kind", "name"),
  [
    ("TPU v4", "TPU v4"), ("TPU v5 lite", "TPU v5e"), ("TPU v5e", "TPU v5e"), ("TPU v5", "TPU v5p"),
    ("TPU v5p", "TPU v5p"), ("NVIDIA A100-SXM4-80GB", "A100 SXM"),
    ("NVIDIA H100 80GB HBM3", "H100 SXM"), ("NVIDIA H200", "H200 SXM"), ("cpu", None),
  ],
)  # fmt: skip
def test_a_device_is_known_by_its_kind(kind, name):
  assert devices.of_kind(kind) == devices.BY_NAME.get(name)


def test_a_program_is_for_the_devices_of_its_mesh():
  assert devices.current() == devices.of_kind(jax.devices()[0].device_kind)
  tpu = jax.sharding.AbstractDevice(device_kind="TPU v5 lite", num_cores=1, platform="tpu")
  mesh = jax.sharding.AbstractMesh((8,), ("data",), abstract_device=tpu)
  with jax.sharding.use_abstract_mesh(mesh):
    assert devices.current() == devices.BY_NAME["TPU v5e"]


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


MT5 = 250112


@pytest.mark.parametrize("device", devices.DEVICES, ids=lambda device: device.name)
@pytest.mark.parametrize("columns", [60000, MT5 // 8, MT5])
def test_a_chunk_leaves_time_to_the_matmuls_unless_the_memory_is_too_small(device, columns):
  chunk = fused_gradients.default_chunk(columns, device)
  logits = 6 * chunk * columns / device.memory
  assert logits <= 1 / 12 or chunk == 512
  # Per element of the kernel: 12 bytes, and 6 FLOPs per row.
  share = (12 / device.bandwidth) / (6 * chunk / device.flops)
  assert share <= 0.1 or logits > 1 / 24  # twice as many rows would not fit
