"""Writes the parts of a job on a Ray cluster: of this machine, or many that share their files."""

import collections
import dataclasses
import logging
import os
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from typing import Any

from vmsst import errors
from vmsst.jobs import engines, signals

ATTEMPTS = 4
"""How often a task is tried if its worker or its node dies."""


@dataclasses.dataclass(frozen=True)
class Ray(engines.Engine):
  """A Ray cluster, whose nodes have this package and see the same files as this process.

  Parts that are lost with a worker or node are written elsewhere. If this process is in a cluster
  already (`ray.init`), it is used.

  Attributes:
    address: HOST:PORT or `ray://HOST:PORT` of a cluster; None: that of $RAY_ADDRESS, one that runs
      on this machine, or a new one on this machine.
    workers: Number of tasks to run at a time; None: as many as the cluster has room for. A task
      takes one CPU.
    gpus_per_worker: GPUs of each task.
  """

  address: str | None = None
  workers: int | None = None
  gpus_per_worker: int = 0

  in_process = False
  this_machine = False

  def work(self, title: str, do: engines.Do, parts: engines.Parts) -> Iterator[Any]:
    """See `engines.Engine`."""
    ray = _connected(self.address)
    workers = self.workers or _room(ray, self.gpus_per_worker)
    # Lost tasks are started again here, and not by Ray, which has no limit for some causes. A
    # worker does many tasks (max_calls), also if it has GPUs, so that it keeps what it has loaded.
    do_task = ray.remote(max_retries=0, max_calls=0, num_cpus=1, num_gpus=self.gpus_per_worker)(
      engines.do_task
    )
    lost: collections.Counter[int] = collections.Counter()

    def submit(task: engines.Parts) -> "Future[list[Any]]":
      return do_task.remote(do, task).future()

    def failed(error: Exception, task: engines.Parts, running: Sequence[engines.Parts]) -> None:
      del running
      if isinstance(error, ray.exceptions.RayTaskError):
        raise error.cause from None
      if not isinstance(error, ray.exceptions.RayError):
        raise error
      lost[id(task)] += 1
      if lost[id(task)] == ATTEMPTS:
        raise errors.InputError(
          f"{title} of {task[0]}: its worker was lost {ATTEMPTS} times, the last time because: "
          f"{_reason(error)} (if memory ran out, use fewer workers); {engines.RESUME}"
        ) from None

    yield from engines.keep_busy(engines.tasks(parts, workers), workers, submit, failed)


def _connected(address: str | None) -> Any:
  """Returns the module `ray`, connected to a cluster."""
  with errors.requires("ray", "--engine ray"):
    import ray
  if not ray.is_initialized():
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    address = address or os.environ.get("RAY_ADDRESS")
    try:
      # Ray warns of forks with threads.
      with signals.preserve_handlers(), warnings.catch_warnings(action="ignore"):
        ray.init(address, log_to_driver=False, logging_level=logging.ERROR)
    except (OSError, ValueError, RuntimeError, ImportError) as error:
      raise errors.InputError(
        f"no Ray cluster at {address or 'this machine'}: {_reason(error)}; start it (ray start), "
        "or give another address"
      ) from None
  return ray


def _room(ray: Any, gpus: int) -> int:
  """Returns how many tasks fit into the cluster at a time; at least 1."""
  total = ray.cluster_resources()
  if gpus > total.get("GPU", 0):
    raise errors.InputError(
      f"--gpus-per-worker is {gpus}, but the Ray cluster has {total.get('GPU', 0):.0f} GPUs; add "
      "nodes, or give a smaller number"
    )
  room = total.get("CPU", 1) if not gpus else min(total.get("CPU", 1), total["GPU"] // gpus)
  return max(1, int(room))


def _reason(error: BaseException) -> str:
  lines = str(error).strip().splitlines() or [type(error).__name__]
  return f"{lines[0]} {lines[-1]}" if lines[0].endswith(":") else lines[0]
