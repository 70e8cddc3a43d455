"""Keeps the notes of libraries that tell a user nothing off the terminal."""

import contextlib
import logging
import os
import re
import sys
import tempfile
from collections.abc import Iterator

# What TensorFlow prints when it is imported, before its log level applies; never an error.
_NOTES = re.compile(
  r"^(WARNING: All log messages before absl::InitializeLog"
  r"|I\d{4} |To enable the following instructions|E\d{4} .*cuInit)"
)

# Warnings that are not true of this runtime: evaluation lengths are those of the model and padding
# is cut off, and T5X's checkpoints have no such file.
_UNTRUE = re.compile(r"Given sequence lengths|Metadata file does not exist")


def drop_untrue_warnings() -> None:
  """Leaves out warnings about what is as it should be, and errors that Orbax raises as well."""
  logging.getLogger("absl").addFilter(_is_worth_reading)


def _is_worth_reading(record: logging.LogRecord) -> bool:
  raised_too = record.levelno >= logging.ERROR and "orbax" in record.pathname
  return not (raised_too or _UNTRUE.match(record.getMessage()))


@contextlib.contextmanager
def without_start_up_notes() -> Iterator[None]:
  """Holds back what is written to stderr inside, then writes it without TensorFlow's notes."""
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
