"""Stops a run on SIGTERM or SIGINT, after a checkpoint."""

import contextlib
import signal
from collections.abc import Callable, Iterator
from typing import Any

import jax
from jax.experimental import multihost_utils


class _Interrupted(BaseException):
  """Ends the work of `StopRequest.at_once`."""


class StopRequest:
  """Whether a signal asked the run to stop.

  Attributes:
    is_set: Whether it did.
    name: Name of the signal, or "".
  """

  def __init__(self) -> None:
    self.is_set = False
    self.name = ""
    self._interrupts = False

  def set(self, name: str) -> None:
    """Records the signal `name` and interrupts the work of `at_once`."""
    self.is_set = True
    self.name = name
    if self._interrupts:
      self._interrupts = False
      raise _Interrupted

  def agreed(self, step: int) -> bool:
    """Returns whether to stop after `step`: the same in all processes, whichever got the signal."""
    if jax.process_count() > 1 and multihost_utils.reached_preemption_sync_point(step):
      self.set("SIGTERM")
    return self.is_set

  def at_once(self, work: Callable[[], None]) -> None:
    """Runs `work`, unless or until a signal arrives.

    In a multi-process run, `work` always completes: no process may leave the others alone with it.
    """
    self._interrupts = jax.process_count() == 1
    try:
      if not self.is_set:
        work()
      self._interrupts = False
    except _Interrupted:
      pass


@contextlib.contextmanager
def stop_on_signal(stop: StopRequest) -> Iterator[None]:
  """Makes SIGTERM and SIGINT set `stop`; a second SIGINT interrupts at once.

  In a multi-process run, `jax.distributed` handles SIGTERM and informs all processes.
  """
  previous: dict[int, Any] = {}

  def handle(number: int, frame: Any) -> None:
    if number == signal.SIGINT:
      signal.signal(signal.SIGINT, previous[signal.SIGINT])
    stop.set(signal.Signals(number).name)

  try:
    for number in (signal.SIGTERM, signal.SIGINT) if jax.process_count() == 1 else ():
      previous[number] = signal.signal(number, handle)
  except ValueError:  # not in the main thread: the caller handles signals
    pass
  try:
    yield
  finally:
    for signum, handler in previous.items():
      signal.signal(signum, handler)
