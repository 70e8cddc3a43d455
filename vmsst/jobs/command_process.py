"""The process of a command, `vmsst` or `t5x`: its signals, standard streams and error messages."""

import contextlib
import os
import re
import signal
import sys
import traceback
import types
from typing import Any

from vmsst import errors
from vmsst.jobs import signals

_ENDS = {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated"}
# Control characters, and the bytes of file names that are not UTF-8.
_UNSAFE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")
_MESSAGE, _INNER_END = re.compile(r"[\w -]+: (error|note): "), re.compile(r"\n(?=[\s\S])")
_MOVES = re.compile(r"\r|\n*(?:\x1b\[A)+$")  # what progress bars start with or write alone


class CommandProcess:
  """A command, which runs inside `with`: there, errors become a message and an exit status.

  SIGINT and SIGTERM raise an exception, so that the command removes its temporary files. During an
  import they end the process instead: libraries do not expect exceptions there. Printed text cannot
  control a terminal: it is escaped. Bytes are written unchanged. A message is one line, without
  credentials, whatever names of files it contains.

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

    If it was not, the former signal handlers and streams are restored at the end.
    """
    self._name = name
    self._owns_process = owns_process
    self._signal: int | None = None

  def __enter__(self) -> "CommandProcess":
    """Prepares the process."""
    if self._owns_process:
      signals.replace(signal.SIG_DFL, signal.SIGINT)  # also while the process exits
    # If a standard stream is closed, the next file that is opened must not get its number.
    while (descriptor := os.open(os.devnull, os.O_RDONLY)) < 3:
      os.set_inheritable(descriptor, True)
    os.close(descriptor)
    self._streams = sys.stdout, sys.stderr
    self._printed = sys.stdout = _Printed(sys.stdout, 1)
    sys.stderr = _Messages(sys.stderr, 2)
    self._handlers = signals.replace(self._stop, *_ENDS)
    return self

  def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
    """Sets `status` and shows the message of an error; others than users can fix are raised."""
    signals.restore(self._handlers)
    try:
      self._printed.flush()
    except OSError as unwritten:
      self._printed.discard()
      error = unwritten if error is None or isinstance(error, SystemExit) else error
    number = self._signal or (signal.SIGINT if isinstance(error, KeyboardInterrupt) else None)
    message = None
    if number:
      self.status, message = 128 + number, f"{_ENDS[signal.Signals(number)]}{self.hint}"
    elif isinstance(error, errors.InputError | OSError):
      self.status, message = 1, f"error: {error}"
      if isinstance(error, BrokenPipeError):  # the reader of the output has closed it
        message = None
      elif self.verbose:
        traceback.print_exception(error)
    if message:
      print(f"{self._name}: {message}", file=sys.stderr)
    if not self._owns_process:
      sys.stdout, sys.stderr = self._streams
    return self.status != 0

  def _stop(self, number: int, frame: types.FrameType | None) -> None:
    stack = (inside.f_code.co_filename for inside, _ in traceback.walk_stack(frame))
    if self._owns_process and any(path.startswith("<frozen importlib") for path in stack):
      signal.signal(number, signal.SIG_DFL)
      signal.raise_signal(number)
    self._signal = number
    raise KeyboardInterrupt


class _Printed:
  """Standard output with escapes for characters that control a terminal or cannot be encoded."""

  def __init__(self, stream: Any, number: int):
    # Printing to a closed stream fails, as it does in other programs.
    self._stream = stream or open(number, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    self._failed: OSError | None = None

  def __getattr__(self, name: str) -> Any:
    return getattr(self._stream, name)

  def write(self, text: str) -> int:
    """Writes text."""
    moves = _MOVES.match(text)
    start = moves[0] if moves else ""
    shown = start + _UNSAFE.sub(_escaped, text[len(start) :])
    encoding = getattr(self._stream, "encoding", None) or "utf-8"
    shown = shown.encode(encoding, "backslashreplace").decode(encoding)
    self._try(self._stream.write, shown)
    return len(text)

  def flush(self) -> None:
    """Writes what is buffered."""
    self._try(self._stream.flush)

  def discard(self) -> None:
    """Discards what is buffered, and all that follows."""
    self._failed = None
    with contextlib.suppress(OSError, ValueError):  # not a file, in a notebook
      nowhere = os.open(os.devnull, os.O_WRONLY)
      os.dup2(nowhere, self._stream.fileno())
      os.close(nowhere)

  def _try(self, write: Any, *content: str) -> None:
    try:
      write(*content)
    except OSError as error:
      self._failed = OSError(error.errno, error.strerror, "standard output")
    if self._failed:  # also if argparse ignored it
      raise self._failed


class _Messages(_Printed):
  """Standard error: no command fails because nobody can read its messages.

  Errors and notes of the command are one line each. Credentials are not shown.
  """

  def write(self, text: str) -> int:
    """Writes text."""
    text = errors.without_credentials(text)
    if _MESSAGE.match(text):
      text = _INNER_END.sub(r"\\x0a", text)
    return super().write(text)

  def _try(self, write: Any, *content: str) -> None:
    try:
      write(*content)
    except OSError:
      self.discard()


def _escaped(match: re.Match[str]) -> str:
  code = ord(match[0])
  is_byte = code < 0x100 or 0xDC80 <= code <= 0xDCFF
  return f"\\x{code & 0xFF:02x}" if is_byte else f"\\u{code:04x}"
