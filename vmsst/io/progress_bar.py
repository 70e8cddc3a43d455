"""The progress bar of all long work."""

import contextlib
import math
import sys
from collections.abc import Iterator
from typing import Any, Literal

import tqdm

from vmsst.io import watchdog

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
        it is closed; see `reach`.
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
    watchdog.alive()
    if _outer and _outer[0] is not self:
      _outer[0].update(n)
    return super().update(n)

  def reach(self, n: int) -> None:
    """Advances to `n`, unless other bars have done so."""
    self.update(max(0, n - self.n))

  def close(self) -> None:
    """Ends the bar; where it prints lines, without a last one."""
    if getattr(self, "_lines", False):
      self.delay = math.inf
    _outer[:] = [bar for bar in _outer if bar is not self]
    super().close()
