"""Encoders by name on the Hugging Face Hub, such as "sentence-transformers/LaBSE".

huggingface_hub downloads them, with its cache, tokens and offline mode (HF_HOME, HF_TOKEN,
HF_HUB_OFFLINE, HF_ENDPOINT). An encoder of another library is imported once per commit into
HF_HOME/vmsst; nothing of it is unpickled or run.
"""

import dataclasses
import os
import pathlib
import re
from collections.abc import Callable
from typing import Any

import filelock
import numpy as np
from etils import epath
from flax import traverse_util

from vmsst import errors
from vmsst.checkpoints import (
  encoder_json,
  hub_errors,
  hugging_face,
  restoring,
  sentence_transformers_files,
)
from vmsst.checkpoints.importers import bert, mt5, vmsst_release, weight_tables
from vmsst.files import work_folders

# Increase it if an import of the same files gives another encoder.
_IMPORT_FORMAT = 2
_NAME = re.compile(r"(?P<repository>\w[\w.-]*/\w[\w.-]*)(@(?P<revision>\w[\w./-]*))?")
_CHECKPOINT = re.compile(r"checkpoint_\d+")
_WEIGHTS = ("*.safetensors", hugging_face.INDEX_FILE)
_FILES = (*_WEIGHTS, "*.json", "*.model", "vocab.txt")
# Copies of the model for other engines.
_OTHERS = ("onnx/*", "openvino/*", "coreml/*", "gguf/*")


@dataclasses.dataclass(frozen=True)
class HubModel:
  """A model on this machine.

  Attributes:
    name: Repository and commit, `<owner>/<name>@<commit>`.
    folder: A folder that `vmsst.load` opens.
  """

  name: str
  folder: pathlib.Path


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


def find(name: str) -> HubModel:
  """Downloads a model, or finds it in the cache, and imports it on first use.

  Args:
    name: `owner/name`, followed by `@` and a branch, tag or commit if it is not the main branch.

  Raises:
    InputError: there is no such model, it cannot be downloaded or imported, or it cannot encode
      texts.
  """
  snapshot, repository = download(name)
  is_export = (snapshot / encoder_json.ENCODER_FILE).is_file()
  folder = snapshot if is_export else _imported(snapshot, repository)
  if not (folder / encoder_json.ENCODER_FILE).is_file():
    raise errors.InputError(
      f"{repository} has neither a {bert.TOKENIZER_FILE} nor a {mt5.VOCABULARY_FILE} to encode "
      "texts with; only training can start from it"
    )
  return HubModel(f"{repository}@{snapshot.name}", folder)


def checkpoint(path: str | os.PathLike[str]) -> str:
  """Returns the checkpoint of a model that `path` names, or `path` itself.

  Raises:
    InputError: there is no such model, or it cannot be downloaded or imported.
  """
  if not is_name(path):
    return os.fspath(path)
  return os.fspath(_imported(*download(os.fspath(path))) / weight_tables.CHECKPOINT)


def download(name: str) -> tuple[pathlib.Path, str]:
  """Returns the folder of a model's files in the cache, named by the commit, and the repository.

  Raises:
    InputError: as `find`.
  """
  import huggingface_hub
  from huggingface_hub import constants
  from huggingface_hub.errors import LocalEntryNotFoundError

  matched = _NAME.fullmatch(name)
  if not matched:
    raise errors.InputError(f"{name!r} is not the name of a model: give owner/name")
  repository, revision = matched["repository"], matched["revision"]
  hub = constants.ENDPOINT
  missing = (
    f"there is no folder {name} here and no model {repository} at {hub}; check the name. A "
    "private model needs `hf auth login` or HF_TOKEN"
  )
  with hub_errors.explained(repository, "downloaded from", missing=missing, revision=revision):
    try:
      snapshot = huggingface_hub.snapshot_download(
        repository, revision=revision, allow_patterns=list(_FILES), ignore_patterns=list(_OTHERS)
      )
    except LocalEntryNotFoundError:
      offline = "HF_HUB_OFFLINE is set" if constants.HF_HUB_OFFLINE else f"{hub} cannot be reached"
      raise errors.InputError(
        f"there is no folder {name} here, {repository} is not complete in the cache at "
        f"{constants.HF_HUB_CACHE}, and {offline}"
      ) from None
  folder = pathlib.Path(snapshot)
  if not any(path.suffix == ".safetensors" for path in folder.rglob("*")):
    raise errors.InputError(
      f"{repository} has no safetensors. Other weights are pickles, which can run code and are not "
      "read; ask its owner to add safetensors, or convert a copy that you trust"
    )
  return folder, repository


def _imported(snapshot: pathlib.Path, repository: str) -> pathlib.Path:
  """Returns the folder of a model after its import, with a checkpoint."""
  from huggingface_hub import constants

  importer = _importer(snapshot, repository)
  place = pathlib.Path(constants.HF_HOME, "vmsst", str(_IMPORT_FORMAT))
  target = place / repository.replace("/", "--") / snapshot.name
  target.parent.mkdir(parents=True, exist_ok=True)
  with filelock.FileLock(f"{target}.lock"):
    if not (target / weight_tables.CHECKPOINT).is_dir():
      importer(snapshot, target)
  return target


def _importer(
  snapshot: pathlib.Path, repository: str
) -> Callable[[pathlib.Path, pathlib.Path], Any]:
  if (snapshot / encoder_json.ENCODER_FILE).is_file():
    return _import_export
  kind = sentence_transformers_files.read_config(snapshot).get("model_type")
  if kind not in _IMPORTERS:
    raise errors.InputError(
      f"{repository} is of the type {kind!r}, which cannot be loaded by name; these can: "
      f"{', '.join(_IMPORTERS)}, and exports of this library"
    )
  return _IMPORTERS[kind]


def _import_export(snapshot: pathlib.Path, target: pathlib.Path) -> None:
  """Writes an export of this library as a checkpoint, for training to start from."""
  assets = encoder_json.load_encoder_assets(snapshot)
  weights = epath.Path(snapshot / hugging_face.WEIGHTS_FILE)
  params = traverse_util.flatten_dict(restoring.restore_params(weights, assets.network), sep="/")
  with work_folders.atomic_folder(target) as partial:
    weight_tables.write_checkpoint(partial, {name: np.asarray(x) for name, x in params.items()})
    encoder_json.save_assets(assets, partial)


def _import_t5(snapshot: pathlib.Path, target: pathlib.Path) -> None:
  """Imports mT5, or a release of VMSST, whose encoder has other names."""
  if (snapshot / sentence_transformers_files.MODULES_FILE).is_file():
    raise errors.InputError(
      f"{snapshot}: T5 with modules of sentence-transformers cannot be imported, unless `vmsst "
      "export` wrote it; sentence-transformers opens it"
    )
  if mt5.TABLE_NAME in hugging_face.open_tensors(snapshot):
    mt5.import_mt5(snapshot, target)
  else:
    vmsst_release.import_vmsst(snapshot, target)


# By the `model_type` of transformers.
_IMPORTERS: dict[str, Callable[[pathlib.Path, pathlib.Path], Any]] = {
  "bert": bert.import_bert,
  "xlm-roberta": bert.import_bert,
  "mt5": _import_t5,
  "t5": _import_t5,
}
