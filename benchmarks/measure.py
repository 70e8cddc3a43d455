"""Measurements that benchmarks share: processes, times, memory and devices."""

import functools
import importlib.metadata
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

# Makes Linux back large allocations with huge pages, as `t5x` and `vmsst finetune` do. Otherwise,
# XLA's CPU client reallocates its temporary memory in pages of 4 KiB in each step.
HUGE_PAGES = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}


def in_own_process(
  script: str, arguments: Iterable[str], name: str, environment: Mapping[str, str] | None = None
) -> Any:
  """Returns the last line of a script's output, parsed as JSON.

  Args:
    script: Path of the script.
    arguments: Command-line arguments.
    name: Name of the measurement in the error message.
    environment: Environment variables to set.

  Raises:
    SystemExit: If the script fails.
  """
  done = subprocess.run(
    [sys.executable, script, *arguments],
    stdout=subprocess.PIPE,
    text=True,
    check=False,
    env={**os.environ, **(environment or {})},
  )
  if done.returncode:
    raise SystemExit(f"{name} failed (exit code {done.returncode})")
  return json.loads(done.stdout.splitlines()[-1])


def in_turns(
  variants: Iterable[str], rounds: int, measure: Callable[[str], dict[str, Any]]
) -> dict[str, list[dict[str, Any]]]:
  """Measures each variant once per round; returns the measurements by variant."""
  runs: dict[str, list[dict[str, Any]]] = {variant: [] for variant in variants}
  for _ in range(rounds):
    for variant, measurements in runs.items():
      measurements.append(measure(variant))
  return runs


def timed(run: Callable[[], Any], repeats: int, *, warm_up: int = 1) -> dict[str, list[float]]:
  """Returns `seconds` and `cpu_seconds` of each call after `warm_up` calls.

  Args:
    run: Function to time. It must wait until its computations are done.
    repeats: Number of timed calls.
    warm_up: Number of untimed calls first, for compilation.
  """
  seconds, cpu_seconds = [], []
  for _ in range(warm_up + repeats):
    start, cpu_start = time.perf_counter(), time.process_time()
    run()
    seconds.append(time.perf_counter() - start)
    cpu_seconds.append(time.process_time() - cpu_start)
  return {"seconds": seconds[warm_up:], "cpu_seconds": cpu_seconds[warm_up:]}


def all_of(runs: Iterable[Mapping[str, Sequence[float]]], name: str) -> list[float]:
  """Concatenates the lists with this name from all runs."""
  return [value for run in runs for value in run[name]]


def summary(values: Sequence[float]) -> dict[str, float]:
  """Returns the minimum and the median."""
  return {"min": round(min(values), 4), "median": round(statistics.median(values), 4)}


def resident_bytes(pid: int | str = "self", *, peak: bool = False) -> int:
  """Returns the current or peak resident memory of a process; 0 if the process has ended."""
  try:
    status = pathlib.Path(f"/proc/{pid}/status").read_text(encoding="ascii")
  except OSError:
    return 0
  match = re.search(rf"{'VmHWM' if peak else 'VmRSS'}:\s+(\d+) kB", status)
  return 1024 * int(match.group(1)) if match else 0


def reset_peak() -> None:
  """Resets the peak of this process's resident memory to its current value."""
  pathlib.Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


def device_bytes(*, peak: bool = False) -> int:
  """Returns the memory in use on JAX's first device; on a CPU, the memory of this process."""
  import jax

  stats = jax.devices()[0].memory_stats()
  if stats:
    return stats["peak_bytes_in_use" if peak else "bytes_in_use"]
  return resident_bytes(peak=peak)


def jax_device() -> str:
  """Returns the platform and kind of JAX's first device."""
  import jax

  device = jax.devices()[0]
  return f"{device.platform} {device.device_kind}"


def matmul_gflops(
  size: int = 1024, repeats: int = 10, *, dtype: str = "float32", precision: str | None = None
) -> float:
  """Returns the current rate of matmuls on JAX's first device, in GFLOP/s.

  On a shared machine, this rate varies. Divide throughputs by it before you compare them.
  """
  import jax
  import jax.numpy as jnp

  # Random values, because GPUs multiply constant matrices faster.
  matrix = jax.random.normal(jax.random.key(0), (size, size), dtype)
  matmul = functools.partial(jnp.matmul, precision=precision)
  product = jax.jit(matmul).lower(matrix, matrix).compile()
  times = timed(lambda: jax.block_until_ready(product(matrix, matrix)), repeats)
  return round(2 * size**3 / min(times["seconds"]) / 1e9, 1)


def numpy_gflops(size: int = 2048) -> float:
  """Returns the current rate of NumPy's float32 matmuls, in GFLOP/s."""
  import numpy as np

  one = np.ones((size, size), np.float32)
  times = timed(lambda: one @ one, 3)
  return round(2 * size**3 / min(times["seconds"]) / 1e9, 1)


def machine(*packages: str) -> dict[str, Any]:
  """Returns the number of CPUs and the versions of packages."""
  versions = {name: importlib.metadata.version(name) for name in packages}
  return {"cpus": os.cpu_count(), "versions": versions}
