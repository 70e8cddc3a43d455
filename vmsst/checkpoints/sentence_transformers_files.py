"""Reads the files that sentence-transformers adds to a Hugging Face folder.

They list the modules that follow the encoder and give the default prompt and the maximum length.
"""

import dataclasses
import pathlib
import re
from collections.abc import Mapping
from typing import Any

from vmsst import errors
from vmsst.checkpoints import hugging_face
from vmsst.files import input_files

MODULES_FILE = "modules.json"
PROMPTS_FILE = "config_sentence_transformers.json"
# Files that may limit the tokens of a sentence, and the key that does.
LENGTH_FILES = {
  "sentence_bert_config.json": "max_seq_length",
  "tokenizer_config.json": "model_max_length",
}
_E5 = {"query": "query: ", "passage": "passage: "}
# The name of the pooled vector on its way through the modules.
_VECTOR = "sentence_embedding"


@dataclasses.dataclass(frozen=True)
class Modules:
  """The modules that sentence-transformers applies in turn.

  Attributes:
    transformer: The folder of the encoder.
    pooling: How token states become a sentence vector: "mean", "cls", or "pooler" if a dense module
      follows [CLS] pooling.
    dense: Name of the dense module's folder, or None.
    normalize: Whether vectors are scaled to length 1.
    pools_prompt: Whether the tokens of a prompt are pooled too.
  """

  transformer: pathlib.Path
  pooling: str = "mean"
  dense: str | None = None
  normalize: bool = False
  pools_prompt: bool = True


def list_modules(folder: pathlib.Path) -> list[tuple[str, str]]:
  """Returns the class and the folder's name of each module, in order.

  Raises:
    InputError: the list is missing or damaged, or a name leads out of the folder.
  """
  path = folder / MODULES_FILE
  try:
    # The classes keep their names, but their packages differ between versions.
    listed = [
      (str(m["type"]).rsplit(".", 1)[-1], str(m["path"])) for m in input_files.read_json(path)
    ]
  except (KeyError, TypeError):
    raise errors.InputError(f"{path} is not a list of modules with 'type' and 'path'") from None
  for kind, name in listed:
    is_root = kind == "Transformer" and not name
    is_plain = name not in ("", "..") and pathlib.PurePath(name).name == name
    if not is_root and (not is_plain or set(name) & {"\\", "\0"}):
      raise errors.InputError(
        f"{path}: the path of {kind} is {name!r}, not the name of a folder next to this file"
      )
  return listed


def read_modules(folder: pathlib.Path) -> Modules:
  """Returns the modules of a folder; without files of sentence-transformers, the mean.

  Raises:
    InputError: the files are damaged, or this library cannot express the modules.
  """
  path = folder / MODULES_FILE
  if not path.is_file():
    return Modules(folder)
  listed = list_modules(folder)
  kinds = [kind for kind, _ in listed]
  if kinds not in (
    ["Transformer", "Pooling", *dense, *end]
    for dense in ([], ["Dense"])
    for end in ([], ["Normalize"])
  ):
    raise errors.InputError(f"{path} lists {', '.join(kinds)}: this chain cannot be imported")
  paths = dict(listed)
  config = hugging_face.read_config(folder / paths["Pooling"])
  pooling = _pooling(folder / paths["Pooling"], config)
  if "Dense" in paths:
    if pooling != "cls":
      raise errors.InputError(
        f"{folder / paths['Pooling']}: a dense module can be imported after 'cls' pooling only"
      )
    pooling = "pooler"
    _check_dense(folder / paths["Dense"])
  return Modules(
    transformer=folder / paths["Transformer"],
    pooling=pooling,
    dense=paths.get("Dense"),
    normalize="Normalize" in paths,
    pools_prompt=config.get("include_prompt") is not False,
  )


def max_length(folder: pathlib.Path, positions: int) -> int:
  """Returns the most tokens of a sentence: the least limit in a folder's files.

  Args:
    folder: The folder of the encoder.
    positions: Tokens that the position table has rows for.

  Raises:
    InputError: a limit is not a number of at least 1.
  """
  limits = [positions]
  for name, key in LENGTH_FILES.items():
    path = folder / name
    record = hugging_face.read_object(path) if path.is_file() else {}
    value = record.get(key)
    if value is None:
      continue
    # "No limit" is a huge number, possibly a float that has lost its last digits.
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not value >= 1:
      raise errors.InputError(f"{path}: {key!r} is {value!r}, not a positive integer")
    limits.append(int(min(value, positions)))
  return min(limits)


@dataclasses.dataclass(frozen=True)
class Prompts:
  """The texts that a model puts before sentences.

  Attributes:
    default: Before each sentence, if nothing else is requested.
    by_name: Before those of which this name is requested.
  """

  default: str = ""
  by_name: Mapping[str, str] = dataclasses.field(default_factory=dict)


def read_prompts(folder: pathlib.Path, config: Mapping[str, Any]) -> Prompts:
  """Returns the prompts of a model.

  Args:
    folder: The folder of sentence-transformers.
    config: Content of the encoder's `config.json`.

  Raises:
    InputError: the prompts are not strings, or the default one is missing.
  """
  path = folder / PROMPTS_FILE
  record = hugging_face.read_object(path) if path.is_file() else {}
  name, prompts = record.get("default_prompt_name"), record.get("prompts") or {}
  if not isinstance(prompts, dict) or not all(isinstance(x, str) for x in prompts.values()):
    raise errors.InputError(f"{path}: 'prompts' is {prompts!r}, not strings by name")
  if name is not None:
    if not isinstance(name, str) or name not in prompts:
      raise errors.InputError(f"{path}: 'default_prompt_name' is {name!r}, but no prompt has it")
    return Prompts(prompts[name], prompts)
  if _is_e5(folder, config):  # whose files do not mention its prompts
    return Prompts(_E5["query"], _E5 | prompts)
  return Prompts("", prompts)


def _is_e5(folder: pathlib.Path, config: Mapping[str, Any]) -> bool:
  # A cache of Hugging Face has the name two levels up.
  cache = [part.name for part in folder.parents if part.name.startswith("models--")]
  for called in (folder.name, str(config.get("_name_or_path", "")), *cache):
    words = re.split(r"[-_/]", called.lower())
    if "e5" in words and "instruct" not in words:
      return True
  return False


def _pooling(folder: pathlib.Path, config: Mapping[str, Any]) -> str:
  """Returns the one way of pooling in a module's config, which has a name or a flag for each."""
  found = config.get("pooling_mode")
  if found is None:
    flags = {"pooling_mode_cls_token": "cls", "pooling_mode_mean_tokens": "mean"}
    found = [
      flags.get(key, key)
      for key, value in config.items()
      if key.startswith("pooling_mode_") and value
    ]
  names = [found] if isinstance(found, str) else found
  if names not in (["mean"], ["cls"]):
    raise errors.InputError(
      f"{folder}: the pooling is {found!r}; only 'mean' or 'cls' can be imported"
    )
  return str(names[0])


def _check_dense(folder: pathlib.Path) -> None:
  config = hugging_face.read_config(folder)
  hugging_face.check_choice(folder, config, "module_input_name", _VECTOR, (_VECTOR,))
  activation = config.get("activation_function")
  if str(activation).rsplit(".", 1)[-1] != "Tanh":
    raise errors.InputError(
      f"{folder}: 'activation_function' is {activation!r}; only Tanh can be imported"
    )
