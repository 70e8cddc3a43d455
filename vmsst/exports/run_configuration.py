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
_FUNCTION = r"\A@(?:[\w.]+/)*([\w.]+)\(\)\Z"
# What is taken of a macro's value: numbers, and names of functions, tasks, recipes and files. A
# file's name is the last part of its path, without what may follow it in an address.
_FACTS = {
  "MODEL": ("Model", _FUNCTION),
  "BATCH_SIZE": ("Pairs per batch", r"\A(\d+)\Z"),
  "MIXTURE_OR_TASK_NAME": ("Task", rf"{_FUNCTION}|\A'([\w.-]+)'\Z"),
  "OPUS_CONFIG": ("Recipe of the OPUS dataset", r"\A'([\w-]+)'\Z"),
  "PATTERNS": ("Files", r"['\"](?:[^'\"\s]*/)?([\w.*+-]+)['\"]"),
}


def facts(parameters: str | os.PathLike[str]) -> list[str]:
  """Returns statements about the run of an encoder; none if there is no `config.gin`.

  Args:
    parameters: Path of the encoder's parameters: a `checkpoint_<step>` of the run.

  Raises:
    InputError: the file cannot be read.
  """
  path = storage.path(parameters)
  checkpoint = _CHECKPOINT.fullmatch(path.name)
  if checkpoint is None or not storage.is_file(path.parent / FILE):
    return []
  values = dict(_MACRO.findall("\n".join(text_files.read_lines(str(path.parent / FILE)))))
  found = [f"Steps: {checkpoint[1]}"]
  for macro, (title, pattern) in _FACTS.items():
    taken = re.finditer(pattern, values.get(macro, "").strip())
    if names := sorted({f"`{x[x.lastindex]}`" for x in taken if x.lastindex}):
      found.append(f"{title}: {', '.join(names)}")
  return found
