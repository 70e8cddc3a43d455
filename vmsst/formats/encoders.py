"""Imports released encoders: LaBSE, XLM-R, multilingual E5, Qwen3-Embedding, LASER and others.

The parameters are those of a `vmsst.networks.sentence_encoder.SentenceEncoder`. `vmsst.load` also
gets the pooling and the tokenizer.

Padding is id 0 in this library. If the tokenizer pads with another id (1 in XLM-R and all E5), the
two rows of the token table are swapped. `HuggingFaceVocabulary` swaps the ids of its texts too.
"""

import dataclasses
import os
import pathlib
from collections.abc import Mapping
from typing import Any, cast

import numpy as np

from vmsst import errors, storage
from vmsst.formats import (
  architectures,
  encoder_json,
  hugging_face,
  hugging_face_vocabulary,
  laser,
  mt5,
  sentence_transformers_files,
  tensors,
  transformers_weights,
  vmsst_release,
  weight_tables,
)
from vmsst.formats.architectures import ARCHITECTURES
from vmsst.formats.weight_tables import Converted, Imported
from vmsst.jobs import outputs
from vmsst.networks import sentence_encoder, transformer

TOKENIZER_FILE = hugging_face_vocabulary.TOKENIZER_FILE

_KINDS = ("model_type", None, tuple(ARCHITECTURES))
# Norms in checkpoints that came from TensorFlow.
_OLD_NAMES = {"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"}


def import_encoder(
  folder: str | os.PathLike[str],
  output: str | os.PathLike[str],
  *,
  prefix: str | None = None,
  vocabulary: str | os.PathLike[str] | None = None,
) -> Imported:
  """Writes an encoder as a folder that `vmsst.load` opens and that training runs start from.

  Args:
    folder: A Hugging Face folder: `config.json` and safetensors of the encoder, with or without its
      pre-training head, which is left out. The modules of sentence-transformers after the pooling
      become the head, except that a first dense module with tanh, as in LaBSE, becomes the pooler,
      and the last scaling to length 1 the option `normalize`. Or mT5, VMSST or LASER in the layout
      of its release (`mt5.convert`, `vmsst_release.convert`, `laser.convert`). One in an object
      store is copied to this machine.
    output: Folder to make, local or in an object store. It gets `checkpoint_0` and, if the source
      has a tokenizer, `encoder.json` and a `tokenizer.json` made from all of the tokenizer's files
      (of LASER, mT5 and VMSST, `vocabulary.model`).
    prefix: Text before every sentence. None: the folder's default prompt; if its files do not
      mention prompts, "query: " if its name or config calls it an E5, and nothing otherwise.
    vocabulary: SentencePiece model of an mT5 or VMSST whose folder lacks it.

  Raises:
    InputError: the source cannot be used, or `output` exists. Nothing is written then.
  """
  target = outputs.new_folder(output)
  with storage.local_copy(storage.absolute(folder)) as local:
    given = None if vocabulary is None else pathlib.Path(storage.absolute(vocabulary))
    return weight_tables.save(convert(local, prefix=prefix, vocabulary=given), target)


def convert(
  local: pathlib.Path,
  *,
  prefix: str | None = None,
  vocabulary: pathlib.Path | None = None,
  whole: bool = True,
) -> Converted:
  """Returns an encoder without writing it; arguments and errors are those of `import_encoder`.

  Args:
    local: Its folder.
    prefix: As in `import_encoder`.
    vocabulary: As in `import_encoder`.
    whole: Whether the decoder of mT5 is wanted, too.
  """
  weight_tables.check_folder(local)
  config_file = local / hugging_face.CONFIG_FILE
  if config_file.is_file():
    # Before the modules, whose errors would hide that it is another kind of model.
    record = hugging_face.read_object(config_file)
    hugging_face.check_choice(config_file, record, *_KINDS)
    has_modules = (local / sentence_transformers_files.MODULES_FILE).is_file()
    is_gated = record.get("feed_forward_proj") == "gated-gelu"
    if record["model_type"] in mt5.TYPES and is_gated and not has_modules:
      _check_no_prefix(local, prefix)
      return _t5(local, vocabulary, whole)
    errors.check(vocabulary is None, "the vocabulary", vocabulary, "None: the folder has its own")
  elif laser.files(local):
    _check_no_prefix(local, prefix)
    return laser.convert(local)
  released = sentence_transformers_files.read(local)
  source, tokenizer = released.transformer, cast(Any, released.tokenizer)
  file = architectures.ConfigFile(source / hugging_face.CONFIG_FILE, released.config)
  hugging_face.check_choice(file.path, file.record, *_KINDS)
  architecture = ARCHITECTURES[file.record["model_type"]]
  sizes = architecture.sizes(file)
  # The id that the tokenizer pads with. The model's config may have another: a small E5 is a BERT,
  # id 0, with the tokenizer of XLM-R.
  if tokenizer is not None:
    padding_id = hugging_face_vocabulary.padding_id(tokenizer)
  elif str(file.record.get("tokenizer_class")).startswith("XLMRoberta"):
    padding_id = 1
  else:
    padding_id = file.padding_id(0)
  rows = sizes["vocab_size"]
  if padding_id >= rows and not hugging_face_vocabulary.is_free(tokenizer, padding_id):
    raise errors.InputError(
      f"{source}: the padding id is {padding_id}, outside the table of {rows} rows"
    )
  first = sizes.get("position_offset", 0)
  if first and tokenizer is not None and padding_id != first - 1:
    raise errors.InputError(
      f"{file.path}: its model pads with id {first - 1}, from which it counts positions, but the "
      f"tokenizer pads with {padding_id}"
    )
  prompts = released.prompts
  if not released.pools_prompt:
    if prefix or (prefix is None and (released.prefix or prompts)):
      raise errors.InputError(
        f"{local}: pooling without prompts ('include_prompt') is not supported; pass an empty "
        "prefix"
      )
    prompts = {}
  prefix = released.prefix if prefix is None else prefix
  stored = hugging_face.open_tensors(source)
  named, left_out = _named(source, architecture, stored)
  config = transformer.TransformerConfig(**sizes)
  network, table = _network(config, released), architecture.rows(config)
  all_rows = transformers_weights.layer_rows(network)
  for (name, _), rows_of_layer in zip(released.layers, all_rows, strict=True):
    table += [dataclasses.replace(row, source=f"{name}/{row.source}") for row in rows_of_layer]
    if rows_of_layer:
      named |= {f"{name}/{x}": y for x, y in hugging_face.open_tensors(local / name).items()}
  weight_tables.check(table, named, str(source))
  notes = []
  if padding_id >= rows:
    sizes["vocab_size"] = padding_id + 1
    config = dataclasses.replace(config, vocab_size=padding_id + 1)

  def params() -> dict[str, np.ndarray]:
    arrays = weight_tables.to_parameters(table, named)
    if padding_id:
      table_VD = arrays[weight_tables.TOKEN_TABLE]
      if config.vocab_size > rows:
        # No text has an id after the table, so that its vector is not used.
        unused_ND = np.zeros((config.vocab_size - rows, config.emb_dim), np.float32)
        table_VD = np.concatenate([table_VD, unused_ND])  # np.pad takes ten times as long
      table_VD[[0, padding_id]] = table_VD[[padding_id, 0]]
      arrays[weight_tables.TOKEN_TABLE] = table_VD
    return arrays

  if padding_id:
    notes.append(
      f"The tokenizer pads with id {padding_id}, this library with 0: these two rows of the token "
      "table are swapped, and so are the ids of texts"
    )
  max_length = released.max_length or config.max_tokens + 1
  if max_length > config.max_tokens:
    max_length = mt5.MAX_LENGTH if config.positions == "relative" else config.max_tokens

  def assets(folder: pathlib.Path) -> encoder_json.EncoderAssets:
    vocabulary = hugging_face_vocabulary.save(
      tokenizer, str(folder / TOKENIZER_FILE), prefix, prompts
    )
    described = dataclasses.replace(network, config=config, parent=None)
    return encoder_json.EncoderAssets(
      described, vocabulary, max_length, similarity_fn_name=released.similarity_fn_name
    )

  if tokenizer is None:
    notes.append(
      f"Without a {TOKENIZER_FILE}, vmsst.load cannot open it: save one with transformers' "
      "AutoTokenizer. Training can start from it with a vocabulary of the same ids"
    )
  else:
    notes.append(
      f"Sentence vectors: pooling {released.pooling!r}, normalize {network.normalize}, prefix "
      f"{prefix!r}, at most {max_length} tokens"
    )
  return Converted(
    convert=params,
    sizes=sizes,
    left_out=left_out,
    assets=None if tokenizer is None else assets,
    notes=tuple(notes),
  )


def _check_no_prefix(folder: pathlib.Path, prefix: str | None) -> None:
  errors.check(not prefix, f"the prefix of {folder}", prefix, "None: the encoder has no prefix")


def _t5(folder: pathlib.Path, vocabulary: pathlib.Path | None, whole: bool) -> Converted:
  """Returns an mT5, or a release of VMSST, whose encoder has other names."""
  names = hugging_face.open_tensors(folder)
  if any(name.startswith(vmsst_release.ENCODER) for name in names):
    return vmsst_release.convert(folder, vocabulary=vocabulary)
  return mt5.convert(folder, vocabulary=vocabulary, whole=whole)


def _network(
  config: transformer.TransformerConfig, released: sentence_transformers_files.Released
) -> sentence_encoder.SentenceEncoder:
  """Returns the network of an encoder; a run that starts from it inherits all but the head."""
  layers = [layer for _, layer in released.layers]
  dense = [layer for layer in layers if isinstance(layer, sentence_encoder.Dense)]
  pooled = config.width * len(released.pooling.split("+"))
  pooler_dim = None
  if dense and layers[0] == sentence_encoder.Dense(dense[0].features):
    pooler_dim = dense[0].features
    del layers[0]
  normalize = layers[-1:] == [sentence_encoder.Normalize()]
  return sentence_encoder.SentenceEncoder(
    config,
    dense[-1].features if dense else pooled,
    head=tuple(layers[: len(layers) - normalize]) or False,
    pooling=released.pooling,
    normalize=normalize,
    pooler_dim=pooler_dim,
  )


def _named(
  folder: pathlib.Path,
  architecture: architectures.Architecture,
  stored: Mapping[str, tensors.StoredTensor],
) -> tuple[dict[str, tensors.StoredTensor], dict[str, str]]:
  """Returns the encoder's tensors by their plain names, and why others are left out.

  Args:
    folder: The source, for messages.
    architecture: Its architecture.
    stored: All tensors.
  """
  words = architecture.token_table
  prefix = next((prefix for prefix in architecture.prefixes if prefix + words in stored), None)
  if prefix is None:
    raise errors.InputError(f"{folder} lacks {words}: it is not a {architecture.name}")
  named: dict[str, tensors.StoredTensor] = {}
  left_out = {}
  for source, tensor in stored.items():
    name = source.removeprefix(prefix)
    for old, new in _OLD_NAMES.items():
      name = name.replace(old, new)
    reason = next(
      (note for start, note in architecture.left_out.items() if name.startswith(start)), None
    )
    if reason is not None:
      left_out[source] = reason
    elif name in named:
      raise errors.InputError(f"{folder} holds {name} twice, also as {source}")
    else:
      named[name] = tensor
  return named, left_out
