"""Imports the released VMSST, or mT5 to initialize a training run (VMSST paper, section 6.4).

The sentence encoder and the language encoder both start as copies of mT5's encoder. The decoder
starts with mT5's self-attention, feed-forward layers and norms. In each decoder layer, a sentence
injection (`decoder.SentenceInjection`) replaces mT5's cross-attention. The norm before
cross-attention becomes the norm before the injection. VMSST's vocabulary projection multiplies both
hidden states and latents. mT5's `lm_head` becomes the part of the projection for hidden states. The
part for latents is initialized at random, and so are the heads, language tables and injections.

The same import works for every training configuration, because each model reads only the parameters
that it needs.

The released VMSST (`jwieting/vmsst`) is an mT5 encoder with a projection after mean pooling. In the
released files, the names of the encoder tensors start with `mt5_encoder.`, and the projection is
named `projection.weight`. The names of the other tensors (language encoder, decoder) are not
published.
"""

import dataclasses
import pathlib
from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np

from vmsst import errors
from vmsst.data import vocabularies
from vmsst.formats import encoder_json, tensors, tokenizers, transformers
from vmsst.formats.encoder_json import Converted
from vmsst.formats.tensors import Row
from vmsst.networks import sentence_encoder, t5

TYPES = ("mt5", "t5")
"""Supported values of `model_type`. T5 1.1 has the same parameters and layers as mT5."""
VOCABULARY_FILE = "spiece.model"
# Prefix of encoder tensor names in the released VMSST.
_VMSST = "mt5_encoder."
_PROJECTION = "projection.weight"
# Maximum number of tokens in transformers' T5 configs. T5 itself has no limit.
MAX_LENGTH = 512
_TABLE = "shared.weight"
_COPIES = ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight")
_UNUSED = dict.fromkeys(_COPIES, "copies of the token table") | {
  "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight": "T5 never reads it"
}
_CROSS_ATTENTION = "EncDecAttention"
# Maps decoder modules in transformers to decoder modules in this library.
_DECODER = transformers.Table(
  {
    "decoder.block.0.layer.0.SelfAttention.relative_attention_bias": (
      "decoder/relpos_bias/rel_embedding"
    ),
    "decoder.final_layer_norm": "decoder/decoder_norm",
  },
  "decoder.block",
  {
    "layer.0.layer_norm": "pre_self_attention_layer_norm",
    "layer.1.layer_norm": "pre_injection_layer_norm",
    "layer.2.layer_norm": "pre_mlp_layer_norm",
    **{
      f"layer.{number}.{module}.{x}": f"{target}/{name}"
      for number, module, target in (
        (0, "SelfAttention", "self_attention"),
        (1, _CROSS_ATTENTION, "cross_attention"),
      )
      for x, name in transformers.T5_ATTENTION.items()
    },
    **{f"layer.2.DenseReluDense.{x}": f"mlp/{x}" for x in ("wi_0", "wi_1", "wo")},
  },
  stack="decoder",
)


def convert(
  source: pathlib.Path, *, vocabulary: pathlib.Path | None = None, with_decoder: bool = True
) -> Converted:
  """Imports mT5 or the released VMSST, depending on the tensor names in the folder.

  mT5 was not trained as a sentence encoder. The imported encoder simply averages its hidden states.
  VMSST was trained on at most 32 tokens per sentence, but the imported encoder accepts up to 512
  tokens, like VMSST's released code. To change this limit, pass `max_length` to `vmsst.load`.

  Args:
    source: Folder of the model.
    vocabulary: The SentencePiece model (default: `spiece.model` in the folder). If this file does
      not exist, mT5's `tokenizer.json` is used. (Newer versions of transformers do not write
      `spiece.model`.)
    with_decoder: Whether to import all parameters that a training run can use. If false, only the
      encoder is imported.

  Raises:
    InputError: If a file is missing, damaged or not supported.
  """
  path = source / transformers.CONFIG_FILE
  # umT5 has a different `model_type`. This library does not support umT5, because each layer in
  # umT5 has its own table of position biases.
  fixed = {"feed_forward_proj": "gated-gelu", "layer_norm_epsilon": 1e-6}
  config = transformers.read_object(path)
  sizes = msgspec.structs.asdict(transformers.check_config(path, config, _Options, fixed))
  sizes["num_decoder_layers"] = sizes["num_decoder_layers"] or sizes["num_encoder_layers"]
  weights = transformers.open_tensors(source)
  left_out: dict[str, str] = {}
  is_vmsst = any(name.startswith(_VMSST) for name in weights)
  if is_vmsst:
    names = {x: x.removeprefix(_VMSST) for x in weights if x.startswith((_VMSST, _PROJECTION))}
    left_out = dict.fromkeys(weights.keys() - names, "the sentence encoder has no such parameter")
    weights = {name: weights[x] for x, name in names.items()}
  elif not with_decoder:
    weights = {x: y for x, y in weights.items() if not x.startswith(("decoder.", "lm_head."))}
  if not any(name.startswith("decoder.") for name in weights):
    sizes["num_decoder_layers"] = 0
  # Some files contain only the encoder's copy of the token table.
  if _TABLE not in weights and _COPIES[0] in weights:
    weights[_TABLE] = weights.pop(_COPIES[0])
  left_out |= {_VMSST * is_vmsst + x: note for x, note in _UNUSED.items() if x in weights}
  weights = {name: tensor for name, tensor in weights.items() if name not in _UNUSED}
  table, width = rows(sizes), sizes["emb_dim"]
  if is_vmsst:
    width = weights[_PROJECTION].shape[0] if _PROJECTION in weights else 0
    table.append(Row(_PROJECTION, (width, sizes["emb_dim"]), ("mean/kernel",), transposed=True))
  tensors.check(table, weights, str(source))
  left_out |= {row.source: "cross-attention" for row in table if _CROSS_ATTENTION in row.source}
  used = [row for row in table if _CROSS_ATTENTION not in row.source]

  def params() -> dict[str, np.ndarray]:
    arrays = tensors.to_parameters(used, weights)
    if with_decoder and not is_vmsst:  # VMSST's language encoder starts from mT5's encoder too.
      copies = {f"language_{x}": y for x, y in arrays.items() if x.startswith("encoder/")}
      return arrays | copies
    return arrays

  vocabulary = vocabulary or source / VOCABULARY_FILE
  tokenizer, settings = None, tokenizers.Settings()
  if not is_vmsst:
    tokenizer, settings = tokenizers.read(source, config)
  elif not vocabulary.is_file():
    raise errors.InputError(
      f"{vocabulary} does not exist; pass the vocabulary of google/mt5-large (--vocabulary)"
    )
  pieces: vocabularies.Vocabulary = vocabularies.SentencePieceVocabulary(str(vocabulary))
  if not vocabulary.is_file():
    file = str(source / tokenizers.TOKENIZER_FILE)
    pieces = tokenizers.HuggingFaceVocabulary(file, tokenizer=tokenizer)
  network = sentence_encoder.SentenceEncoder(_t5_config(sizes), width, head=is_vmsst)
  max_length = min(settings.limit or MAX_LENGTH, MAX_LENGTH)
  assets = encoder_json.EncoderAssets(network, pieces, max_length)
  note = "The checkpoint has no decoder, so only CONTRASTIVE can be initialized from it."
  return Converted(
    params=params,
    sizes=sizes,
    left_out=left_out,
    assets=assets if tokenizer or vocabulary.is_file() else None,
    notes=() if sizes["num_decoder_layers"] or is_vmsst else (note,),
  )


def rows(sizes: Mapping[str, Any]) -> list[Row]:
  """Returns the table that maps mT5 tensors to parameters.

  Args:
    sizes: T5Config attributes, and `num_decoder_layers` if the model has a decoder.
  """
  config = transformers.exported_config(_t5_config(sizes))
  table = transformers.T5.table.rows(config)
  if layers := sizes.get("num_decoder_layers"):
    table += _DECODER.rows(dataclasses.replace(config, num_layers=layers))
    shape = config.vocab_size, config.emb_dim
    table += tensors.dense("lm_head", shape, "logits_hidden", bias=False)
  return table


def _t5_config(sizes: Mapping[str, Any]) -> t5.T5Config:
  return t5.T5Config(**{key: x for key, x in sizes.items() if key != "num_decoder_layers"})


class _Options(msgspec.Struct, rename=transformers.T5_NAMES | {
  "num_encoder_layers": "num_layers", "relpos_max_distance": "relative_attention_max_distance",
}):  # fmt: skip
  """Options in `config.json`: `num_decoder_layers`, and options renamed to match T5Config."""

  vocab_size: transformers.Size
  emb_dim: transformers.Size
  num_heads: transformers.Size
  head_dim: transformers.Size
  mlp_dim: transformers.Size
  num_encoder_layers: transformers.Layers
  num_decoder_layers: transformers.Layers | None = None
  relpos_buckets: transformers.Size = 32
  relpos_max_distance: transformers.Size = 128
