"""Signal handlers of commands. Importing this module takes a millisecond."""

import contextlib
import signal
from collections.abc import Iterator
from typing import Any


@contextlib.contextmanager
def default_interrupt() -> Iterator[None]:
  """Makes Ctrl-C end the process inside, unless the process has a handler of its own.

  Python would raise an exception, which libraries do not expect while they are imported.
  """
  former = replace(signal.SIG_DFL, signal.SIGINT)
  signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # see `launch.main`
  try:
    yield
  finally:
    restore(former)


def replace(handler: Any, *numbers: int) -> dict[int, Any]:
  """Sets the handler of signals that have the one Python starts with; returns the former ones."""
  usual = (signal.SIG_DFL, signal.default_int_handler)
  try:
    return {n: signal.signal(n, handler) for n in numbers if signal.getsignal(n) in usual}
  except ValueError:  # not in the main thread, which handles signals
    return {}


def restore(handlers: dict[int, Any]) -> None:
  """Sets handlers that `replace` has returned."""
  for number, handler in handlers.items():
    signal.signal(number, handler)


@contextlib.contextmanager
def preserve_handlers() -> Iterator[None]:
  """Restores the handlers of Ctrl-C and SIGTERM that a library inside replaces, also in C."""
  handlers: dict[int, Any] = {n: signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)}
  try:
    yield
  finally:
    with contextlib.suppress(ValueError):  # not in the main thread, which handles signals
      restore(handlers)
