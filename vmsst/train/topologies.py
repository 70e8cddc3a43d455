"""Devices that need not be there, to compile for, as in `t5x train --dry_run --topology=h100:8`."""

from typing import Any

import jax
from jax._src import xla_bridge
from jax.experimental import topologies

from vmsst.errors import InputError

# By name: compute capability, cores, floating-point units of a core, GHz, bytes of shared memory of
# a core, of L2 cache and of memory, and bytes per second; as in XLA's descriptions of these GPUs.
_GPUS = {
  "a100": (8, 108, 64, 1.41, 167_936, 41_943_040, 85_100_068_864, 2_039_040_000_000),
  "h100": (9, 132, 128, 1.98, 233_472, 52_428_800, 84_942_979_072, 3_352_320_000_000),
  "h200": (9, 132, 128, 1.98, 233_472, 52_428_800, 151_397_597_184, 4_800_000_000_000),
  "b200": (10, 148, 128, 1.965, 233_472, 132_644_864, 191_514_411_008, 7_672_320_000_000),
}
_DESCRIPTION = """
gpu_device_info {{
  cuda_compute_capability {{ major: {0} minor: 0 }}
  core_count: {1} fpus_per_core: {2} clock_rate_ghz: {3}
  threads_per_block_limit: 1024 threads_per_warp: 32 threads_per_core_limit: 2048
  shared_memory_per_block: 49152 shared_memory_per_core: {4} shared_memory_per_block_optin: {8}
  registers_per_core_limit: 65536 registers_per_block_limit: 65536
  block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
  l2_cache_size: {5} device_memory_size: {6} memory_bandwidth: {7}
}}
platform_name: "CUDA"
dnn_version_info {{ major: 9 minor: 10 patch: 0 }}
runtime_version {{ major: 12 minor: 8 patch: 0 }}
device_description_str: "NVIDIA {9}"
"""


def devices(name: str) -> list[Any]:
  """Returns devices for a mesh whose functions are compiled, but cannot be called.

  Args:
    name: GPUs of one machine, such as `h100:8` (or a100, h200, b200), or a topology of TPUs as JAX
      names them, such as `v5e:2x4`.

  Raises:
    InputError: the name is unknown, or JAX's package for these devices is not installed.
  """
  kind, _, count = name.partition(":")
  jax.config.update("jax_platforms", "cpu")  # arrays are on this machine
  try:
    if kind not in _GPUS:
      return list(topologies.get_topology_desc(name, platform="tpu").devices)
    sizes = _GPUS[kind]
    description = _DESCRIPTION.format(*sizes, sizes[4] - 1024, kind.upper())
    # JAX looks for the platform "gpu" among the backends of this machine, which has none. There is
    # no public way to name another one.
    canonical = xla_bridge.canonicalize_platform
    xla_bridge.canonicalize_platform = lambda platform: (
      "cuda" if platform in ("gpu", "cuda") else canonical(platform)
    )
    topology = topologies.get_topology_desc(
      platform="cuda", target_config=description, topology=f"1x1x{int(count)}"
    )
    return list(topology.devices)
  except Exception as error:  # The classes of libtpu's errors differ between versions.
    raise InputError(
      f"--topology={name}: {str(error).splitlines()[0]}; give {', '.join(_GPUS)} and a number, as "
      "in h100:8 (pip install 'vmsst[cuda12]'), or TPUs, as in v5e:2x4 (pip install libtpu)"
    ) from None
