"""Published accelerator specifications, and JAX's compilation cache on disk.

Some defaults, such as chunk sizes, depend on the device's memory and bandwidth. This module imports
JAX only when a function needs it.
"""

import dataclasses
import hashlib
import os
import pathlib
import platform
import sys
from typing import Any

_FOLDER = "JAX_COMPILATION_CACHE_DIR"
_CPU_INFO = pathlib.Path("/proc/cpuinfo")


@dataclasses.dataclass(frozen=True)
class Device:
  """Specifications of an accelerator chip.

  Attributes:
    name: Chip name.
    kinds: Substrings of JAX's `device_kind` that identify the chip.
    flops: Peak dense bfloat16 FLOP/s.
    memory: Memory in bytes.
    bandwidth: Memory bandwidth in bytes per second.
  """

  name: str
  kinds: tuple[str, ...]
  flops: float
  memory: float
  bandwidth: float


# From cloud.google.com/tpu/docs and nvidia.com/en-us/data-center. If several entries match a
# device, the first one counts.
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
  """Returns the specifications for a JAX `device_kind`, or None for unknown devices such as CPUs.

  >>> of_kind("NVIDIA H100 80GB HBM3").name
  'H100 SXM'
  """
  matching = (device for device in DEVICES if any(substring in kind for substring in device.kinds))
  return next(matching, None)


def current() -> Device | None:
  """Returns the specifications of the current mesh's devices, or of JAX's default device."""
  import jax

  mesh_device = jax.sharding.get_abstract_mesh().abstract_device
  return of_kind((mesh_device or jax.devices()[0]).device_kind)


def enable_compilation_cache() -> None:
  """Enables JAX's compilation cache on disk, so that later commands reuse compiled programs.

  Sets environment variables for this process and its children. If JAX is already imported, also
  sets JAX's options.

  The cache is below `vmsst/jax` in XDG_CACHE_HOME or ~/.cache. It holds at most 1 GiB; when it is
  full, JAX deletes the least recently used programs. This function does nothing if
  JAX_COMPILATION_CACHE_DIR is set (even to an empty value), if JAX's own cache folder option is
  set, or if the folder cannot be created.
  """
  jax = sys.modules.get("jax")
  if _FOLDER in os.environ or (jax and jax.config.jax_compilation_cache_dir):
    return
  # Programs compiled for one processor may not run on a different kind, so each kind of processor
  # has its own folder.
  processor = [platform.machine()]
  if _CPU_INFO.exists():
    kinds = ("model name", "flags", "Features")
    content = _CPU_INFO.read_text(encoding="utf-8", errors="replace").partition("\n\n")[0]
    processor += [line for line in content.splitlines() if line.startswith(kinds)]
  digest = hashlib.sha256("\n".join(processor).encode()).hexdigest()[:16]
  root = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
  folder = pathlib.Path(root, "vmsst", "jax", digest)
  try:
    folder.mkdir(parents=True, exist_ok=True)
  except OSError:
    return
  options: dict[str, Any] = {
    "jax_compilation_cache_dir": str(folder),
    "jax_compilation_cache_max_size": 1 << 30,
    "jax_persistent_cache_min_compile_time_secs": 0,  # cache fast compilations too
  }
  for name, value in options.items():
    os.environ.setdefault(name.upper(), str(value))
    if jax:
      jax.config.update(name, value)
  if jax:
    from jax.experimental.compilation_cache import compilation_cache

    # JAX looks for a cache only at its first compilation. Make it look again.
    compilation_cache.reset_cache()
