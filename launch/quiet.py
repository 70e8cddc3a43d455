"""Keeps the start-up notes of libraries off the terminal."""

import contextlib
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
