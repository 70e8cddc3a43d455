"""Writes encoders as plain files: `model.safetensors`, `encoder.json` and the vocabulary."""

import pathlib

from vmsst.formats import encoder_json, hugging_face, tensors


def write(saved: encoder_json.SavedEncoder, folder: pathlib.Path) -> None:
  """Writes an encoder, without the rest of its run, into a folder that `vmsst.load` opens.

  `model.safetensors` has the parameters in float32 by name (`encoder/layers_0/...`, or
  `encoder/layers/...` with an axis of layers if the run scanned them). `encoder.json` describes the
  network, its sizes, the vocabulary and the maximum length of a sentence, and has the SHA-256 of
  `model.safetensors`, which `vmsst.load` checks.
  """
  tensors.write_file(folder / hugging_face.WEIGHTS_FILE, saved.arrays)
  encoder_json.save_assets(saved.assets, folder, [hugging_face.WEIGHTS_FILE])
