"""Imports and exports from Python, as the commands write them."""

import pathlib
import types

from vmsst.checkpoints import saved_encoders
from vmsst.formats import ems, encoders, safetensors_folder, sentence_transformers_folder
from vmsst.jobs import outputs


def import_encoder(folder, output, **options):
  """Writes an encoder of another library; returns the checkpoint and what was converted."""
  return _save(encoders.convert(pathlib.Path(folder), **options), output)


def import_ems(path, output, vocabulary, **options):
  """Writes EMS; returns the checkpoint and what was converted."""
  return _save(ems.convert(path, vocabulary=str(vocabulary), **options), output)


def _save(converted, output):
  with outputs.atomic_folder(pathlib.Path(output)) as folder:
    saved_encoders.write(converted, folder)
  checkpoint = pathlib.Path(output, saved_encoders.CHECKPOINT)
  return types.SimpleNamespace(checkpoint=checkpoint, converted=converted)


def export_sentence_transformers(path, output):
  """Writes an encoder for sentence-transformers; returns the folder."""
  return _export(sentence_transformers_folder, path, output)


def export_safetensors(path, output):
  """Writes an encoder as plain files; returns the folder."""
  return _export(safetensors_folder, path, output)


def _export(form, path, output):
  saved = saved_encoders.read(path)
  with outputs.atomic_folder(pathlib.Path(output)) as folder:
    form.write(saved, folder)
  return output
