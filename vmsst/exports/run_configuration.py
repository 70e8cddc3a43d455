"""The Gin configuration of an encoder's run, read without gin."""

import os
import re

from vmsst.files import storage, text_files

FILE = "config.gin"
_CHECKPOINT = re.compile(r"checkpoint_\d+")
# `selector = value`; further lines of the value are indented.
_STATEMENT = re.compile(r"^([A-Za-z_][\w./]*) = (.*(?:\n[ \t].*)*)", re.MULTILINE)
_REFERENCE = re.compile(r"(?P<macro>%)(?P<name>[\w.]+)|@(?:[\w./]*/)?(?P<function>[\w.]+)")
_DATA = "MIXTURE_OR_TASK_NAME"


def read(parameters: str | os.PathLike[str]) -> str | None:
  """Returns the content of a run's `config.gin`, or None if there is none.

  Args:
    parameters: Path of the encoder's parameters: a `checkpoint_<step>` of the run.

  Raises:
    InputError: the file cannot be read.
  """
  path = storage.path(parameters)
  if not _CHECKPOINT.fullmatch(path.name):
    return None
  file = path.parent / FILE
  return "\n".join(text_files.read_lines(str(file))) if storage.is_file(file) else None


def about_data(config: str) -> list[str]:
  r"""Returns the statements on training data: the task's name and all that its value refers to.

  >>> about_data("BATCH = 3\nMIXTURE_OR_TASK_NAME = @f()\nf.files = %FILES\nFILES = 'x'")
  ['MIXTURE_OR_TASK_NAME = @f()', 'f.files = %FILES', "FILES = 'x'"]
  """
  statements = {found[1]: found for found in _STATEMENT.finditer(config)}
  reached = dict.fromkeys([_DATA] if _DATA in statements else [])
  waiting = list(reached)
  while waiting:
    for found in _REFERENCE.finditer(statements[waiting.pop(0)][2]):
      new = [
        name
        for name in statements
        if name not in reached and (name == found["name"] or _is_of(name, found["function"]))
      ]
      reached |= dict.fromkeys(new)
      waiting += new
  return [statements[name][0] for name in reached]


def _is_of(selector: str, function: str | None) -> bool:
  """Whether a selector, with or without a scope, is a parameter of a function."""
  return function is not None and selector.rpartition("/")[2].rpartition(".")[0] == function
