"""Encoders as plain files: `model.safetensors`, `encoder.json` and the vocabulary."""

import os
import pathlib
import types

from safetensors.numpy import save_file

from vmsst.checkpoints import encoder_json, hugging_face, imports
from vmsst.exports import saved_encoder
from vmsst.files import atomic_files


def export_safetensors(
  path: str | os.PathLike[str], output: str | os.PathLike[str]
) -> pathlib.Path:
  """Writes an encoder, and nothing else of its run, as a folder that `vmsst.load` opens.

  `model.safetensors` has the parameters in float32 under their names (`encoder/layers_0/...`).
  `encoder.json` tells the network's kind and sizes, the vocabulary and the length of a sentence.

  Args:
    path: What `vmsst.load` opens.
    output: Folder to make.

  Returns:
    The folder.

  Raises:
    InputError: there is no encoder, or `output` exists; nothing has been written then.
  """
  target = imports.free_folder(output)
  saved = saved_encoder.read(path)
  with atomic_files.atomic_folder(target) as partial:
    write(saved, partial)
  return target


def write(saved: saved_encoder.SavedEncoder, folder: pathlib.Path) -> None:
  """Writes `encoder.json`, the vocabulary and `model.safetensors` into a folder."""
  found = saved.assets
  # Without the decoder that it may have been trained with.
  alone = types.SimpleNamespace(
    network=found.network,
    sentence_encoder=found.network,
    vocabulary=found.vocabulary,
    max_length=found.max_length,
  )
  encoder_json.save_encoder_assets(alone, folder, found.languages)
  save_file(saved.params, folder / hugging_face.WEIGHTS_FILE)
