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
def _handler(handler: Any, *numbers: int) -> Iterator[None]:
  """Sets the handler of signals that have the one Python starts with."""
  usual = (signal.SIG_DFL, signal.default_int_handler)
  former: dict[int, Any] = {}
  with contextlib.suppress(ValueError):  # not in the main thread, which handles signals
    former = {n: signal.signal(n, handler) for n in numbers if signal.getsignal(n) in usual}
  try:
    yield
  finally:
    for number, before in former.items():
      signal.signal(number, before)


@contextlib.contextmanager
def default_interrupt() -> Iterator[None]:
  """Makes Ctrl-C end the process inside, unless the process has a handler of its own.

  Python would raise an exception, which libraries do not expect while they are imported.
  """
  with _handler(signal.SIG_DFL, signal.SIGINT):
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # see `launch.main`
    yield


@contextlib.contextmanager
def process(name: str, *, owns_process: bool) -> Iterator[types.SimpleNamespace]:
  """Runs a command inside `with`: there, errors become a message and an exit status.

  SIGINT and SIGTERM raise an exception, so that the command removes its temporary files. During an
  import they end the process instead: libraries do not expect exceptions there. The message of an
  error is one line without control characters, whatever names of files it contains. Errors other
  than the ones a user can fix are raised.

  Args:
    name: Name for messages.
    owns_process: Whether the process was started for the command. Otherwise, the former signal
      handlers are restored at the end.

  Yields:
    The state of the command: its exit `status` at the end; a `hint` at the end of the message about
    a signal; and whether to be `verbose`, to show the stack traces of errors.
  """
  state, signals, error = types.SimpleNamespace(status=0, hint="", verbose=False), [], None

  def stop(number: int, frame: types.FrameType | None) -> None:
    stack = (inside.f_code.co_filename for inside, _ in traceback.walk_stack(frame))
    if owns_process and any(path.startswith("<frozen importlib") for path in stack):
      signal.signal(number, signal.SIG_DFL)
      signal.raise_signal(number)
    signals.append(number)
    raise KeyboardInterrupt

  if owns_process:
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
      signal.signal(signal.SIGINT, signal.SIG_DFL)  # also while the process exits
    for stream in (sys.stdout, sys.stderr):
      if stream is not None:  # Names of files may not be UTF-8.
        stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
  try:
    with _handler(stop, *_ENDS):
      yield state
  except BaseException as raised:
    error = raised
  try:
    print(end="", flush=True)
  except OSError as unwritten:
    error = error or unwritten
    # Python would write again, when it exits, what standard output has buffered.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
  if signals or isinstance(error, KeyboardInterrupt):
    number = signal.Signals(signals[-1] if signals else signal.SIGINT)
    state.status = 128 + number
    print(f"{name}: {_ENDS[number]}{state.hint}", file=sys.stderr)
  elif isinstance(error, BrokenPipeError):  # The reader of the output has closed it.
    state.status = 1
  # The last is of a file name that is not UTF-8.
  elif isinstance(error, errors.InputError | OSError | UnicodeEncodeError):
    state.status = 1
    if state.verbose:
      traceback.print_exception(error)
    message = errors.without_credentials(str(error))
    message = "".join(x if x.isprintable() else ascii(x)[1:-1] for x in message)
    print(f"{name}: error: {message}", file=sys.stderr)
  elif error:
    raise error


@contextlib.contextmanager
def preserve_handlers() -> Iterator[None]:
  """Restores the handlers of Ctrl-C and SIGTERM that a library inside replaces, also in C."""
  handlers: dict[int, Any] = {n: signal.getsignal(n) for n in _ENDS}
  try:
    yield
  finally:
    with contextlib.suppress(ValueError):  # not in the main thread, which handles signals
      for number, handler in handlers.items():
        signal.signal(number, handler)
