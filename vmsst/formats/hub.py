"""Encoders by name on the Hugging Face Hub, such as "sentence-transformers/LaBSE".

huggingface_hub downloads them, with its cache, tokens and offline mode (HF_HOME, HF_TOKEN,
HF_HUB_OFFLINE, HF_ENDPOINT). They are read as they are. Nothing of a model is run.
"""

import contextlib
import os
import pathlib
import re
from collections.abc import Iterator

from vmsst import errors

# Git allows no `..` in a revision, whose name becomes a path in the cache.
_NAME = re.compile(r"(?!.*\.\.)(?P<repository>\w[\w.-]*/\w[\w.-]*)(@(?P<revision>\w[\w./-]*))?")
_CHECKPOINT = re.compile(r"checkpoint_\d+")
LOG_IN = "log in (`hf auth login`) or set HF_TOKEN"
# With weights of layers after the pooling, which may have another format than those of the encoder.
_FILES = ("*.json", "*.model", "*.jinja", "[0-9]*_*/pytorch_model.bin")
# The first of these files that a repository has.
_WEIGHTS = ("*.safetensors", "*pytorch_model*.bin")
# Copies of the model for other engines.
_OTHERS = ("onnx/*", "openvino/*", "coreml/*", "gguf/*")


def is_name(path: str | os.PathLike[str]) -> bool:
  """Returns whether a path may be a name on the Hub: `owner/name`, and no file or folder here."""
  text = os.fspath(path)
  is_checkpoint = _CHECKPOINT.fullmatch(text.rsplit("/", 1)[-1])
  return bool(_NAME.fullmatch(text)) and not is_checkpoint and not os.path.lexists(text)


def check_repository(name: str) -> None:
  """Raises InputError unless `name` is `owner/name`, without a revision."""
  matched = _NAME.fullmatch(name)
  if not matched or matched["revision"]:
    raise errors.InputError(f"{name!r} is not the name of a repository: give owner/name")


def find(name: str) -> tuple[str, pathlib.Path]:
  """Downloads a model, or finds it in the cache; returns `owner/name@commit` and its folder.

  Args:
    name: `owner/name`, followed by `@` and a branch, tag or commit if it is not the main branch.

  Raises:
    InputError: there is no such model, or it cannot be downloaded.
  """
  import huggingface_hub

  matched = _NAME.fullmatch(name)
  if not matched:
    raise errors.InputError(f"{name!r} is not the name of a model: give owner/name")
  repository, revision = matched["repository"], matched["revision"]
  with explained(f"there is no folder {name} here, and {name} cannot be downloaded from"):
    for weights in _WEIGHTS:
      snapshot = huggingface_hub.snapshot_download(
        repository,
        revision=revision,
        allow_patterns=[*_FILES, weights],
        ignore_patterns=list(_OTHERS),
      )
      folder = pathlib.Path(snapshot)
      if any(folder.rglob(weights)):
        return f"{repository}@{folder.name}", folder
  raise errors.InputError(f"{repository} has no weights in safetensors or in a file of torch")


@contextlib.contextmanager
def explained(problem: str) -> Iterator[None]:
  """Raises InputError instead of the exceptions of huggingface_hub and of the packages it uses.

  Args:
    problem: Start of the message; the address of the Hub and the reason follow.
  """
  from huggingface_hub import constants

  try:
    yield
  except errors.InputError:
    raise
  except Exception as error:  # of several packages, whose classes differ between versions
    if isinstance(error, RuntimeError) and isinstance(error.__cause__, Exception):
      error = error.__cause__  # of one file of many
    reason = " ".join(str(error).split()) or type(error).__name__
    raise errors.InputError(
      f"{problem} {constants.ENDPOINT}: {reason}; for a private or gated model, {LOG_IN}"
    ) from None
