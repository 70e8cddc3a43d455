"""Where the parts of a job are written: `Local` processes, or a `Ray` cluster.

An engine decides where parts are written, never what they contain: all engines leave the same
bytes.
"""

import collections
import concurrent.futures
import logging
import math
import multiprocessing
import os
import signal
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent import futures
from concurrent.futures import Future, process
from multiprocessing.sharedctypes import Synchronized
from typing import Any, ClassVar

import msgspec

from vmsst import errors
from vmsst.jobs import command_process

RESUME = "finished parts are kept; fix this and rerun the same command to resume"
# Most parts of a task, and fewest tasks per worker: few enough to balance the load.
_TASK_PARTS = 8
_TASKS_PER_WORKER = 4

Parts = Sequence[Any]
Do = Callable[[Parts], Iterable[Any]]
"""Writes parts in sequence; yields what it returns for each. Must be picklable for processes."""


def tasks(parts: Parts, workers: int) -> list[Parts]:
  """Returns parts in the portions that workers get."""
  size = max(1, min(_TASK_PARTS, len(parts) // (_TASKS_PER_WORKER * workers)))
  return [parts[start : start + size] for start in range(0, len(parts), size)]


def do_task(do: Do, task: Parts) -> list[Any]:
  """Writes the parts of a task in this process, which is a worker."""
  return list(do(task))


def keep_busy(
  waiting: Sequence[Parts],
  most: int,
  submit: Callable[[Parts], "Future[list[Any]]"],
  on_failure: Callable[[Exception, Parts], None] | None = None,
) -> Iterator[Any]:
  """Runs at most `most` tasks at a time; yields the results of each that is done.

  Args:
    waiting: The tasks.
    most: Number of tasks to run at a time.
    submit: Starts a task.
    on_failure: Gets the error of a failed task, and the task: raises the error to report, or
      returns to start the task again (default: raises the error).
  """
  queue = collections.deque(waiting)
  running: dict[Future[list[Any]], Parts] = {}
  while queue or running:
    while queue and len(running) < most:
      task = queue.popleft()
      running[submit(task)] = task
    for future in futures.wait(running, return_when=futures.FIRST_COMPLETED).done:
      task = running[future]
      try:
        results = future.result()
      except Exception as error:
        if on_failure is None:
          raise
        on_failure(error, task)
        queue.append(task)
        results = []
      del running[future]
      yield from results


_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


class Local(msgspec.Struct, frozen=True):
  """Processes on this machine.

  Attributes:
    workers: Number of processes; 1 is this process, unless it gets its own GPUs.
    gpus_per_worker: GPUs of each process, whose numbers are distinct; 0: all processes see all
      devices.
  """

  workers: int = 1
  gpus_per_worker: int = 0

  this_machine: ClassVar[bool] = True

  @property
  def in_process(self) -> bool:
    """Whether parts are written in this process."""
    return self.workers == 1 and not self.gpus_per_worker

  def work(self, title: str, do: Do, parts: Parts) -> Iterator[Any]:
    """Writes parts; yields what `do` yields."""
    if self.in_process or not parts:
      yield from do(parts)
      return
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible and self.workers * self.gpus_per_worker > len(visible.split(",")):
      raise errors.InputError(
        f"{self.workers} workers with {self.gpus_per_worker} GPUs each need more GPUs than "
        f"CUDA_VISIBLE_DEVICES={visible}; use fewer workers"
      )
    waiting = tasks(parts, self.workers)
    others = {*multiprocessing.active_children()}
    # Spawned, because threads of this process do not survive a fork.
    context = multiprocessing.get_context("spawn")
    pool = concurrent.futures.ProcessPoolExecutor(
      min(self.workers, len(waiting)),
      mp_context=context,
      initializer=_start_worker,
      initargs=(context.Value("i", 0), self.workers, self.gpus_per_worker),
    )
    try:
      yield from keep_busy(waiting, self.workers, lambda task: pool.submit(do_task, do, task))
    except process.BrokenProcessPool:
      raise errors.InputError(
        f"{title}: a worker process was killed (if memory ran out, use fewer workers); {RESUME}"
      ) from None
    except BaseException:
      for worker in {*multiprocessing.active_children()} - others:  # A task may take hours.
        worker.terminate()
      raise
    finally:
      pool.shutdown(cancel_futures=True)


def _start_worker(started: "Synchronized[int]", workers: int, gpus: int) -> None:
  """Assigns cores and GPUs; makes a worker exit silently if interrupted or its parent exits."""
  # Read by the libraries for matmuls, which are not loaded yet.
  threads = str(max(1, (os.cpu_count() or 1) // workers))
  for name in _THREADS:
    os.environ.setdefault(name, threads)
  if gpus:
    with started.get_lock():
      first = gpus * started.value
      started.value += 1
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = visible.split(",") if visible else [str(number) for number in range(first + gpus)]
    os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(names[first : first + gpus])
  signal.signal(signal.SIGINT, signal.SIG_DFL)
  parent = multiprocessing.parent_process()
  assert parent is not None

  def watch() -> None:
    parent.join()
    os._exit(1)

  threading.Thread(target=watch, daemon=True).start()


ATTEMPTS = 4
"""How often a task is tried if its worker or its node dies."""


class Ray(msgspec.Struct, frozen=True):
  """A Ray cluster, whose nodes have this package and see the same files as this process.

  Parts that are lost with a worker or node are written elsewhere. If this process is in a cluster
  already (`ray.init`), it is used.

  Attributes:
    address: HOST:PORT or `ray://HOST:PORT` of a cluster (default: $RAY_ADDRESS, a cluster that runs
      on this machine, or a new one on this machine).
    workers: Number of tasks to run at a time; None: as many as the cluster has room for. A task
      takes one CPU.
    gpus_per_worker: GPUs of each task.
  """

  address: str | None = None
  workers: int | None = None
  gpus_per_worker: int = 0

  in_process: ClassVar[bool] = False
  this_machine: ClassVar[bool] = False

  def work(self, title: str, do: Do, parts: Parts) -> Iterator[Any]:
    """Writes parts; yields what `do` yields."""
    ray = _connect(self.address)
    gpus, total = self.gpus_per_worker, ray.cluster_resources()
    if not self.workers and gpus > total.get("GPU", 0):
      raise errors.InputError(
        f"--gpus-per-worker is {gpus}, but the Ray cluster has {total.get('GPU', 0):.0f} GPUs; add "
        "nodes, or give a smaller number"
      )
    room = min(total.get("CPU", 1), total["GPU"] // gpus if gpus else math.inf)
    workers = self.workers or max(1, int(room))
    # Lost tasks are started again here, and not by Ray, which has no limit for some causes. A
    # worker does many tasks (max_calls), also if it has GPUs, so that it keeps what it has loaded.
    options = {"max_retries": 0, "max_calls": 0, "num_cpus": 1, "num_gpus": self.gpus_per_worker}
    remote = ray.remote(**options)(do_task)
    lost: collections.Counter[int] = collections.Counter()

    def submit(task: Parts) -> "Future[list[Any]]":
      return remote.remote(do, task).future()

    def on_failure(error: Exception, task: Parts) -> None:
      if isinstance(error, ray.exceptions.RayTaskError):
        raise error.cause from None
      if not isinstance(error, ray.exceptions.RayError):
        raise error
      lost[id(task)] += 1
      if lost[id(task)] == ATTEMPTS:
        raise errors.InputError(
          f"{title} of {task[0]}: its worker was lost {ATTEMPTS} times, the last time because: "
          f"{_reason(error)} (if memory ran out, use fewer workers); {RESUME}"
        ) from None

    yield from keep_busy(tasks(parts, workers), workers, submit, on_failure)


Engine = Local | Ray
"""Where parts are written."""


def _connect(address: str | None) -> Any:
  """Returns the module `ray`, connected to a cluster."""
  with errors.requires("ray", "--engine ray"):
    import ray
  if not ray.is_initialized():
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    address = address or os.environ.get("RAY_ADDRESS")
    try:
      # Ray warns of forks with threads.
      with command_process.preserve_handlers(), warnings.catch_warnings(action="ignore"):
        ray.init(address, log_to_driver=False, logging_level=logging.ERROR)
    except (OSError, ValueError, RuntimeError, ImportError) as error:
      raise errors.InputError(
        f"no Ray cluster at {address or 'this machine'}: {_reason(error)}; start it (ray start), "
        "or give another address"
      ) from None
  return ray


def _reason(error: BaseException) -> str:
  lines = str(error).strip().splitlines() or [type(error).__name__]
  return f"{lines[0]} {lines[-1]}" if lines[0].endswith(":") else lines[0]
