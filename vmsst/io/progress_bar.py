"""Progress bars, and a watchdog that ends a command that makes no progress.

Without a watchdog, a job that hangs on a file system would occupy its machines until somebody
notices. `watchdog` sets a time limit. Each step or batch calls `alive` to reset the watchdog timer,
and each progress bar update resets the timer too.
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
"""Seconds between two progress lines outside of a terminal."""

_where: Literal["terminal", "anywhere", "nowhere"] = "terminal"


@contextlib.contextmanager
def shown(scope: Literal["terminal", "anywhere", "nowhere"]) -> Iterator[None]:
  """Sets where bars are shown inside the context. By default, bars are shown only on terminals.

  If a bar sets `disable`, only the scope "nowhere" affects it. On a terminal, a bar updates one
  line. Elsewhere, a bar prints a new line every 15 seconds.
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
"""The outer bar, if any. Updates of all other bars advance the outer bar too."""


class Bar(tqdm.tqdm):
  """A progress bar. Its updates reset the watchdog, even if the bar is not shown."""

  def __init__(self, *args: Any, disable: bool | None = None, lines: bool = False, **options: Any):
    """Creates a bar.

    Args:
      *args: Arguments of tqdm.
      disable: Whether to hide the bar (default: see `shown`).
      lines: Whether to print lines outside of a terminal even if `disable` is False.
      **options: Options of tqdm. There is one additional option, `outer`. If it is true, updates
        of all other bars, such as an encoder's bar, advance this bar until it is closed.
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
"""Environment variable that overrides the time limit of all commands; 0 disables the watchdog."""
_limit_s = 0.0
_armed_at = 0.0


def alive() -> None:
  """Resets the watchdog timer."""
  global _armed_at
  # Reset the timer rarely, because faulthandler starts a new thread each time.
  if _limit_s and time.monotonic() - _armed_at > _limit_s / 20:
    faulthandler.dump_traceback_later(_limit_s, exit=True, file=2)  # file 2 is standard error
    _armed_at = time.monotonic()


@contextlib.contextmanager
def watchdog(minutes: float) -> Iterator[None]:
  """Prints all stack traces and exits with status 1 if `alive` is not called within a time limit.

  Args:
    minutes: Time limit; 0 disables the watchdog. The environment variable overrides this value.
  """
  global _limit_s, _armed_at
  _limit_s, _armed_at = 60 * float(os.environ.get(VARIABLE) or minutes), 0.0
  alive()
  try:
    yield
  finally:
    _limit_s = 0.0
    faulthandler.cancel_dump_traceback_later()
