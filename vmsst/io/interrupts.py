"""Signal handlers of commands. Importing this module takes a millisecond."""

import contextlib
import signal
import sys
import threading
from collections.abc import Iterator
from typing import Any, Self


@contextlib.contextmanager
def default_interrupt() -> Iterator[None]:
  """Makes Ctrl-C end the process inside, unless the process has a handler of its own.

  Python would raise an exception, which libraries do not expect while they are imported.
  """
  former = replace(signal.SIG_DFL, signal.SIGINT)
  if sys.platform != "win32":
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
def kept() -> Iterator[None]:
  """Restores the handlers of Ctrl-C and SIGTERM that a library inside replaces, also in C."""
  handlers: dict[int, Any] = {n: signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)}
  try:
    yield
  finally:
    with contextlib.suppress(ValueError):  # not in the main thread, which handles signals
      restore(handlers)


_seen: list[int] = []
"""Signals that wait."""
_handlers: dict[int, Any] = {}
"""Handlers to restore when signals need not wait any more."""
_open: "list[Uninterrupted]" = []


class Uninterrupted(contextlib.ExitStack):
  """An exit stack that Ctrl-C and SIGTERM do not interrupt: they wait while it is entered.

  What is created and removed as a whole, whenever a signal arrives, is entered in it. `outside`
  surrounds the work in between, which signals interrupt:

      with Uninterrupted() as stack:
        file = stack.enter_context(create())
        with stack.outside():
          work(file)

  Other threads than the main one are never interrupted.
  """

  def __enter__(self) -> Self:
    """Makes signals wait."""
    self._waited = bool(_handlers)
    try:
      _wait()
    except BaseException:  # the last signal that did not wait
      _deliver()
      raise
    _open.append(self)
    return super().__enter__()

  def __exit__(self, *error: Any) -> bool | None:
    """Closes the stack, then lets signals interrupt that have waited."""
    _wait()  # A signal may have prevented the end of `outside`.
    try:
      return super().__exit__(*error)
    finally:
      if self in _open:
        _open.remove(self)
      if not self._waited:
        _deliver()

  def outside(self) -> "_Outside":
    """Returns a context manager in which signals do what they did before this stack was entered."""
    return _Outside(self._waited)


class _Outside:
  def __init__(self, waited: bool):
    self._waited = waited

  def __enter__(self) -> None:
    if not self._waited:
      _deliver()

  def __exit__(self, *error: object) -> None:
    _wait()


def check() -> None:
  """Lets signals that wait interrupt now, as work that takes long must from time to time."""
  if _seen:
    _deliver()


def close_all() -> None:
  """Closes each `Uninterrupted` of a process that is about to end."""
  for stack in reversed(_open.copy()):
    with contextlib.suppress(BaseException):
      stack.__exit__(KeyboardInterrupt, KeyboardInterrupt(), None)


def _wait() -> None:
  if threading.current_thread() is threading.main_thread() and not _handlers:
    numbers = (signal.SIGINT, signal.SIGTERM)
    # A handler of another language has no value, and cannot be restored.
    handlers = {number: signal.getsignal(number) for number in numbers}
    _handlers.update(
      {number: handler for number, handler in handlers.items() if handler is not None}
    )
    for number in _handlers:
      signal.signal(number, lambda number, _: _seen.append(number))


def _deliver() -> None:
  if threading.current_thread() is threading.main_thread():
    restore(_handlers)
    _handlers.clear()
    while _seen:
      signal.raise_signal(_seen.pop())
