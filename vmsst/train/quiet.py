"""Hides messages of libraries that do not help users."""

import contextlib
import logging
import os
import re
import sys
import tempfile
from collections.abc import Iterator

# Printed by TensorFlow when it is imported, before its log level applies; never an error.
_NOTES = re.compile(
  r"^(WARNING: All log messages before absl::InitializeLog"
  r"|I\d{4} |To enable the following instructions|E\d{4} .*cuInit)"
)

# Warnings that do not apply to this runtime: evaluation uses the model's lengths and trims padding,
# and T5X's checkpoints have no such file.
_UNTRUE = re.compile(r"Given sequence lengths|Metadata file does not exist")


def drop_untrue_warnings() -> None:
  """Hides warnings that do not apply, and logged errors that Orbax raises as well."""
  logging.getLogger("absl").addFilter(_is_worth_reading)


def _is_worth_reading(record: logging.LogRecord) -> bool:
  raised_too = record.levelno >= logging.ERROR and "orbax" in record.pathname
  return not (raised_too or _UNTRUE.match(record.getMessage()))


@contextlib.contextmanager
def without_start_up_notes() -> Iterator[None]:
  """Buffers stderr, then writes it without TensorFlow's start-up messages."""
  sys.stderr.flush()
  terminal = os.dup(2)
  with tempfile.TemporaryFile() as held:
    os.dup2(held.fileno(), 2)
    try:
      yield
    finally:
      sys.stderr.flush()
      os.dup2(terminal, 2)
      os.close(terminal)
      held.seek(0)
      for line in held.read().decode("utf-8", "replace").splitlines():
        if not _NOTES.match(line):
          print(line, file=sys.stderr)
