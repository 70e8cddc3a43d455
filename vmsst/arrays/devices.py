"""Published rates of accelerators, which defaults depend on."""

import dataclasses

import jax


@dataclasses.dataclass(frozen=True)
class Device:
  """A chip.

  Attributes:
    name: Name.
    kinds: Parts of JAX's `device_kind` that identify it.
    flops: Peak dense bfloat16 FLOP/s.
    memory: Memory in bytes.
    bandwidth: Memory bandwidth in bytes per second.
  """

  name: str
  kinds: tuple[str, ...]
  flops: float
  memory: float
  bandwidth: float


# By cloud.google.com/tpu/docs and nvidia.com/en-us/data-center. The first kind that matches counts.
DEVICES = (
  Device("TPU v4", ("TPU v4",), 275e12, 32 * 2**30, 1200e9),
  Device("TPU v5e", ("TPU v5 lite", "TPU v5e"), 197e12, 16e9, 819e9),
  Device("TPU v5p", ("TPU v5",), 459e12, 95e9, 2765e9),
  Device("A100 SXM", ("A100",), 312e12, 80e9, 2039e9),
  Device("H100 SXM", ("H100",), 989.4e12, 80e9, 3350e9),
  Device("H200 SXM", ("H200",), 989.4e12, 141e9, 4800e9),
)
BY_NAME = {device.name: device for device in DEVICES}


def of_kind(kind: str) -> Device | None:
  """Returns the device of JAX's `device_kind`; None if it is unknown, such as a CPU.

  >>> of_kind("NVIDIA H100 80GB HBM3").name
  'H100 SXM'
  """
  matching = (device for device in DEVICES if any(part in kind for part in device.kinds))
  return next(matching, None)


def current() -> Device | None:
  """Returns the device of the current mesh (`jax.set_mesh`), or else JAX's default device."""
  meant = jax.sharding.get_abstract_mesh().abstract_device
  return of_kind((meant or jax.devices()[0]).device_kind)
