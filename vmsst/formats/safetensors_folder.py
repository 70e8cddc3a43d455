"""Exports encoders as plain files: `model.safetensors`, `encoder.json` and the vocabulary."""

import os
import pathlib

from vmsst import storage
from vmsst.checkpoints import saved_encoders
from vmsst.formats import encoder_json, hugging_face, tensors
from vmsst.jobs import outputs, work_folders


def export_safetensors(
  path: str | os.PathLike[str], output: str | os.PathLike[str]
) -> storage.Path:
  """Writes an encoder, without the rest of its run, as a folder that `vmsst.load` opens.

  `model.safetensors` has the parameters in float32 by name (`encoder/layers_0/...`, or
  `encoder/layers/...` with an axis of layers if the run scanned them). `encoder.json` describes the
  network, its sizes, the vocabulary and the maximum length of a sentence, and has the SHA-256 of
  `model.safetensors`, which `vmsst.load` checks.

  Args:
    path: A path that `vmsst.load` opens.
    output: Folder to make, local or in an object store.

  Returns:
    The folder.

  Raises:
    InputError: there is no encoder, or `output` exists. Nothing is written then.
  """
  target = outputs.new_folder(output)
  saved = saved_encoders.read(path)
  with work_folders.atomic_folder(target) as partial:
    write(saved, partial)
  return target


def write(saved: saved_encoders.SavedEncoder, folder: pathlib.Path) -> None:
  """Writes `model.safetensors`, the vocabulary and `encoder.json` into a folder.

  Raises:
    OSError: a file cannot be written.
  """
  tensors.write_file(folder / hugging_face.WEIGHTS_FILE, saved.arrays)
  encoder_json.save_assets(saved.assets, folder, [hugging_face.WEIGHTS_FILE])
