"""Imports and exports from Python, as the commands write them."""

import pathlib
import types

from vmsst.encoder import loading
from vmsst.formats import ems, encoder_json, sentence_transformers
from vmsst.jobs import outputs


def import_encoder(folder, output, **options):
  """Writes an encoder of another library; returns the checkpoint and what was converted."""
  return _save(loading.convert(pathlib.Path(folder), **options), output)


def import_ems(path, output, vocabulary, **options):
  """Writes EMS; returns the checkpoint and what was converted."""
  return _save(ems.convert(path, vocabulary=str(vocabulary), **options), output)


def _save(converted, output):
  with outputs.atomic_folder(pathlib.Path(output)) as folder:
    loading.write(converted.params(), converted.assets, folder)
  checkpoint = pathlib.Path(output, loading.CHECKPOINT)
  return types.SimpleNamespace(checkpoint=checkpoint, converted=converted)


def export_sentence_transformers(path, output):
  """Writes an encoder for sentence-transformers; returns the folder."""
  return _export(sentence_transformers, path, output)


def export_safetensors(path, output):
  """Writes an encoder as plain files; returns the folder."""
  return _export(encoder_json, path, output)


def _export(form, path, output):
  saved = loading.read(path)
  with outputs.atomic_folder(pathlib.Path(output)) as folder:
    form.write(saved, folder)
  return output
