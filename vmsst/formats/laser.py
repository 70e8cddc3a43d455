"""Imports LASER2 (a BiLSTM) and LASER3 (one transformer per language) from the released files.

A folder contains one encoder (a `.pt` file), a SentencePiece model (`.spm`) and, for LASER3, a
dictionary of pieces (`.cvocab`). LASER2's dictionary is stored in its `.pt` file. For some
languages, LASER3 was released with its own `.spm` and `.cvocab` files. All other languages use the
LASER2 files.

The import swaps the first two ids, because BOS and padding have ids 0 and 1 in fairseq (the library
that LASER was trained with), but 1 and 0 in this library. The SentencePiece pieces are sorted into
dictionary order. Pieces that are missing from the dictionary come last, and each of them gets a
copy of the unknown token's vector.

References: Heffernan et al. 2022 (LASER3); the code at github.com/facebookresearch/LASER.
"""

import argparse
import dataclasses
import importlib
import math
import pathlib
import tempfile
from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np

from vmsst import errors, storage
from vmsst.data import vocabularies
from vmsst.formats import encoder_json, tensors, transformers
from vmsst.formats.tensors import TOKEN_TABLE, Row
from vmsst.io import text_files
from vmsst.networks import sentence_encoder, transformer

_URL = "https://dl.fbaipublicfiles.com/nllb/laser/"
_SPECIAL = ("<s>", "<pad>", "</s>", "<unk>")
_UNKNOWN = 3
_WORDS = "embed_tokens"
_NO_PARAMETERS = ("version", "embed_positions._float_tensor")
_MAX_TOKENS = 12_000
# Index of the first position in fairseq.
_OFFSET = 2
_LSTM = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
_LAYER = {
  "self_attn.q_proj": "attention/query",
  "self_attn.k_proj": "attention/key",
  "self_attn.v_proj": "attention/value",
  "self_attn.out_proj": "attention/out",
  "fc1": "mlp/wi",
  "fc2": "mlp/wo",
}


class _LstmOptions(msgspec.Struct, rename={
  "vocab_size": "num_embeddings", "emb_dim": "embed_dim", "hidden_dim": "hidden_size",
}):  # fmt: skip
  """LASER2 options, renamed to match the LstmConfig attributes."""

  vocab_size: transformers.Size
  emb_dim: transformers.Size
  hidden_dim: transformers.Size
  num_layers: transformers.Layers


class _Options(msgspec.Struct, rename={
  "emb_dim": "encoder_embed_dim", "num_heads": "encoder_attention_heads",
  "mlp_dim": "encoder_ffn_embed_dim", "num_layers": "encoder_layers",
}):  # fmt: skip
  """LASER3 options, renamed to match the TransformerConfig attributes where possible."""

  emb_dim: transformers.Size
  num_heads: transformers.Size
  mlp_dim: transformers.Size
  num_layers: transformers.Layers
  max_source_positions: transformers.Size = 1024
  activation_fn: transformers.Activation = "relu"
  encoder_normalize_before: bool = False
  layernorm_embedding: bool = False
  no_scale_embedding: bool = False


def files(folder: pathlib.Path) -> list[pathlib.Path]:
  """Returns the paths of the LASER encoders in a folder."""
  return sorted(folder.glob("laser*.pt"))


def convert(folder: pathlib.Path) -> encoder_json.Converted:
  """Imports the LASER encoder in a folder.

  The original code has no maximum length, but it limits batches to 12,000 tokens. The imported
  encoder uses this limit as its maximum length, unless LASER3's config sets a lower maximum.

  Args:
    folder: Folder with a `.pt` file, its `.spm` file and, for LASER3, its `.cvocab` file.

  Raises:
    InputError: If a file is missing or damaged, or this library does not support the encoder.
  """
  path, *extra_paths = files(folder)
  if extra_paths:
    names = errors.some(file.name for file in (path, *extra_paths))
    raise errors.InputError(f"{folder} contains several encoders: {names}; use one folder for each")
  record = tensors.read_torch(path, argparse.Namespace)
  try:
    is_lstm = "params" in record
    options = dict(record["params"] if is_lstm else vars(record["cfg"]["model"]))
    state = tensors.of_state(path, record["model"])
    dictionary = dict(record["dictionary"] if is_lstm else {})
  except (KeyError, TypeError, ValueError) as error:
    raise errors.InputError(f"{path} is not a LASER encoder ({error!r}); see {_URL}") from None
  # Training checkpoints also contain a decoder, so select the encoder's weights.
  start = "encoder." if f"encoder.{_WORDS}.weight" in state else ""
  weights = {name.removeprefix(start): x for name, x in state.items() if name.startswith(start)}
  for name in _NO_PARAMETERS:
    weights.pop(name, None)
  config: Any
  if is_lstm:
    from vmsst.networks import lstm

    options = {"bidirectional": False, **options}
    sizes = transformers.check_config(path, options, _LstmOptions, {"bidirectional": True})
    config = lstm.LstmConfig(**msgspec.structs.asdict(sizes))
    gates = 4 * config.hidden_dim
    table = [Row(f"{_WORDS}.weight", (config.vocab_size, config.emb_dim), (TOKEN_TABLE,))]
    for i in range(config.num_layers):
      inputs = config.width if i else config.emb_dim
      shapes = (gates, inputs), (gates, config.hidden_dim), (gates,), (gates,)
      for end in (f"l{i}", f"l{i}_reverse"):
        kinds = (f"{name}_{end}" for name in _LSTM)
        table += [Row(f"lstm.{x}", shape, (x,)) for x, shape in zip(kinds, shapes, strict=True)]
  else:
    for number, line in enumerate(text_files.read_lines(str(_vocabulary_file(path, ".cvocab")))):
      # Each line contains a piece and its count.
      dictionary[line.rstrip().rpartition(" ")[0]] = len(_SPECIAL) + number
    if options.get("encoder_normalize_before"):
      dictionary.setdefault("<mask>", len(_SPECIAL) + len(dictionary))
    config, table = _transformer(path, options, len(_SPECIAL) + len(dictionary))
  tensors.check(table, weights, str(path))
  rows = config.vocab_size
  content, size = _sentencepiece_model(_vocabulary_file(path, ".spm"), dictionary, rows)
  config = dataclasses.replace(config, vocab_size=size)
  max_length = getattr(config, "max_tokens", _MAX_TOKENS)
  pooling = "cls" if options.get("sentemb_criterion") == "cls" else "max"
  prepends_bos = bool(options.get("prepend_bos"))
  if pooling == "cls" and not prepends_bos:
    raise errors.InputError(f"{path}: pooling 'cls' without 'prepend_bos' is not supported")

  def params() -> dict[str, np.ndarray]:
    arrays = tensors.to_parameters(table, weights)
    if isinstance(config, transformer.TransformerConfig):
      # Each row of the position table contains sines, then cosines. Compute them in float32 like
      # fairseq, because the encoder was trained with the rounding errors of float32.
      half = config.emb_dim // 2
      step = np.float32(-math.log(10_000) / max(half - 1, 1))
      rate_F = np.exp(np.arange(half, dtype=np.float32) * step)
      angle_RF = np.arange(config.max_positions, dtype=np.float32)[:, None] * rate_F
      table_RD = np.concatenate([np.sin(angle_RF), np.cos(angle_RF)], axis=1)
      table_RD = np.pad(table_RD, ((0, 0), (0, config.emb_dim % 2)))
      arrays["encoder/position_embedding"] = table_RD
    else:  # Stack both directions in one array.
      for i in range(config.num_layers):
        inputs_RQD, recurrent_RQC, bias_RQ, other_bias_RQ = (
          np.stack([arrays.pop(f"{name}_l{i}"), arrays.pop(f"{name}_l{i}_reverse")])
          for name in _LSTM
        )
        arrays[f"encoder/layers_{i}/input_kernel"] = np.concatenate(inputs_RQD).T.copy()
        arrays[f"encoder/layers_{i}/recurrent_kernel"] = recurrent_RQC.swapaxes(1, 2).copy()
        arrays[f"encoder/layers_{i}/bias"] = (bias_RQ + other_bias_RQ).reshape(-1)
    ids_V = [1, 0, *range(2, rows), *[_UNKNOWN] * (size - rows)]
    return {**arrays, TOKEN_TABLE: arrays[TOKEN_TABLE][ids_V]}

  # The vocabulary reads this file later, so keep the file until the process ends.
  model_file = pathlib.Path(tempfile.mkdtemp(dir=storage.process_folder()), f"{path.stem}.model")
  model_file.write_bytes(content)
  vocabulary = vocabularies.LaserVocabulary(str(model_file), prepends_bos)
  network = sentence_encoder.SentenceEncoder(config, config.width, head=False, pooling=pooling)
  return encoder_json.Converted(
    params=params,
    sizes=dataclasses.asdict(config),
    left_out=dict.fromkeys((x for x in state if x.removeprefix(start) not in weights), "not used"),
    assets=encoder_json.EncoderAssets(network, vocabulary, max_length),
  )


def _transformer(
  path: pathlib.Path, record: dict[str, Any], rows: int
) -> tuple[transformer.TransformerConfig, list[Row]]:
  """Returns the config and the tensor table of a LASER3 encoder.

  Args:
    path: The `.pt` file, for messages.
    record: The encoder's options.
    rows: Number of rows in the token table.
  """
  fixed = {"encoder_learned_pos": False, "no_token_positional_embeddings": False}
  options = transformers.check_config(path, record, _Options, fixed)
  prefix = "pre" if options.encoder_normalize_before else "post"
  config = transformer.TransformerConfig(
    vocab_size=rows,
    emb_dim=options.emb_dim,
    num_heads=options.num_heads,
    mlp_dim=options.mlp_dim,
    num_layers=options.num_layers,
    max_positions=_OFFSET + min(options.max_source_positions, _MAX_TOKENS),
    position_offset=_OFFSET,
    activation=transformers.ACTIVATIONS[options.activation_fn],
    layer_norm_eps=1e-5,
    norm_place="before" if prefix == "pre" else "after",
    embedding_norm=options.layernorm_embedding,
    scale_embeddings=not options.no_scale_embedding,
  )
  names = {_WORDS: TOKEN_TABLE}
  if config.embedding_norm:
    names["layernorm_embedding"] = "encoder/embedding_layer_norm"
  if prefix == "pre":
    names["layer_norm"] = "encoder/encoder_norm"
  norms = {
    "self_attn_layer_norm": f"{prefix}_attention_layer_norm",
    "final_layer_norm": f"{prefix}_mlp_layer_norm",
  }
  return config, transformers.Table(names, "layers", _LAYER | norms).rows(config)


def _vocabulary_file(path: pathlib.Path, suffix: str) -> pathlib.Path:
  """Returns an encoder's `.spm` or `.cvocab` file, or LASER2's file if the encoder has neither."""
  has_files = any(path.with_suffix(end).is_file() for end in (".spm", ".cvocab"))
  file = path.with_suffix(suffix) if has_files else path.with_name(f"laser2{suffix}")
  if not file.is_file():
    names = " or, if it exists, ".join(dict.fromkeys((file.name, path.stem + suffix)))
    raise errors.InputError(f"{file} does not exist, but {path} needs it; download {_URL}{names}")
  return file


def _sentencepiece_model(
  path: pathlib.Path, dictionary: Mapping[str, int], rows: int
) -> tuple[bytes, int]:
  """Returns a SentencePiece model that uses a dictionary's ids, and the model's number of pieces.

  Args:
    path: The original SentencePiece model. Its ids are ignored.
    dictionary: Fairseq ids by piece. The ids of special tokens are ignored.
    rows: Number of rows in the token table.
  """
  # This protobuf module creates its classes at run time, so type checkers cannot see them.
  proto: Any = importlib.import_module("sentencepiece.sentencepiece_model_pb2")
  model, kinds = proto.ModelProto(), proto.ModelProto.SentencePiece
  model.ParseFromString(path.read_bytes())
  words = {i: word for word, i in dictionary.items()} | dict(enumerate(_SPECIAL))
  texts = {x.piece: x for x in model.pieces if x.type not in (kinds.CONTROL, kinds.UNKNOWN)}
  # Table rows without a piece become control symbols, which no text contains.
  names = [words.get(i, f"<row {i}>") for i in range(rows)]
  pieces = [texts.pop(name, None) or kinds(piece=name, type=kinds.CONTROL) for name in names]
  pieces[:2] = pieces[1::-1]
  pieces[_UNKNOWN].type = kinds.UNKNOWN
  pieces += texts.values()
  del model.pieces[:]
  model.pieces.extend(pieces)
  trainer = model.trainer_spec
  trainer.bos_piece, trainer.pad_piece, trainer.eos_piece, trainer.unk_piece = _SPECIAL
  return model.SerializeToString(deterministic=True), len(pieces)
