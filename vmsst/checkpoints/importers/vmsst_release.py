"""Imports the released VMSST: an mT5 encoder and the projection after its mean.

Its authors publish the model twice. For transformers (`jwieting/vmsst`) the encoder's names start
with `mt5_encoder.` and the projection is `projection.weight`; the other form is a T5X checkpoint.
Encoders under any prefix are read. The projection is found by its name or its shape, or the caller
names it.

The names of the other parameters of the T5X checkpoint (language encoder, decoder) are not
published; they are left out.
"""

import dataclasses
import os
import pathlib
from collections.abc import Mapping

from vmsst import errors
from vmsst.checkpoints import encoder_json, hugging_face, output_folders, tensors, torch_files
from vmsst.checkpoints.importers import mt5, weight_tables
from vmsst.files import input_files, storage, work_folders
from vmsst.text import vocabularies

PICKLED_FILE = "pytorch_model.bin"
_EXPECTED = f"{PICKLED_FILE} or {hugging_face.WEIGHTS_FILE} of the release, or their folder"
# The released code reads this many tokens, though it was trained on 32.
MAX_LENGTH = 512

_HEAD = "mean/kernel"
_TABLES = (mt5.TABLE_NAME, mt5.COPIES[0])
_HEAD_NAMES = ("projection", "projection_layer", "mean")
_UNUSED = "the sentence encoder has no such parameter"


@dataclasses.dataclass(frozen=True)
class _Source:
  """An opened source.

  Attributes:
    where: The source, for messages.
    tensors: All tensors by name.
    encoder: Rows of the encoder.
    transposed: Whether matrices are [outputs, inputs].
    sizes: Attributes of the encoder's config.
    vocabulary: The SentencePiece model next to the source, or None.
  """

  where: pathlib.Path
  tensors: Mapping[str, tensors.StoredTensor]
  encoder: list[weight_tables.Row]
  transposed: bool
  sizes: Mapping[str, int]
  vocabulary: pathlib.Path | None = None


def import_vmsst(
  source: str | os.PathLike[str],
  output: str | os.PathLike[str],
  *,
  vocabulary: str | os.PathLike[str] | None = None,
  projection: str | None = None,
  max_length: int = MAX_LENGTH,
) -> weight_tables.Imported:
  """Writes VMSST as a folder that `vmsst.load` opens and that training runs start from.

  Args:
    source: The Hugging Face folder (`config.json` with `model.safetensors` or `pytorch_model.bin`),
      one such weights file, or the T5X checkpoint of either layout. Nothing in a pickle is run.
      One in an object store is copied to this machine.
    output: Folder to make, local or in an object store. It gets `checkpoint_0`,
      `encoder.json` and the vocabulary.
    vocabulary: mT5's SentencePiece model; None: `spiece.model` in the folder.
    projection: The projection's name in the source; None: find it.
    max_length: Tokens of a sentence, EOS included. Longer sentences are cut.

  Raises:
    InputError: the source cannot be used, or `output` exists. Nothing is written then.
  """
  target = output_folders.new_folder(output)
  next_to = (hugging_face.CONFIG_FILE, mt5.VOCABULARY_FILE)
  with storage.local_copy(storage.absolute(source), next_to) as path:
    found = _open(path)
    if max_length < 1:
      raise errors.InputError(f"max_length is {max_length}; it must be at least 1")
    given = found.vocabulary if vocabulary is None else vocabulary
    if given is None:
      raise errors.InputError(
        f"{found.where} has no {mt5.VOCABULARY_FILE} next to it; pass that of google/mt5-large "
        "(--vocabulary)"
      )
    pieces = vocabularies.SentencePieceVocabulary(storage.absolute(given))
    head = _head(found, projection)
    shape = found.tensors[head].shape
    dimension = shape[0] if found.transposed else shape[1]
    rows = [*found.encoder, weight_tables.Row(head, shape, (_HEAD,), found.transposed)]
    with work_folders.atomic_folder(target) as partial:
      weight_tables.write_checkpoint(partial, weight_tables.to_parameters(rows, found.tensors))
      encoder_json.save_imported_encoder(
        partial,
        network={
          "class": "SentenceEncoder",
          "config_class": "T5Config",
          "config": dict(found.sizes),
          "latent_dim": dimension,
        },
        vocabulary=pieces,
        max_length=max_length,
      )
  unused = sorted(found.tensors.keys() - {row.source for row in rows})
  rows += [weight_tables.Row(name, found.tensors[name].shape, note=_UNUSED) for name in unused]
  return weight_tables.Imported(
    checkpoint=target / weight_tables.CHECKPOINT,
    sizes=found.sizes,
    rows=tuple(rows),
    vocabulary=target / encoder_json.VOCABULARY_FILE,
    notes=(
      f"Sentence vectors have {dimension} dimensions; sentences at most {max_length} tokens",
      f"vmsst.load({str(target)!r}) opens the encoder",
    ),
  )


def _open(path: pathlib.Path) -> _Source:
  if path.is_file():
    return _open_state(path, torch_files.open_state_dict(path, expected=_EXPECTED), path.parent)
  if not path.is_dir():
    raise errors.InputError(f"no file or folder {path}; give {_EXPECTED}, or a T5X checkpoint")
  if (path / hugging_face.CONFIG_FILE).is_file():
    pickled = path / PICKLED_FILE
    safe = (hugging_face.WEIGHTS_FILE, hugging_face.INDEX_FILE)
    if pickled.is_file() and not any((path / name).is_file() for name in safe):
      return _open_state(path, torch_files.open_state_dict(pickled, expected=_EXPECTED), path)
    return _open_state(path, hugging_face.open_tensors(path), path)
  checkpoint = mt5.open_t5x(path, decoder=False)
  if checkpoint is None:
    inside = input_files.listed(child.name for child in path.iterdir())
    raise errors.InputError(
      f"{path} is neither a Hugging Face folder (config.json, model.safetensors) nor a T5X "
      f"checkpoint: it holds {inside}"
    )
  where, found, sizes = checkpoint
  rows = mt5.rows(sizes, t5x_names=True)
  _check(rows, found, "encoder/", where)
  return _Source(where, found, rows, False, mt5.encoder_sizes(sizes))


def _open_state(
  where: pathlib.Path, found: dict[str, tensors.StoredTensor], folder: pathlib.Path
) -> _Source:
  """Opens a state dict with transformers' names, all of the encoder's after one prefix."""
  tables = [name for end in _TABLES for name in sorted(found) if name.endswith(end)]
  if not tables:
    raise errors.InputError(
      f"{where} has no token table of an mT5 (a tensor whose name ends in {' or '.join(_TABLES)}): "
      f"it holds {tensors.some(found)}"
    )
  prefix = next(tables[0].removesuffix(end) for end in _TABLES if tables[0].endswith(end))

  def actual(name: str) -> str:
    return tables[0] if name == mt5.TABLE_NAME else prefix + name

  table = [dataclasses.replace(rule, source=actual(rule.source)) for rule in mt5.ENCODER]
  why = f"it holds {tensors.some(found)}"
  sizes = mt5.infer_sizes(table, found, str(where), otherwise=why)
  config_path = folder / hugging_face.CONFIG_FILE
  if config_path.is_file():
    config = hugging_face.read_object(config_path)
    for key, known in (("feed_forward_proj", "gated-gelu"), ("layer_norm_epsilon", 1e-6)):
      hugging_face.check_choice(config_path, config, key, known, (known,))
    sizes["relpos_max_distance"] = hugging_face.positive_integer(
      config_path, config, "relative_attention_max_distance", sizes["relpos_max_distance"]
    )
  rows = [dataclasses.replace(row, source=actual(row.source)) for row in mt5.rows(sizes)]
  _check(rows, found, f"{prefix}encoder.", where)
  vocabulary = folder / mt5.VOCABULARY_FILE
  return _Source(
    where, found, rows, True, mt5.encoder_sizes(sizes), vocabulary if vocabulary.is_file() else None
  )


def _check(
  rows: list[weight_tables.Row],
  found: Mapping[str, tensors.StoredTensor],
  stack: str,
  where: pathlib.Path,
) -> None:
  """Raises InputError unless the tensors whose names start with `stack` are exactly the encoder."""
  wanted = {row.source for row in rows}
  parts = {
    name: tensor
    for name, tensor in found.items()
    if name in wanted or (name.startswith(stack) and not name.endswith(_TABLES))
  }
  weight_tables.check(rows, parts, str(where))


def _head(found: _Source, projection: str | None) -> str:
  """Returns the name of the projection."""
  width = found.sizes["emb_dim"]
  others = found.tensors.keys() - {row.source for row in found.encoder}

  def fits(name: str) -> bool:
    shape = found.tensors[name].shape
    return len(shape) == 2 and shape[1 if found.transposed else 0] == width

  if projection is not None:
    if projection not in found.tensors or not fits(projection):
      shape = found.tensors[projection].shape if projection in found.tensors else "absent"
      raise errors.InputError(
        f"projection {projection} of {found.where} is {shape}; it must be a matrix with {width} "
        f"inputs. Next to the encoder there are {tensors.some(others)}"
      )
    return projection
  # Parts of a decoder or a second encoder have longer names.
  outer = [
    name
    for name in sorted(others)
    if fits(name) and not any(part in name for part in ("layers", "block.", *_TABLES))
  ]
  called = [name for name in outer if _last_part(name) in _HEAD_NAMES]
  for candidates in (called, outer):
    if len(candidates) == 1:
      return candidates[0]
  raise errors.InputError(
    f"{found.where}: cannot identify the projection after the mean: expected one matrix with "
    f"{width} inputs, such as projection.weight, found {tensors.some(outer) if outer else 'none'}; "
    "name it (--projection)"
  )


def _last_part(name: str) -> str:
  """Returns `projection` for `projection.weight` and for `x/projection/kernel`."""
  return name.removesuffix(".weight").removesuffix("/kernel").replace("/", ".").split(".")[-1]
