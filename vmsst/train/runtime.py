"""The process of a run: `import t5x` means the bundled runtime, and unhelpful messages are hidden.

The same gin files (`from t5x import utils`) thus run here and, by `python -m t5x.main`, upstream.
"""

import contextlib
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import logging
import os
import re
import sys
import tempfile
from collections.abc import Iterator
from types import ModuleType

_PACKAGE = "vmsst.train"


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
  """Finds `t5x` and `t5x.*` before sys.path is searched."""

  def find_spec(self, fullname, path=None, target=None):
    if fullname != "t5x" and not fullname.startswith("t5x."):
      return None
    bundled = _PACKAGE + fullname.removeprefix("t5x")
    if importlib.util.find_spec(bundled) is None:
      raise ModuleNotFoundError(
        f"{fullname} is not part of the bundled runtime; run the gin file on upstream T5X by "
        "`python -m t5x.main`",
        name=fullname,
      )
    return importlib.machinery.ModuleSpec(fullname, self, is_package=fullname == "t5x")

  def create_module(self, spec) -> ModuleType:
    module = importlib.import_module(_PACKAGE + spec.name.removeprefix("t5x"))
    self._spec = module.__spec__
    return module

  def exec_module(self, module: ModuleType) -> None:
    module.__spec__ = self._spec  # the import system set the alias's


def install() -> None:
  """Makes `t5x` the bundled runtime in this process."""
  if any(isinstance(finder, _Finder) for finder in sys.meta_path):
    return
  if "t5x" in sys.modules:
    raise RuntimeError("upstream t5x is already imported; call install() before")
  sys.meta_path.insert(0, _Finder())


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
