"""Finds the files of an encoder: its parameters, and `encoder.json` with the vocabulary.

An encoder is one of

* an export: `encoder.json`, the vocabulary's file and `model.safetensors` in one folder (in exports
  for sentence-transformers, a dense module in its own folder may have the last parameters);
* a checkpoint: `checkpoint_<step>` in T5X's layout, with `encoder.json` and the vocabulary in it or
  next to it;
* a training run: the folder of its checkpoints, for the latest one.

The required files of a remote encoder (`gs://`, `s3://`) are copied to this machine. A name such as
"sentence-transformers/LaBSE" is looked up on the Hugging Face Hub if there is no such folder.
"""

import contextlib
import dataclasses
import os
import shutil
from collections.abc import Iterator

from etils import epath

from vmsst import errors
from vmsst.checkpoints import (
  encoder_json,
  hub_models,
  hugging_face,
  sentence_transformers_files,
  t5x,
)
from vmsst.files import storage
from vmsst.inference import remote_folders


@dataclasses.dataclass(frozen=True)
class EncoderFolder:
  """Paths of an encoder's parts on this machine.

  Attributes:
    name: Unique name of the encoder: the original path of its parameters.
    parameters: A `checkpoint_<step>` folder or a `model.safetensors`.
    assets: The folder of `encoder.json`.
  """

  name: str
  parameters: epath.Path
  assets: epath.Path


@contextlib.contextmanager
def opened(path: str | os.PathLike[str]) -> Iterator[EncoderFolder]:
  """Yields an encoder's files. After the context, parameters copied from a store are deleted.

  Args:
    path: An export, a checkpoint or a run; local, or in an object store that fsspec reads (`gs://`,
      `s3://` and others); or a name on the Hugging Face Hub.

  Raises:
    TypeError: `path` is neither a string nor a path.
    InputError: there is no encoder, or the store cannot be read. The message lists what is there,
      or names the missing package.
  """
  if not isinstance(path, (str, os.PathLike)) or not isinstance(os.fspath(path), str):
    raise TypeError(f"the path of the encoder is {path!r}; pass a string or a pathlib.Path")
  if not os.fspath(path):
    raise errors.InputError("the path of the encoder is empty; give the folder of a run or export")
  if hub_models.is_name(path):
    model = hub_models.find(os.fspath(path))
    yield dataclasses.replace(find(model.folder), name=model.name)
    return
  if not storage.is_url(path):
    yield find(path)
    return
  with remote_folders.copied(os.fspath(path)) as copy:
    found = find(copy.folder)
    try:
      yield dataclasses.replace(found, name=copy.name)
    finally:
      _remove(found.parameters)


def find(path: str | os.PathLike[str]) -> EncoderFolder:
  """Returns the files of an encoder on this machine.

  Raises:
    InputError: there is no encoder; the message lists what is there instead.
  """
  place = os.path.abspath(os.path.expanduser(path))
  if os.path.isfile(place):
    raise errors.InputError(
      f"{place} is a file, not an encoder; give a folder: a training run, one of its "
      "checkpoint_<step> folders, an imported encoder or an export"
    )
  folder = epath.Path(place)
  weights = folder / hugging_face.WEIGHTS_FILE
  if weights.is_file() and (folder / encoder_json.ENCODER_FILE).is_file():
    return EncoderFolder(os.fspath(folder), weights, folder)
  for name, use in (
    (sentence_transformers_files.MODULES_FILE, "sentence-transformers, which opens it"),
    (hugging_face.CONFIG_FILE, "another library"),
  ):
    if (folder / name).is_file():
      raise errors.InputError(
        f"{folder} holds {name} but no {encoder_json.ENCODER_FILE}: it is a model of {use}; `vmsst "
        "import --help` lists importable models"
      )
  checkpoint = t5x.find_checkpoint(folder)
  inside = (checkpoint / encoder_json.ENCODER_FILE).is_file()
  return EncoderFolder(
    os.fspath(checkpoint), checkpoint, checkpoint if inside else checkpoint.parent
  )


def _remove(parameters: epath.Path) -> None:
  if parameters.is_dir():
    shutil.rmtree(parameters / "state")
  else:
    parameters.unlink()
