"""Runs units with an engine: `local.Local` or `ray_cluster.Ray`.

An engine decides where units are made, never what they make: all engines leave the same bytes.
"""

import abc
import collections
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent import futures
from concurrent.futures import Future
from typing import Any

from vmsst import errors
from vmsst.io import progress_bar
from vmsst.units import base
from vmsst.units.base import StagedUnit, Unit

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


def run(
  title: str, units: Sequence[Unit], engine: Engine, *, progress: bool | None = None
) -> list[dict[str, Any]]:
  """Does the units whose results are missing; resumes after interruption.

  Args:
    title: Name of this kind of work, for messages and the progress bar.
    units: The units.
    engine: Where to do them.
    progress: Show a progress bar; None: on a terminal only.

  Returns:
    What each unit's `make` has returned.

  Raises:
    InputError: a unit failed; finished units are kept.
  """
  todo = [unit for unit in units if base.result(unit, verify=True) is None]
  disable = None if progress is None else not progress
  done = len(units) - len(todo)
  with progress_bar.Bar(total=len(units), initial=done, desc=title, disable=disable) as bar:
    if todo:
      for _ in engine.work(title, todo):
        bar.update()
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
