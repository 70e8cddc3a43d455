import jax
import pytest

from vmsst.arrays import devices


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
