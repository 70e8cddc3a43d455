"""Facts about an encoder's run for its model card, from its `config.gin`, read without gin.

Only names and numbers are taken: the file may contain paths, addresses, passwords and tokens.
"""

import os
import re

from vmsst.files import storage, text_files

FILE = "config.gin"
_CHECKPOINT = re.compile(r"checkpoint_(\d+)")
# `MACRO = value`; further lines of the value are indented.
_MACRO = re.compile(r"^([A-Z_]+) = \\?\s*(.*(?:\n[ \t].*)*)", re.MULTILINE)
_FUNCTION = r"@(?:[\w.]+/)*([\w.]+)\(\)"
# The values that are taken, by macro: a number, or the name of a function, a task or a recipe.
_TAKEN = {
  "MODEL": _FUNCTION,
  "BATCH_SIZE": r"(\d+)",
  "MIXTURE_OR_TASK_NAME": rf"{_FUNCTION}|'([\w.-]+)'",
  "OPUS_CONFIG": r"'([\w-]+)'",
}
# The last part of each path, without what may follow it in an address.
_PATTERNS = "PATTERNS"
_FILE_NAME = re.compile(r"['\"](?:[^'\"\s]*/)?([\w.*+-]+)['\"]")


def read(parameters: str | os.PathLike[str]) -> dict[str, list[str]] | None:
  """Returns names and numbers of a run by macro, and "TRAIN_STEPS" done; None without `config.gin`.

  Args:
    parameters: Path of the encoder's parameters: a `checkpoint_<step>` of the run.

  Raises:
    InputError: the file cannot be read.
  """
  path = storage.path(parameters)
  checkpoint = _CHECKPOINT.fullmatch(path.name)
  if checkpoint is None or not storage.is_file(path.parent / FILE):
    return None
  values = dict(_MACRO.findall("\n".join(text_files.read_lines(str(path.parent / FILE)))))
  found = {"TRAIN_STEPS": [checkpoint[1]]}
  for macro, pattern in _TAKEN.items():
    if taken := re.fullmatch(pattern, values.get(macro, "").strip()):
      found[macro] = [next(filter(None, taken.groups()))]
  if names := _FILE_NAME.findall(values.get(_PATTERNS, "")):
    found[_PATTERNS] = sorted({*names})
  return found
