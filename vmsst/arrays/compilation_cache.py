"""A cache on disk of what JAX has compiled, so that a second command compiles nothing again."""

import hashlib
import os
import pathlib
import platform

_FOLDER = "JAX_COMPILATION_CACHE_DIR"
_CPU_INFO = pathlib.Path("/proc/cpuinfo")


def enable() -> None:
  """Sets JAX's variables for this process and its children; call it before JAX is imported.

  The folder is `vmsst/jax` in XDG_CACHE_HOME or ~/.cache. It holds 1 GiB at most; JAX deletes what
  was unused the longest. Does nothing if JAX_COMPILATION_CACHE_DIR is set, even to an empty value,
  or if the folder cannot be made.
  """
  if _FOLDER in os.environ:
    return
  # Programs for one kind of processor may not run on another.
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
  os.environ[_FOLDER] = str(folder)
  os.environ.setdefault("JAX_COMPILATION_CACHE_MAX_SIZE", str(1 << 30))
  # Many small programs take long together.
  os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
