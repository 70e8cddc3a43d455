"""Handles the signals, error messages and exit status of a command (`vmsst` or `t5x`)."""

import contextlib
import os
import signal
import sys
import traceback
import types
from collections.abc import Iterator
from typing import Any

from vmsst import errors

_MESSAGES = {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated"}


@contextlib.contextmanager
def _handler(handler: Any, *numbers: int) -> Iterator[None]:
  """Sets a signal handler inside `with`, unless the program has replaced Python's handler."""
  defaults = (signal.SIG_DFL, signal.default_int_handler)
  former: dict[int, Any] = {}
  with contextlib.suppress(ValueError):  # Only the main thread can set handlers.
    former = {n: signal.signal(n, handler) for n in numbers if signal.getsignal(n) in defaults}
  try:
    yield
  finally:
    for number, former_handler in former.items():
      signal.signal(number, former_handler)


@contextlib.contextmanager
def default_interrupt() -> Iterator[None]:
  """Makes Ctrl-C end the process inside `with`, unless the program has its own handler.

  By default, Ctrl-C raises an exception in Python, but libraries do not expect exceptions while
  they are imported.
  """
  with _handler(signal.SIG_DFL, signal.SIGINT):
    # `restart_with_huge_pages` blocks the signal before it re-executes the process.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    yield


@contextlib.contextmanager
def process(name: str, *, owns_process: bool) -> Iterator[types.SimpleNamespace]:
  """Runs a command inside `with`. Errors that a user can fix become a message and an exit status.

  The message is one line without control characters, even if a file name contains control
  characters. Other errors are raised. SIGINT and SIGTERM raise an exception, so that the command
  removes its temporary files. During an import, the signals end the process instead, because
  libraries do not expect exceptions while they are imported.

  Args:
    name: Name of the command, for messages.
    owns_process: Whether the process was started for the command. If not, the process's signal
      handlers are restored at the end.

  Yields:
    The state of the command. `status` is the exit status at the end. The command can set `hint` to
    text that is appended to the message about a signal, and `verbose` to show the stack traces of
    errors.
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
      # At the end, `_handler` restores this handler, so Ctrl-C also works during Python's exit.
      signal.signal(signal.SIGINT, signal.SIG_DFL)
    for stream in (sys.stdout, sys.stderr):
      if stream is not None:  # A file name in a message is not always UTF-8.
        stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
  try:
    with _handler(stop, *_MESSAGES):
      yield state
  except BaseException as raised:
    error = raised
  try:
    print(end="", flush=True)
  except OSError as unwritten:
    error = error or unwritten
    # When Python exits, it tries again to flush the output that is left in the buffer. Send this
    # output to the null device, so that the second attempt does not fail, too.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
  if signals or isinstance(error, KeyboardInterrupt):
    number = signal.Signals(signals[-1] if signals else signal.SIGINT)
    state.status = 128 + number
    print(f"{name}: {_MESSAGES[number]}{state.hint}", file=sys.stderr)
  elif isinstance(error, BrokenPipeError):  # A reader such as `head` has closed the pipe.
    state.status = 1
  elif isinstance(error, errors.InputError | OSError | UnicodeEncodeError):
    # UnicodeEncodeError: a file name on the command line is not UTF-8.
    state.status = 1
    if state.verbose:
      traceback.print_exception(error)
    message = errors.without_credentials(str(error))
    message = "".join(x if x.isprintable() else ascii(x)[1:-1] for x in message)
    print(f"{name}: error: {message}", file=sys.stderr)
  elif error:
    raise error


def restart_with_huge_pages() -> None:
  """Re-executes this process (same PID) with GLIBC_TUNABLES set to request huge pages.

  On CPUs, XLA allocates its temporary memory again in every step. With pages of 4 KiB, the
  allocation takes up to a third of the step's CPU time. This function does nothing outside Linux,
  or if GLIBC_TUNABLES is set, even to an empty value.
  """
  if sys.platform == "linux" and "GLIBC_TUNABLES" not in os.environ:
    sys.stdout.flush()
    # Block SIGINT, because Ctrl-C while Python starts would print a stack trace.
    # `default_interrupt` unblocks SIGINT later.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    os.execve(
      sys.executable,
      [sys.executable, *sys.orig_argv[1:]],
      {**os.environ, "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"},
    )


@contextlib.contextmanager
def preserve_handlers() -> Iterator[None]:
  """Restores the handlers of Ctrl-C and SIGTERM at the end, even if C code replaced them."""
  handlers: dict[int, Any] = {n: signal.getsignal(n) for n in _MESSAGES}
  try:
    yield
  finally:
    with contextlib.suppress(ValueError):  # Only the main thread can set handlers.
      for number, handler in handlers.items():
        signal.signal(number, handler)
