"""Ends a command that makes no progress, such as one whose file system hangs.

A job on many machines would otherwise wait, and cost, until somebody looks. `watching` sets the
limit; every step, batch or block of work calls `alive`, as progress bars do at each update.
"""

import contextlib
import faulthandler
import os
import threading
import time
from collections.abc import Iterator

from vmsst import errors

VARIABLE = "VMSST_WATCHDOG_MINUTES"
"""Environment variable that replaces the limits of all commands; 0: no limit."""
_POLLS = 20  # within a limit
_last_sign = time.monotonic()


def alive() -> None:
  """Tells the watchdog that work goes on."""
  global _last_sign
  _last_sign = time.monotonic()


@contextlib.contextmanager
def watching(command: str, minutes: float) -> Iterator[None]:
  """Ends the process with status 1 if nothing calls `alive` for so long; prints all stack traces.

  Args:
    command: Name of the command, for the message.
    minutes: The limit, unless the environment variable is set; 0: no limit.

  Raises:
    InputError: the environment variable is not a number.
  """
  limit_s = 60 * _limit(minutes)
  if not limit_s:
    yield
    return
  ended = threading.Event()
  stderr = os.dup(2)  # it may be redirected later

  def watch() -> None:
    while not ended.wait(limit_s / _POLLS):
      if time.monotonic() - _last_sign > limit_s:
        _end(command, limit_s / 60, stderr)

  alive()
  threading.Thread(target=watch, name="watchdog", daemon=True).start()
  try:
    yield
  finally:
    ended.set()
    os.close(stderr)


def _limit(minutes: float) -> float:
  text = os.environ.get(VARIABLE, "")
  try:
    given = float(text) if text else minutes
  except ValueError:
    given = -1.0
  if not 0 <= given < float("inf"):
    raise errors.InputError(f"{VARIABLE} is {text!r}; set it to a number of minutes, or 0 for none")
  return given


def _end(command: str, minutes: float, stderr: int) -> None:
  """Prints the stack traces of all threads and a message, and ends the process at once."""
  try:
    faulthandler.dump_traceback(stderr, all_threads=True)
    message = (
      f"{command}: error: no progress for {minutes:g} minutes, so the process was ended; the stack "
      f"traces above show where it waited. Rerun the same command to resume; {VARIABLE} sets "
      "another limit, 0 none\n"
    )
    os.write(stderr, message.encode())
  finally:
    os._exit(1)
