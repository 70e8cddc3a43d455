"""The progress bar of all long work, and the watchdog, which ends a command without progress.

A job on many machines that waits, for example for a file system that hangs, would otherwise cost
until somebody looks. `watchdog` sets the limit; every step, batch or block of work calls `alive`,
as progress bars do at each update.
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

LINE_SECONDS = 15.0
"""Time between two lines where there is no terminal."""

_where: Literal["terminal", "anywhere", "nowhere"] = "terminal"


@contextlib.contextmanager
def shown(where: Literal["terminal", "anywhere", "nowhere"]) -> Iterator[None]:
  """Sets where bars are shown while the context lasts, unless they say it themselves.

  On a terminal, a bar is a line that changes; elsewhere, one line every 15 seconds. By default,
  bars are shown on terminals alone.
  """
  global _where
  before, _where = _where, where
  try:
    yield
  finally:
    _where = before


def note(line: str) -> None:
  """Prints a line of progress to standard error, unless nothing is shown."""
  if _where != "nowhere":
    print(line, file=sys.stderr, flush=True)


_outer: list["Bar"] = []
"""The bar that other bars advance, if any."""


class Bar(tqdm.tqdm):
  """A progress bar whose updates tell the watchdog that work goes on, even if it is not shown."""

  def __init__(self, *args: Any, disable: bool | None = None, lines: bool = False, **options: Any):
    """Makes a bar.

    Args:
      *args: As of tqdm.
      disable: Whether to show nothing; None: see `shown`.
      lines: Whether to print lines even if `disable` is False, except on a terminal.
      **options: As of tqdm; and `outer`: whether other bars, such as an encoder's, advance it until
        it is closed.
    """
    is_terminal = sys.stderr is not None and sys.stderr.isatty()
    self._lines = not is_terminal and (lines or disable is None)
    if disable is None or _where == "nowhere":
      disable = _where == "nowhere" or not (is_terminal or _where == "anywhere")
    if self._lines:
      plain = {"mininterval": LINE_SECONDS, "miniters": 1, "delay": LINE_SECONDS, "position": 0}
      options = plain | options
    _outer[:] = [self] if options.pop("outer", False) else _outer
    super().__init__(*args, disable=disable, **options)
    if self._lines:
      self.sp = self._print

  def _print(self, line: str) -> None:
    print(line.lstrip("\r"), file=self.fp, flush=True)

  def update(self, n: Any = 1) -> bool | None:
    """Adds `n` to what is done."""
    alive()
    if _outer and _outer[0] is not self:
      _outer[0].update(n)
    return super().update(n)

  def close(self) -> None:
    """Ends the bar; where it prints lines, without a last one."""
    if getattr(self, "_lines", False):
      self.delay = math.inf
    _outer[:] = [bar for bar in _outer if bar is not self]
    super().close()


VARIABLE = "VMSST_WATCHDOG_MINUTES"
"""Environment variable that replaces the limits of all commands; 0: no limit."""
_limit_s = 0.0
_armed_at = 0.0


def alive() -> None:
  """Restarts the time limit."""
  global _armed_at
  # Rarely, because each call starts a thread.
  if _limit_s and time.monotonic() - _armed_at > _limit_s / 20:
    faulthandler.dump_traceback_later(_limit_s, exit=True, file=2)  # 2: standard error
    _armed_at = time.monotonic()


@contextlib.contextmanager
def watchdog(minutes: float) -> Iterator[None]:
  """Ends the process with status 1 if nothing calls `alive` for so long; prints all stack traces.

  Args:
    minutes: The limit, unless the environment variable is set; 0: no limit.
  """
  global _limit_s, _armed_at
  _limit_s, _armed_at = 60 * float(os.environ.get(VARIABLE) or minutes), 0.0
  alive()
  try:
    yield
  finally:
    _limit_s = 0.0
    faulthandler.cancel_dump_traceback_later()
