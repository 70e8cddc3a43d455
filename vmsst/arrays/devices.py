"""Published rates of accelerators, which defaults and benchmarks depend on."""

import dataclasses

import jax

_GB, _TB = 1e9, 1e12


@dataclasses.dataclass(frozen=True)
class Device:
  """A chip.

  Attributes:
    name: Name.
    kinds: Parts of JAX's `device_kind` that identify it; empty if JAX's devices are parts of it.
    flops: Peak dense bfloat16 FLOP/s.
    memory: Memory in bytes.
    bandwidth: Memory bandwidth in bytes per second.
    link: One-way bandwidth to its neighbors in bytes per second.
    source: Source of these values.
    clock: Clock rate of a TPU in Hz, at which its matrix units reach `flops`.
  """

  name: str
  kinds: tuple[str, ...]
  flops: float
  memory: float
  bandwidth: float
  link: float
  source: str
  clock: float | None = None


_MATRIX_UNIT = 2 * 128 * 128  # FLOPs per cycle
# Links of v3, v4 and v5e: the pod's all-reduce bandwidth over its chips. v5p: half of 4,800 Gbit/s.
# GPUs: half of NVLink's bandwidth, within a node of 8. The first kind that matches counts.
DEVICES = (
  Device(
    "TPU v3",
    (),
    123e12,
    32 * 2**30,
    900 * _GB,
    340 * _TB / 1024,
    "cloud.google.com/tpu/docs/v3",
    123e12 / (4 * _MATRIX_UNIT),
  ),
  Device(
    "TPU v4",
    ("TPU v4",),
    275e12,
    32 * 2**30,
    1200 * _GB,
    1100 * _TB / 4096,
    "cloud.google.com/tpu/docs/v4",
    275e12 / (8 * _MATRIX_UNIT),
  ),
  Device(
    "TPU v5e",
    ("TPU v5 lite", "TPU v5e"),
    197e12,
    16 * _GB,
    819 * _GB,
    51.2 * _TB / 256,
    "cloud.google.com/tpu/docs/v5e",
    197e12 / (4 * _MATRIX_UNIT),
  ),
  Device(
    "TPU v5p",
    ("TPU v5",),
    459e12,
    95 * _GB,
    2765 * _GB,
    300 * _GB,
    "cloud.google.com/tpu/docs/v5p",
    459e12 / (8 * _MATRIX_UNIT),
  ),
  Device(
    "A100 SXM",
    ("A100",),
    312e12,
    80 * _GB,
    2039 * _GB,
    300 * _GB,
    "nvidia.com/en-us/data-center/a100",
  ),
  Device(
    "H100 SXM",
    ("H100",),
    989.4e12,
    80 * _GB,
    3350 * _GB,
    450 * _GB,
    "nvidia.com/en-us/data-center/h100",
  ),
  Device(
    "H200 SXM",
    ("H200",),
    989.4e12,
    141 * _GB,
    4800 * _GB,
    450 * _GB,
    "nvidia.com/en-us/data-center/h200",
  ),
)
BY_NAME = {device.name: device for device in DEVICES}


def of_kind(kind: str) -> Device | None:
  """Returns the device of JAX's `device_kind`; None if it is unknown, such as a CPU.

  >>> of_kind("NVIDIA H100 80GB HBM3").name
  'H100 SXM'
  """
  found = (device for device in DEVICES if any(part in kind for part in device.kinds))
  return next(found, None)


def current() -> Device | None:
  """Returns the device of the current mesh (`jax.set_mesh`), or else JAX's default device."""
  meant = jax.sharding.get_abstract_mesh().abstract_device
  return of_kind((meant or jax.devices()[0]).device_kind)
