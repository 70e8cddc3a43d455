"""Engines run the tasks of a job in `Local` processes or on a `Ray` cluster.

The files that the tasks write do not depend on the engine.
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

RESUME = "finished files are kept; fix this and rerun the same command to resume"
# Workers get tasks in batches. To balance the load, each worker gets at least 4 batches, if the
# number of tasks permits.
_BATCH_TASKS = 8
_BATCHES_PER_WORKER = 4

Tasks = Sequence[Any]
Do = Callable[[Tasks], Iterable[Any]]
"""Runs tasks in order and yields a result for each. Must be picklable to run in other processes."""


def split_tasks(tasks: Tasks, workers: int) -> list[Tasks]:
  """Splits tasks into the batches that workers get."""
  size = max(1, min(_BATCH_TASKS, len(tasks) // (_BATCHES_PER_WORKER * workers)))
  return [tasks[start : start + size] for start in range(0, len(tasks), size)]


def run_batch(do: Do, batch: Tasks) -> list[Any]:
  """Runs a batch of tasks in the current process, which is a worker."""
  return list(do(batch))


def keep_busy(
  batches: Sequence[Tasks],
  workers: int,
  submit: Callable[[Tasks], "Future[list[Any]]"],
  on_failure: Callable[[Exception, Tasks], None],
) -> Iterator[Any]:
  """Keeps all workers busy, and yields the results of each batch when it is done.

  Args:
    batches: The batches.
    workers: Number of batches to run at a time.
    submit: Starts a batch.
    on_failure: Function to call with the error and the batch that failed. If the function returns,
      the batch starts again.
  """
  queue = collections.deque(batches)
  running: dict[Future[list[Any]], Tasks] = {}
  while queue or running:
    while queue and len(running) < workers:
      batch = queue.popleft()
      running[submit(batch)] = batch
    for future in futures.wait(running, return_when=futures.FIRST_COMPLETED).done:
      batch = running.pop(future)
      try:
        yield from future.result()
      except Exception as error:
        on_failure(error, batch)
        queue.append(batch)


_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


class Local(msgspec.Struct, frozen=True):
  """Processes on this machine.

  Attributes:
    workers: Number of processes. With 1 worker and no `gpus_per_worker`, tasks run in this process.
    gpus_per_worker: Number of GPUs reserved for each process; if 0, all processes see all devices.
  """

  workers: int = 1
  gpus_per_worker: int = 0

  this_machine: ClassVar[bool] = True

  @property
  def in_process(self) -> bool:
    """Whether tasks run in this process."""
    return self.workers == 1 and not self.gpus_per_worker

  def run(self, title: str, do: Do, tasks: Tasks) -> Iterator[Any]:
    """Runs tasks and yields their results."""
    if self.in_process or not tasks:
      yield from do(tasks)
      return
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible and self.workers * self.gpus_per_worker > len(visible.split(",")):
      raise errors.InputError(
        f"{self.workers} workers with {self.gpus_per_worker} GPUs each need more GPUs than "
        f"CUDA_VISIBLE_DEVICES={visible}; use fewer workers"
      )
    queue = split_tasks(tasks, self.workers)
    former_children = {*multiprocessing.active_children()}
    # Workers are spawned: a fork would copy locks that threads of this process hold.
    context = multiprocessing.get_context("spawn")
    pool = concurrent.futures.ProcessPoolExecutor(
      min(self.workers, len(queue)),
      mp_context=context,
      initializer=_start_worker,
      initargs=(context.Value("i", 0), self.workers, self.gpus_per_worker),
    )

    def on_failure(error: Exception, batch: Tasks) -> None:
      if not isinstance(error, process.BrokenProcessPool):
        raise error
      raise errors.InputError(
        f"{title} of {batch[0]}, or a task that ran at the same time: a worker process was killed "
        f"(if memory ran out, use fewer workers); {RESUME}"
      ) from None

    try:
      yield from keep_busy(
        queue, self.workers, lambda batch: pool.submit(run_batch, do, batch), on_failure
      )
    except BaseException:
      # A task can take hours, so do not wait for the other workers.
      for worker in {*multiprocessing.active_children()} - former_children:
        worker.terminate()
      raise
    finally:
      pool.shutdown(cancel_futures=True)


def _start_worker(started: "Synchronized[int]", workers: int, gpus: int) -> None:
  """Assigns cores and GPUs to a worker process.

  The worker exits without a message when it is interrupted, or when its parent exits.
  """
  # Matrix multiplication libraries read these variables when a task loads the libraries.
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


ATTEMPTS = 4  # maximum number of times that a batch is started if its worker or node dies


class Ray(msgspec.Struct, frozen=True):
  """A Ray cluster. Its nodes must have this package and see the same files as this process.

  If a worker or a node dies, its tasks run again elsewhere. If this process is already connected to
  a cluster (`ray.init`), the engine uses that cluster.

  Attributes:
    address: HOST:PORT or `ray://HOST:PORT` of a cluster (default: $RAY_ADDRESS, a cluster that runs
      on this machine, or a new one on this machine).
    workers: Number of batches to run at a time, with one CPU each (default: as many as fit on the
      cluster).
    gpus_per_worker: Number of GPUs for each batch.
  """

  address: str | None = None
  workers: int | None = None
  gpus_per_worker: int = 0

  in_process: ClassVar[bool] = False
  this_machine: ClassVar[bool] = False

  def run(self, title: str, do: Do, tasks: Tasks) -> Iterator[Any]:
    """Runs tasks and yields their results."""
    with errors.requires("ray", "--engine ray"):
      import ray
    if not ray.is_initialized():
      os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
      address = self.address or os.environ.get("RAY_ADDRESS")
      try:
        # Ray warns about forks of processes with threads; these forks are harmless.
        with command_process.preserve_handlers(), warnings.catch_warnings(action="ignore"):
          ray.init(address, log_to_driver=False, logging_level=logging.ERROR)
      except (OSError, ValueError, RuntimeError, ImportError) as error:
        raise errors.InputError(
          f"no Ray cluster at {address or 'this machine'}: {_reason(error)}; start it (ray start), "
          "or give another address"
        ) from None
    gpus, total = self.gpus_per_worker, ray.cluster_resources()
    if not self.workers and gpus > total.get("GPU", 0):
      raise errors.InputError(
        f"--gpus-per-worker is {gpus}, but the Ray cluster has {total.get('GPU', 0):.0f} GPUs; add "
        "nodes, or give a smaller number"
      )
    capacity = min(total.get("CPU", 1), total["GPU"] // gpus if gpus else math.inf)
    workers = self.workers or max(1, int(capacity))
    # max_retries=0: Ray would restart some lost batches forever, so this class restarts them
    # itself. max_calls=0: By default, Ray ends a worker with GPUs after each call. Keep all workers
    # alive, so that a loaded encoder serves many batches.
    options: dict[str, Any] = {"max_retries": 0, "max_calls": 0, "num_cpus": 1, "num_gpus": gpus}
    remote = ray.remote(**options)(run_batch)
    losses: collections.Counter[int] = collections.Counter()

    def submit(batch: Tasks) -> "Future[list[Any]]":
      return remote.remote(do, batch).future()

    def on_failure(error: Exception, batch: Tasks) -> None:
      if isinstance(error, ray.exceptions.RayTaskError):
        raise error.cause from None
      if not isinstance(error, ray.exceptions.RayError):
        raise error
      losses[id(batch)] += 1
      if losses[id(batch)] == ATTEMPTS:
        raise errors.InputError(
          f"{title} of {batch[0]}: its worker was lost {ATTEMPTS} times, the last time because: "
          f"{_reason(error)} (if memory ran out, use fewer workers); {RESUME}"
        ) from None

    yield from keep_busy(split_tasks(tasks, workers), workers, submit, on_failure)


Engine = Local | Ray  # runs the tasks of a job


def _reason(error: BaseException) -> str:
  lines = str(error).strip().splitlines() or [type(error).__name__]
  return f"{lines[0]} {lines[-1]}" if lines[0].endswith(":") else lines[0]
