"""Does units in processes on this machine."""

import concurrent.futures
import dataclasses
import itertools
import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, process
from multiprocessing.sharedctypes import Synchronized

from vmsst import errors
from vmsst.units import base, engines
from vmsst.units.base import Unit

_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


@dataclasses.dataclass(frozen=True)
class Local(engines.Engine):
  """Processes on this machine.

  Attributes:
    workers: Number of processes; 1 is this process, unless it gets its own GPUs.
    gpus_per_worker: GPUs of each process, whose numbers are distinct; 0: all processes see all
      devices.
  """

  workers: int = 1
  gpus_per_worker: int = 0

  this_machine = True

  @property
  def in_process(self) -> bool:  # type: ignore[override]
    """Whether units are made in this process."""
    return self.workers == 1 and not self.gpus_per_worker

  def work(self, title: str, units: Sequence[Unit]) -> Iterator[Unit]:
    """See `engines.Engine`."""
    if self.in_process:
      yield from base.do(title, units)
      return
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible and self.workers * self.gpus_per_worker > len(visible.split(",")):
      raise errors.InputError(
        f"{self.workers} workers with {self.gpus_per_worker} GPUs each need more than those of "
        f"CUDA_VISIBLE_DEVICES={visible}; use fewer workers"
      )
    tasks = engines.tasks(units, self.workers)
    # Spawned, because threads of this process do not survive a fork.
    context = multiprocessing.get_context("spawn")
    pool = concurrent.futures.ProcessPoolExecutor(
      min(self.workers, len(tasks)),
      mp_context=context,
      initializer=_start_worker,
      initargs=(context.Value("i", 0), self.workers, self.gpus_per_worker),
    )

    def submit(task: engines.Task) -> "Future[None]":
      return pool.submit(engines.do_task, title, task)

    def failed(error: Exception, task: engines.Task, running: Sequence[engines.Task]) -> None:
      if not isinstance(error, process.BrokenProcessPool):
        raise error
      names = list(dict.fromkeys(map(str, itertools.chain(task, *running))))
      others = f" or one of {len(names) - 1} others" if len(names) > 1 else ""
      raise errors.InputError(
        f"{title}: a worker process was killed at {names[0]}{others} (if memory ran out, use fewer "
        f"workers); {base.RESUME}"
      ) from None

    try:
      yield from engines.keep_busy(tasks, self.workers, submit, failed)
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
