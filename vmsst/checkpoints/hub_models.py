"""Encoders by name on the Hugging Face Hub, such as "sentence-transformers/LaBSE".

huggingface_hub downloads them, with its cache, tokens and offline mode (HF_HOME, HF_TOKEN,
HF_HUB_OFFLINE, HF_ENDPOINT). An encoder of another library is imported once per commit into
HF_HOME/vmsst; nothing of it is unpickled or run.
"""

import dataclasses
import os
import pathlib
import re

import filelock

from vmsst import errors
from vmsst.checkpoints import encoder_json, hugging_face, sentence_transformers_files
from vmsst.checkpoints.importers import bert, weight_tables

# Increase it if an import of the same files gives another encoder.
_IMPORT_FORMAT = 1
_NAME = re.compile(r"(?P<repository>\w[\w.-]*/\w[\w.-]*)(@(?P<revision>\w[\w./-]*))?")
_CHECKPOINT = re.compile(r"checkpoint_\d+")
_WEIGHTS = ("*.safetensors", hugging_face.INDEX_FILE)
_FILES = (*_WEIGHTS, "*.json", "*.model", "vocab.txt")
# Copies of the model for other engines.
_OTHERS = ("onnx/*", "openvino/*", "coreml/*", "gguf/*")
_KINDS = ("bert", "xlm-roberta")


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


def find(name: str) -> HubModel:
  """Downloads a model, or finds it in the cache, and imports it on first use.

  Args:
    name: `owner/name`, followed by `@` and a branch, tag or commit if it is not the main branch.

  Raises:
    InputError: there is no such model, it cannot be downloaded, or it cannot be imported.
  """
  snapshot, repository = download(name)
  unique = f"{repository}@{snapshot.name}"
  if (snapshot / encoder_json.ENCODER_FILE).is_file():
    return HubModel(unique, snapshot)
  return HubModel(unique, _imported(snapshot, repository))


def checkpoint(path: str | os.PathLike[str]) -> str:
  """Returns the checkpoint of a model that `path` names, or `path` itself.

  Raises:
    InputError: as `find`, or the model is an export, which has no checkpoint.
  """
  if not is_name(path):
    return os.fspath(path)
  folder = find(os.fspath(path)).folder / weight_tables.CHECKPOINT
  if not folder.is_dir():
    raise errors.InputError(f"{os.fspath(path)} is an export, which training cannot start from")
  return os.fspath(folder)


def download(name: str) -> tuple[pathlib.Path, str]:
  """Returns the folder of a model's files in the cache, named by the commit, and the repository.

  Raises:
    InputError: as `find`.
  """
  import huggingface_hub
  from huggingface_hub import constants
  from huggingface_hub import errors as hub_errors

  matched = _NAME.fullmatch(name)
  if not matched:
    raise errors.InputError(f"{name!r} is not the name of a model: give owner/name")
  repository, revision = matched["repository"], matched["revision"]
  hub = constants.ENDPOINT
  try:
    folder = pathlib.Path(
      huggingface_hub.snapshot_download(
        repository, revision=revision, allow_patterns=list(_FILES), ignore_patterns=list(_OTHERS)
      )
    )
  except hub_errors.GatedRepoError:
    raise errors.InputError(
      f"{repository} is gated: accept its conditions at {hub}/{repository}, then log in (`hf auth "
      "login`) or set HF_TOKEN"
    ) from None
  except hub_errors.RepositoryNotFoundError:
    raise errors.InputError(
      f"there is no folder {name} here and no model {repository} at {hub}; check the name. A "
      "private model needs `hf auth login` or HF_TOKEN"
    ) from None
  except hub_errors.RevisionNotFoundError:
    raise errors.InputError(
      f"{repository} at {hub} has no branch, tag or commit {revision}"
    ) from None
  except (hub_errors.LocalEntryNotFoundError, hub_errors.IncompleteSnapshotError):
    offline = "HF_HUB_OFFLINE is set" if constants.HF_HUB_OFFLINE else f"{hub} cannot be reached"
    raise errors.InputError(
      f"there is no folder {name} here, {repository} is not complete in the cache at "
      f"{constants.HF_HUB_CACHE}, and {offline}"
    ) from None
  except (hub_errors.HFValidationError, hub_errors.HfHubHTTPError, OSError) as error:
    reason = str(error).strip().partition("\n")[0]
    raise errors.InputError(
      f"{repository} cannot be downloaded from {hub}: {reason}; rerun to resume"
    ) from None
  if not any(path.suffix == ".safetensors" for path in folder.rglob("*")):
    raise errors.InputError(
      f"{repository} has no safetensors. Other weights are pickles, which can run code and are not "
      "read; ask its owner to add safetensors, or convert a copy that you trust"
    )
  return folder, repository


def _imported(snapshot: pathlib.Path, repository: str) -> pathlib.Path:
  """Returns the folder of a model of another library after its import."""
  from huggingface_hub import constants

  modules = sentence_transformers_files.read_modules(snapshot)
  kind = hugging_face.read_config(modules.transformer).get("model_type")
  if kind not in _KINDS:
    raise errors.InputError(
      f"{repository} is of the type {kind!r}, which cannot be loaded by name; these can: "
      f"{', '.join(_KINDS)}, and exports of this library"
    )
  place = pathlib.Path(constants.HF_HOME, "vmsst", str(_IMPORT_FORMAT))
  target = place / repository.replace("/", "--") / snapshot.name
  target.parent.mkdir(parents=True, exist_ok=True)
  with filelock.FileLock(f"{target}.lock"):
    if not (target / encoder_json.ENCODER_FILE).is_file():
      bert.import_bert(snapshot, target)
  return target
