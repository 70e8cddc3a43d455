"""The released VMSST: the encoder of an mT5 and the matrix behind its mean, nothing else.

Its authors publish the model twice: for transformers (`jwieting/vmsst`), where the encoder lies
under `mt5_encoder.` and the matrix is `projection.weight`, and as a T5X checkpoint. Whatever the
encoder is called, its parts have mT5's names; the matrix is found by its name or its shape, or is
named by the caller.
"""

import dataclasses
import os
import pathlib
from collections.abc import Mapping

import numpy as np

from vmsst import errors
from vmsst.checkpoints import encoder_json, hugging_face, imports, t5x, tensors, torch_files
from vmsst.checkpoints.importers import mt5
from vmsst.files import atomic_files
from vmsst.text import vocabularies

PICKLED_FILE = "pytorch_model.bin"
# The released code reads as many, though it was trained on 32.
MAX_LENGTH = 512

_HEAD = "mean/kernel"
_TABLE = "token_embedder/embedding"
_TABLES = ("shared.weight", "encoder.embed_tokens.weight")
_HEAD_NAMES = ("projection", "projection_layer", "mean")
_NOT_OURS = "the sentence encoder has no such parameter"


@dataclasses.dataclass(frozen=True)
class Imported:
  """What an import has done.

  Attributes:
    checkpoint: The checkpoint written.
    sizes: Sizes of the encoder.
    dimension: Width of a sentence vector.
    max_length: Tokens of a sentence, end mark included; longer ones are cut.
    rows: Every tensor of the source.
  """

  checkpoint: pathlib.Path
  sizes: mt5.Sizes
  dimension: int
  max_length: int
  rows: tuple[imports.Row, ...]


@dataclasses.dataclass(frozen=True)
class _Source:
  """Tensors of a source.

  Attributes:
    where: For messages.
    tensors: All of them by name.
    names: Name there of each parameter of the encoder, by ours.
    transposed: Whether matrices are [output, input].
    sizes: Sizes of the encoder.
    vocabulary: The SentencePiece model beside them, or None.
  """

  where: pathlib.Path
  tensors: Mapping[str, tensors.StoredTensor]
  names: dict[str, str]
  transposed: bool
  sizes: mt5.Sizes
  vocabulary: pathlib.Path | None = None


def import_vmsst(
  source: str | os.PathLike[str],
  output: str | os.PathLike[str],
  *,
  vocabulary: str | os.PathLike[str] | None = None,
  projection: str | None = None,
  max_length: int = MAX_LENGTH,
) -> Imported:
  """Writes VMSST as a folder that `vmsst.load` opens and that training runs start from.

  Args:
    source: The Hugging Face folder (`config.json` with `model.safetensors` or `pytorch_model.bin`),
      one such file alone, or the T5X checkpoint of either layout. What is pickled is read without
      running anything in it.
    output: Folder to make. It gets `checkpoint_0`, `encoder.json` and the vocabulary.
    vocabulary: mT5's SentencePiece model; None: the `spiece.model` of the folder.
    projection: Name in the source of the matrix behind the mean, where it cannot be told.
    max_length: Tokens of a sentence, end mark included.

  Raises:
    InputError: the source cannot be used, or `output` exists; nothing has been written then.
  """
  target = imports.free_folder(output)
  found = _open(pathlib.Path(os.path.abspath(source)))
  if max_length < 1:
    raise errors.InputError(f"max_length is {max_length}; it has to be at least 1")
  given = found.vocabulary if vocabulary is None else vocabulary
  if given is None:
    raise errors.InputError(
      f"{found.where} has no {mt5.VOCABULARY_FILE} beside it: give that of google/mt5-large "
      "(--vocabulary)"
    )
  pieces = vocabularies.SentencePieceVocabulary(os.path.abspath(given))
  head = _head(found, projection)
  shape = found.tensors[head].shape
  dimension = shape[0] if found.transposed else shape[1]
  names = {**found.names, _HEAD: head}
  with atomic_files.atomic_folder(target) as partial:
    params = {}
    for ours, theirs in names.items():
      array = found.tensors[theirs].read()
      turned = found.transposed and array.ndim == 2 and ours != _TABLE
      params[ours] = np.ascontiguousarray(array.T) if turned else array
    t5x.write_params(t5x.epath.Path(partial / imports.CHECKPOINT), params)
    sizes = dataclasses.asdict(found.sizes)
    del sizes["num_decoder_layers"]
    encoder_json.save_imported_encoder(
      partial,
      network={
        "class": "SentenceEncoder",
        "config_class": "T5Config",
        "config": sizes,
        "latent_dim": dimension,
      },
      vocabulary=pieces,
      max_length=max_length,
    )
  return Imported(
    target / imports.CHECKPOINT, found.sizes, dimension, max_length, tuple(_rows(found, names))
  )


def describe(imported: Imported) -> str:
  """A table of every tensor and what became of it, sizes, and how to use the output."""
  sizes = ", ".join(f"{key}={value}" for key, value in dataclasses.asdict(imported.sizes).items())
  folder = imported.checkpoint.parent
  return "\n".join(
    [
      *imports.describe_rows(imported.rows),
      f"Sizes: {sizes}",
      f"Sentence vectors of {imported.dimension} numbers, at most {imported.max_length} tokens",
      f"vmsst.load({str(folder)!r}) opens them",
      f"VOCABULARY_PATH = {str(folder / encoder_json.VOCABULARY_FILE)!r}",
      f"INITIAL_CHECKPOINT_PATH = {str(imported.checkpoint)!r}",
    ]
  )


def _rows(found: _Source, names: Mapping[str, str]) -> list[imports.Row]:
  """What becomes of every tensor: the parameters in our order, then what is left out."""
  used = [
    imports.Row(theirs, found.tensors[theirs].shape, (ours,)) for ours, theirs in names.items()
  ]
  left = sorted(set(found.tensors) - set(names.values()))
  return used + [imports.Row(name, found.tensors[name].shape, note=_NOT_OURS) for name in left]


def _open(path: pathlib.Path) -> _Source:
  if path.is_file():
    return _open_state(path, _open_file(path), path.parent)
  if not path.is_dir():
    raise errors.InputError(f"no file or folder {path}")
  if (path / hugging_face.CONFIG_FILE).is_file():
    pickled = path / PICKLED_FILE
    whole = (hugging_face.WEIGHTS_FILE, hugging_face.INDEX_FILE)
    if pickled.is_file() and not any((path / name).is_file() for name in whole):
      return _open_state(path, torch_files.open_file(pickled), path)
    return _open_state(path, hugging_face.open_tensors(path), path)
  checkpoint = mt5.open_t5x_params(path)
  if checkpoint is None:
    inside = ", ".join(sorted(child.name for child in path.iterdir())[:20]) or "nothing"
    raise errors.InputError(
      f"{path} is neither a Hugging Face folder (config.json, model.safetensors) nor a T5X "
      f"checkpoint: it holds {inside}"
    )
  return _open_t5x(*checkpoint)


def _open_file(path: pathlib.Path) -> dict[str, tensors.StoredTensor]:
  if path.suffix == ".safetensors":
    return hugging_face.open_file(path)
  return torch_files.open_file(path)


def _open_t5x(checkpoint: pathlib.Path, found: dict[str, tensors.StoredTensor]) -> _Source:
  sizes = dataclasses.replace(mt5.sizes_of_shapes(checkpoint, found), num_decoder_layers=0)
  wanted = mt5.shapes(sizes)
  names = {name: name for name in wanted}
  _check(found, names, wanted, "encoder/", checkpoint)
  return _Source(checkpoint, found, names, False, sizes)


def _open_state(
  where: pathlib.Path, found: dict[str, tensors.StoredTensor], folder: pathlib.Path
) -> _Source:
  """A state dict in the names of transformers, the encoder under a name of its own or none."""
  tables = [name for end in _TABLES for name in sorted(found) if name.endswith(end)]
  if not tables:
    raise errors.InputError(
      f"{where} has no tensor that ends in {' or '.join(_TABLES)}, so no token table of an mT5: it "
      f"holds {tensors.some(found)}"
    )
  table = tables[0]
  prefix = next(table.removesuffix(end) for end in _TABLES if table.endswith(end))
  sizes = _sizes(where, found, prefix, table)
  config_path = folder / hugging_face.CONFIG_FILE
  if config_path.is_file():
    config = hugging_face.read_object(config_path)
    for key, known in (("feed_forward_proj", "gated-gelu"), ("layer_norm_epsilon", 1e-6)):
      hugging_face.check_choice(config_path, config, key, known, (known,))
    distance = hugging_face.positive_integer(
      config_path, config, "relative_attention_max_distance", sizes.relpos_max_distance
    )
    sizes = dataclasses.replace(sizes, relpos_max_distance=distance)
  wanted = mt5.shapes(sizes)
  names = {name: prefix + mt5.hugging_face_name(name) for name in wanted}
  names[_TABLE] = table
  turned = {name: shape if name == _TABLE else shape[::-1] for name, shape in wanted.items()}
  _check(found, names, turned, f"{prefix}encoder.", where)
  vocabulary = folder / mt5.VOCABULARY_FILE
  return _Source(where, found, names, True, sizes, vocabulary if vocabulary.is_file() else None)


def _check(
  found: Mapping[str, tensors.StoredTensor],
  names: Mapping[str, str],
  shapes: Mapping[str, tuple[int, ...]],
  stack: str,
  where: pathlib.Path,
) -> None:
  """Whether the encoder, whose names start with `stack`, is whole and of one size."""
  parts = {
    name: tensor
    for name, tensor in found.items()
    if name in names.values() or (name.startswith(stack) and not name.endswith(_TABLES))
  }
  tensors.check_names_and_shapes(
    parts, {names[ours]: shape for ours, shape in shapes.items()}, str(where)
  )


def _sizes(
  where: pathlib.Path, found: Mapping[str, tensors.StoredTensor], prefix: str, table: str
) -> mt5.Sizes:
  """Sizes told by a few tensors; whether the others agree is checked afterward."""

  def matrix(name: str) -> tuple[int, ...]:
    if name not in found:
      raise errors.InputError(f"{where} lacks {name}: it holds {tensors.some(found)}")
    if len(found[name].shape) != 2 or 0 in found[name].shape:
      raise errors.InputError(f"{found[name].where} has shape {found[name].shape}, no matrix's")
    return found[name].shape

  block = f"{prefix}encoder.block."
  first = f"{block}0.layer.0.SelfAttention"
  vocab_size, emb_dim = matrix(table)
  relpos_buckets, num_heads = matrix(f"{first}.relative_attention_bias.weight")
  joined, _ = matrix(f"{first}.q.weight")
  mlp_dim, _ = matrix(f"{block}0.layer.1.DenseReluDense.wi_0.weight")
  layers = {name.removeprefix(block).split(".")[0] for name in found if name.startswith(block)}
  return mt5.Sizes(
    vocab_size=vocab_size,
    emb_dim=emb_dim,
    num_heads=num_heads,
    head_dim=joined // num_heads,
    mlp_dim=mlp_dim,
    num_encoder_layers=len(layers),
    num_decoder_layers=0,
    relpos_buckets=relpos_buckets,
  )


def _head(found: _Source, projection: str | None) -> str:
  """Name of the matrix behind the mean."""
  width = found.sizes.emb_dim
  known = set(found.names.values())

  def fits(name: str) -> bool:
    shape = found.tensors[name].shape
    return len(shape) == 2 and shape[1 if found.transposed else 0] == width

  if projection is not None:
    if projection not in found.tensors or not fits(projection):
      shape = found.tensors[projection].shape if projection in found.tensors else "absent"
      raise errors.InputError(
        f"projection {projection} of {found.where} is {shape}; it has to be a matrix of {width} "
        f"inputs. Beside the encoder there are {tensors.some(set(found.tensors) - known)}"
      )
    return projection
  # A decoder's and a second encoder's parts lie deeper than a matrix behind the mean.
  outer = [
    name
    for name in sorted(set(found.tensors) - known)
    if fits(name) and not any(part in name for part in ("layers", "block.", *_TABLES))
  ]
  called = [name for name in outer if _last_part(name) in _HEAD_NAMES]
  for candidates in (called, outer):
    if len(candidates) == 1:
      return candidates[0]
  raise errors.InputError(
    f"{found.where}: the matrix behind the mean cannot be told: expected one of {width} inputs, "
    f"such as projection.weight, found {tensors.some(outer) if outer else 'none'}; name it "
    "(--projection)"
  )


def _last_part(name: str) -> str:
  """`projection` of `projection.weight` and of `x/projection/kernel`."""
  return name.removesuffix(".weight").removesuffix("/kernel").replace("/", ".").split(".")[-1]
