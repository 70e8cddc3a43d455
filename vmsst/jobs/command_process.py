"""The process of a command, `vmsst` or `t5x`: its signals, its messages and its exit status."""

import contextlib
import os
import signal
import sys
import traceback
import types
from collections.abc import Iterator
from typing import Any

from vmsst import errors

_ENDS = {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated"}


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


class CommandProcess:
  """A command, which runs inside `with`: there, errors become a message and an exit status.

  SIGINT and SIGTERM raise an exception, so that the command removes its temporary files. During an
  import they end the process instead: libraries do not expect exceptions there. The message of an
  error is one line without control characters, whatever names of files it contains.

  Attributes:
    status: Exit status, at the end.
    hint: What the message about a signal ends with.
    verbose: Whether to show the stack traces of errors.
  """

  status = 0
  hint = ""
  verbose = False

  def __init__(self, name: str, *, owns_process: bool):
    """Takes the name for messages, and whether the process was started for the command.

    If it was not, the former signal handlers are restored at the end.
    """
    self._name = name
    self._owns_process = owns_process
    self._signal: int | None = None

  def __enter__(self) -> "CommandProcess":
    """Prepares the process."""
    if self._owns_process:
      replace(signal.SIG_DFL, signal.SIGINT)  # also while the process exits
      for stream in (sys.stdout, sys.stderr):
        if stream is not None:  # Names of files may not be UTF-8.
          stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    self._handlers = replace(self._stop, *_ENDS)
    return self

  def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
    """Sets `status` and shows the message of an error; others than users can fix are raised."""
    restore(self._handlers)
    try:
      print(end="", flush=True)
    except OSError as unwritten:
      error = error or unwritten
      # Python would write again, when it exits, what standard output has buffered.
      os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if number := self._signal or (signal.SIGINT if isinstance(error, KeyboardInterrupt) else None):
      self.status = 128 + number
      self._print(f"{_ENDS[signal.Signals(number)]}{self.hint}")
    elif isinstance(error, BrokenPipeError):  # The reader of the output has closed it.
      self.status = 1
    elif isinstance(error, errors.InputError | OSError):
      self.status = 1
      if self.verbose:
        traceback.print_exception(error)
      message = errors.without_credentials(str(error))
      self._print("error: " + "".join(x if x.isprintable() else ascii(x)[1:-1] for x in message))
    return self.status != 0

  def _print(self, message: str) -> None:
    print(f"{self._name}: {message}", file=sys.stderr)

  def _stop(self, number: int, frame: types.FrameType | None) -> None:
    stack = (inside.f_code.co_filename for inside, _ in traceback.walk_stack(frame))
    if self._owns_process and any(path.startswith("<frozen importlib") for path in stack):
      signal.signal(number, signal.SIG_DFL)
      signal.raise_signal(number)
    self._signal = number
    raise KeyboardInterrupt
