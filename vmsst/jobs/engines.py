"""Runs units with an engine: `Local`, processes on this machine, or `ray_cluster.Ray`.

An engine decides where units are made, never what they make: all engines leave the same bytes.
"""

import abc
import collections
import concurrent.futures
import dataclasses
import itertools
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent import futures
from concurrent.futures import Future, process
from multiprocessing.sharedctypes import Synchronized
from typing import Any

from vmsst import errors
from vmsst.io import progress_bar
from vmsst.jobs import base
from vmsst.jobs.base import StagedUnit, Unit

# Most units that a worker gets at once, and least tasks per worker: few enough to balance the load.
_TASK_UNITS = 8
_TASKS_PER_WORKER = 4
# Network file systems may hide a new file for up to a minute from those who looked for it before.
_VISIBLE_SECONDS = 90

Task = Sequence[Unit]
"""Units that one worker does in sequence."""


class Engine(abc.ABC):
  """Does units somewhere.

  Attributes:
    in_process: Whether units are made in this process.
    this_machine: Whether units are made on this machine only.
  """

  in_process: bool
  this_machine: bool

  @abc.abstractmethod
  def work(self, title: str, units: Sequence[Unit]) -> Iterator[Unit]:
    """Does units that are not done; yields each when it is done.

    Raises:
      InputError: a unit failed, or the engine is not available; the message names it.
    """


def run(title: str, units: Sequence[Unit], engine: Engine) -> list[dict[str, Any]]:
  """Does the units whose results are missing; resumes after interruption.

  Args:
    title: Name of this kind of work, for messages and the progress bar.
    units: The units.
    engine: Where to do them.

  Returns:
    What each unit's `make` has returned.

  Raises:
    InputError: a unit failed; finished units are kept.
  """
  todo = [unit for unit in units if base.result(unit, verify=True) is None]
  total = sum(unit.size for unit in units)
  done = total - sum(unit.size for unit in todo)
  with progress_bar.Bar(total=total, initial=done, desc=title, outer=total > len(units)) as bar:
    if todo:
      for unit in engine.work(title, todo):
        done += unit.size
        bar.reach(done)
  end = time.monotonic() + (0 if engine.this_machine else _VISIBLE_SECONDS)
  return [_awaited(title, unit, end) for unit in units]


def _awaited(title: str, unit: Unit, end: float) -> dict[str, Any]:
  """Returns the result of a unit that is done, which must be visible by the time `end`."""
  while (made := base.result(unit)) is None:
    if time.monotonic() >= end:
      raise errors.InputError(
        f"{title} of {unit}: its result is missing at {unit.path}; use a file system that all "
        "workers share with this process"
      )
    time.sleep(0.1)
  return made


def tasks(units: Sequence[Unit], workers: int) -> list[Task]:
  """Returns units in the portions that workers get: several staged ones, so that stages overlap."""
  size = 1
  if all(isinstance(unit, StagedUnit) for unit in units):
    size = max(1, min(_TASK_UNITS, len(units) // (_TASKS_PER_WORKER * workers)))
  return [units[start : start + size] for start in range(0, len(units), size)]


def do_task(title: str, task: Task) -> None:
  """Does the units of a task in this process, which is a worker."""
  collections.deque(base.do(title, task), maxlen=0)


def keep_busy(
  waiting: Sequence[Task],
  most: int,
  submit: Callable[[Task], "Future[None]"],
  failed: Callable[[Exception, Task, Sequence[Task]], None],
) -> Iterator[Unit]:
  """Runs at most `most` tasks at a time; yields the units of each that is done.

  Args:
    waiting: The tasks.
    most: Number of tasks to run at a time.
    submit: Starts a task.
    failed: Gets the error of a failed task, the task, and all tasks that ran: raises the error to
      report, or returns to start the task again.
  """
  queue = collections.deque(waiting)
  running: dict[Future[None], Task] = {}
  while queue or running:
    while queue and len(running) < most:
      task = queue.popleft()
      running[submit(task)] = task
    for future in futures.wait(running, return_when=futures.FIRST_COMPLETED).done:
      try:
        future.result()
      except Exception as error:
        failed(error, running[future], list(running.values()))
        queue.append(running.pop(future))
      else:
        yield from running.pop(future)


_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


@dataclasses.dataclass(frozen=True)
class Local(Engine):
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
    """See `Engine`."""
    if self.in_process:
      yield from base.do(title, units)
      return
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible and self.workers * self.gpus_per_worker > len(visible.split(",")):
      raise errors.InputError(
        f"{self.workers} workers with {self.gpus_per_worker} GPUs each need more than those of "
        f"CUDA_VISIBLE_DEVICES={visible}; use fewer workers"
      )
    todo = tasks(units, self.workers)
    others = {*multiprocessing.active_children()}
    # Spawned, because threads of this process do not survive a fork.
    context = multiprocessing.get_context("spawn")
    pool = concurrent.futures.ProcessPoolExecutor(
      min(self.workers, len(todo)),
      mp_context=context,
      initializer=_start_worker,
      initargs=(context.Value("i", 0), self.workers, self.gpus_per_worker),
    )

    def submit(task: Task) -> "Future[None]":
      return pool.submit(do_task, title, task)

    def failed(error: Exception, task: Task, running: Sequence[Task]) -> None:
      if not isinstance(error, process.BrokenProcessPool):
        raise error
      names = list(dict.fromkeys(map(str, itertools.chain(task, *running))))
      others = f" or one of {len(names) - 1} others" if len(names) > 1 else ""
      raise errors.InputError(
        f"{title}: a worker process was killed at {names[0]}{others} (if memory ran out, use fewer "
        f"workers); {base.RESUME}"
      ) from None

    try:
      yield from keep_busy(todo, self.workers, submit, failed)
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
