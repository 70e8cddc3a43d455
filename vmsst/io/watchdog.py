"""Ends a command that makes no progress, such as one that waits for a file system that hangs.

A job on many machines would otherwise wait, and cost, until somebody looks. `watching` sets the
limit; every step, batch or block of work calls `alive`, as progress bars do at each update.
"""

import contextlib
import faulthandler
import os
import time
from collections.abc import Iterator

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
def watching(minutes: float) -> Iterator[None]:
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
