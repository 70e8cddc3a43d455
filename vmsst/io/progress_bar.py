"""Progress bars, and a watchdog that ends a command that makes no progress.

Without a watchdog, a job that waits for an unresponsive file system would occupy its machines until
somebody notices. `watchdog` sets a time limit. Each step or batch calls `alive` to reset the
watchdog timer. Each progress bar update also resets the timer.
"""

import contextlib
import faulthandler
import math
import os
import sys
import time
from collections.abc import Iterator
from typing import Any, Literal

import tqdm

LINE_SECONDS = 15.0  # seconds between progress lines if standard error is not a terminal

_where: Literal["terminal", "anywhere", "nowhere"] = "terminal"


@contextlib.contextmanager
def shown(scope: Literal["terminal", "anywhere", "nowhere"]) -> Iterator[None]:
  """Context manager that sets where progress bars are shown (by default, only on terminals).

  If `disable` is passed to a `Bar`, it overrides every `scope` except "nowhere". On a terminal, a
  bar updates one line. If a bar is shown elsewhere, it prints a new line every 15 seconds.
  """
  global _where
  before, _where = _where, scope
  try:
    yield
  finally:
    _where = before


def note(line: str) -> None:
  """Prints a progress message to standard error, unless the scope of `shown` is "nowhere"."""
  if _where != "nowhere":
    print(line, file=sys.stderr, flush=True)


_outer: list["Bar"] = []
"""The outer bar, if any. Updates to any other bar also advance the outer bar."""


class Bar(tqdm.tqdm):
  """A progress bar. Its updates reset the watchdog, even if the bar is not shown."""

  def __init__(self, *args: Any, disable: bool | None = None, lines: bool = False, **options: Any):
    """Creates a bar.

    Args:
      *args: Positional arguments for tqdm.
      disable: Whether to hide the bar (default: see `shown`).
      lines: Whether to print lines instead of a bar if standard error is not a terminal. Always
        true if `disable` is None.
      **options: Keyword arguments for tqdm, and the additional option `outer`. If `outer` is true,
        updates to any other bar, such as an encoder's bar, also advance this bar until this bar is
        closed.
    """
    is_terminal = sys.stderr is not None and sys.stderr.isatty()
    self._lines = not is_terminal and (lines or disable is None)
    if disable is None or _where == "nowhere":
      disable = _where == "nowhere" or not (is_terminal or _where == "anywhere")
    if self._lines:
      defaults = {"mininterval": LINE_SECONDS, "miniters": 1, "delay": LINE_SECONDS, "position": 0}
      options = defaults | options
    _outer[:] = [self] if options.pop("outer", False) else _outer
    super().__init__(*args, disable=disable, **options)
    if self._lines:
      self.sp = lambda line: print(line.lstrip("\r"), file=self.fp, flush=True)

  def update(self, n: Any = 1) -> bool | None:
    """Advances the bar by `n` and resets the watchdog."""
    alive()
    if _outer and _outer[0] is not self:
      _outer[0].update(n)
    return super().update(n)

  def close(self) -> None:
    """Closes the bar. A bar that prints lines does not print a final line."""
    if getattr(self, "_lines", False):
      self.delay = math.inf
    _outer[:] = [bar for bar in _outer if bar is not self]
    super().close()


VARIABLE = "VMSST_WATCHDOG_MINUTES"
"""Environment variable that overrides the time limit for all commands; 0 disables the watchdog."""
_limit_s = 0.0
_armed_at = 0.0


def alive() -> None:
  """Resets the watchdog timer."""
  global _armed_at
  # Reset the timer rarely, because faulthandler starts a new thread each time.
  if _limit_s and time.monotonic() - _armed_at > _limit_s / 20:
    # File descriptor 2 is standard error.
    faulthandler.dump_traceback_later(_limit_s, exit=True, file=2)
    _armed_at = time.monotonic()


@contextlib.contextmanager
def watchdog(minutes: float) -> Iterator[None]:
  """Prints all stack traces and exits with status 1 if `alive` is not called within a time limit.

  Args:
    minutes: Time limit; 0 disables the watchdog. The environment variable `VARIABLE` overrides this
      time limit.
  """
  global _limit_s, _armed_at
  _limit_s, _armed_at = 60 * float(os.environ.get(VARIABLE) or minutes), 0.0
  alive()
  try:
    yield
  finally:
    _limit_s = 0.0
    faulthandler.cancel_dump_traceback_later()
