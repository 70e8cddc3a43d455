"""Finds the files of an encoder: its parameters, and `encoder.json` with the vocabulary.

An encoder is one of

* an export: `encoder.json`, the vocabulary's file and `model.safetensors` in one folder (in exports
  for sentence-transformers, a dense module in its own folder may have the last parameters);
* a checkpoint: `checkpoint_<step>` in T5X's layout, with `encoder.json` and the vocabulary in it or
  next to it;
* a training run: the folder of its checkpoints, for the latest one;
* a folder of transformers or sentence-transformers with a BERT or XLM-R, on this machine.

The required files of a remote encoder (`gs://`, `s3://`) are copied to this machine. A name such as
"sentence-transformers/LaBSE" is looked up on the Hugging Face Hub if there is no such folder.
"""

import contextlib
import dataclasses
import os
import pathlib
import shutil
import tempfile
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
from vmsst.data.hugging_face_vocabulary import TOKENIZER_FILE
from vmsst.io import checksums, storage

_EXPORT = {hugging_face.WEIGHTS_FILE, encoder_json.ENCODER_FILE}
_ASSETS = {encoder_json.ENCODER_FILE, encoder_json.VOCABULARY_FILE, TOKENIZER_FILE}
# Further files of exports for sentence-transformers.
_MODULES = {hugging_face.CONFIG_FILE, sentence_transformers_files.MODULES_FILE}


@dataclasses.dataclass(frozen=True)
class EncoderFolder:
  """Paths of an encoder's parts on this machine.

  Attributes:
    name: Unique name of the encoder: the original path of its parameters.
    parameters: A `checkpoint_<step>` folder or a `model.safetensors`.
    assets: The folder of `encoder.json`.
    released: Whether it is a folder of transformers, and both paths are it.
  """

  name: str
  parameters: epath.Path
  assets: epath.Path
  released: bool = False


def lacks_checkpoint(path: str | os.PathLike[str]) -> bool:
  """Returns whether a path is that of an encoder without a T5X checkpoint.

  That is a name on the Hugging Face Hub, an export, or a folder of transformers.
  """
  if hub_models.is_name(path):
    return True
  if storage.is_url(path):
    return storage.names(os.fspath(path)) >= _EXPORT
  folder = pathlib.Path(path)
  is_export = all((folder / name).is_file() for name in _EXPORT)
  return is_export or hub_models.is_released(folder)


@contextlib.contextmanager
def opened(path: str | os.PathLike[str]) -> Iterator[EncoderFolder]:
  """Yields an encoder's files. After the context, parameters copied from a store are deleted.

  Args:
    path: An export, a checkpoint or a run; local, or in an object store (`gs://`, `s3://`); or a
      name on the Hugging Face Hub.

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
    yield dataclasses.replace(_find(model.folder), name=model.name)
    return
  if not storage.is_url(path):
    yield _find(path)
    return
  url = os.fspath(path).rstrip("/")
  # The vocabulary's file is read as long as the process lives.
  target = pathlib.Path(tempfile.mkdtemp(dir=storage.process_folder()))
  with storage.explained(url, "read"):
    name, around = _copy(url, target)
  with storage.naming(str(target), around):
    folder = _find(target)
    try:
      yield dataclasses.replace(folder, name=name)
    finally:
      if folder.parameters.is_dir():
        shutil.rmtree(folder.parameters / "state")
      else:
        folder.parameters.unlink()


def _copy(url: str, target: pathlib.Path) -> tuple[str, str]:
  """Copies an encoder from a store into a folder; returns the paths of its parameters and there."""

  def copy(folder: str, names: set[str], to: pathlib.Path) -> None:
    to.mkdir(exist_ok=True)
    for name in names:
      storage.download(f"{folder}/{name}", to / name)

  names = storage.names(url)
  if names >= _EXPORT:
    storage.check_finished(url, names)
    dense = {name for name in names if name.endswith("_Dense")}
    copy(url, names & (_EXPORT | _ASSETS | _MODULES) | dense, target)
    return url, url
  checkpoint = os.fspath(t5x.find_checkpoint(url))
  around, _, name = checkpoint.rpartition("/")
  inside, beside = storage.names(checkpoint), storage.names(around)
  needed = _ASSETS if encoder_json.ENCODER_FILE in inside else set()
  copy(checkpoint, inside & {checksums.NAME, "state", *needed}, target / name)
  if not needed:
    copy(around, beside & _ASSETS, target)
  return checkpoint, around


def _find(path: str | os.PathLike[str]) -> EncoderFolder:
  """Returns the files of an encoder on this machine."""
  location = os.path.abspath(os.path.expanduser(path))
  if os.path.isfile(location):
    raise errors.InputError(
      f"{location} is a file, not an encoder; give a folder: a training run, one of its "
      "checkpoint_<step> folders, an imported encoder or an export"
    )
  folder = epath.Path(location)
  if all((folder / name).is_file() for name in _EXPORT):
    return EncoderFolder(os.fspath(folder), folder / hugging_face.WEIGHTS_FILE, folder)
  if hub_models.is_released(pathlib.Path(folder)):
    return EncoderFolder(os.fspath(folder), folder, folder, released=True)
  for name in _MODULES:
    if (folder / name).is_file():
      raise errors.InputError(
        f"{folder} holds {name} but no {encoder_json.ENCODER_FILE}: it is a model of another "
        "library, neither BERT nor XLM-R; `vmsst import --help` lists importable models"
      )
  checkpoint = t5x.find_checkpoint(folder)
  inside = (checkpoint / encoder_json.ENCODER_FILE).is_file()
  return EncoderFolder(
    os.fspath(checkpoint), checkpoint, checkpoint if inside else checkpoint.parent
  )
