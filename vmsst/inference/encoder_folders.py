"""Folders that hold an encoder: where its parameters are, and the files that say what they are of.

An encoder is

* an export: `encoder.json`, the vocabulary's file and `model.safetensors` in one folder;
* a checkpoint, `checkpoint_<step>` as T5X lays it out, with `encoder.json` and the vocabulary in it
  or beside it;
* a training run: the folder of its checkpoints, of which the latest is meant.

A remote one (`gs://`, `s3://`) is copied to this machine, without what is not needed.
"""

import contextlib
import dataclasses
import os
import shutil
from collections.abc import Iterator

from etils import epath

from vmsst import errors
from vmsst.checkpoints import encoder_json, hugging_face, t5x
from vmsst.inference import remote_folders

_SENTENCE_TRANSFORMERS_FILE = "modules.json"


@dataclasses.dataclass(frozen=True)
class EncoderFolder:
  """Where the parts of an encoder are on this machine.

  Attributes:
    name: Path of its parameters where they were found, which no other encoder has.
    parameters: A `checkpoint_<step>` folder or a `model.safetensors`.
    assets: The folder of `encoder.json`.
  """

  name: str
  parameters: epath.Path
  assets: epath.Path


@contextlib.contextmanager
def opened(path: str | os.PathLike[str]) -> Iterator[EncoderFolder]:
  """Finds an encoder, for as long as its parameters are read; its other files stay readable.

  Args:
    path: An export, a checkpoint or a run; local, or in an object store (`gs://`, `s3://` and what
      else fsspec knows).

  Raises:
    InputError: there is none, or it is remote and cannot be read; the message says what is there,
      or which package is missing.
  """
  if "://" not in os.fspath(path):
    yield find(path)
    return
  with remote_folders.copied(os.fspath(path)) as copy:
    found = find(copy.folder)
    try:
      yield dataclasses.replace(found, name=copy.name)
    finally:
      _remove(found.parameters)


def find(path: str | os.PathLike[str]) -> EncoderFolder:
  """Finds an encoder on this machine.

  Raises:
    InputError: there is none; the message says what is there instead.
  """
  folder = epath.Path(os.path.abspath(os.path.expanduser(path)))
  weights = folder / hugging_face.WEIGHTS_FILE
  if weights.is_file() and (folder / encoder_json.ENCODER_FILE).is_file():
    return EncoderFolder(os.fspath(folder), weights, folder)
  for name, use in (
    (_SENTENCE_TRANSFORMERS_FILE, "sentence-transformers, which opens it"),
    (hugging_face.CONFIG_FILE, "another library"),
  ):
    if (folder / name).is_file():
      raise errors.InputError(
        f"{folder} holds {name} and no {encoder_json.ENCODER_FILE}: it is a model of {use}; `vmsst "
        "import --help` lists what can be imported"
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
