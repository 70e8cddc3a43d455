"""Hides messages of libraries that do not help users."""

import contextlib
import logging
import os
import re
import sys
from collections.abc import Iterator

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
  """Discards stderr: TensorFlow prints notes while it is imported, before its log level applies."""
  sys.stderr.flush()
  terminal, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
  os.dup2(nowhere, 2)
  try:
    yield
  finally:
    sys.stderr.flush()
    os.dup2(terminal, 2)
    os.close(terminal)
    os.close(nowhere)
