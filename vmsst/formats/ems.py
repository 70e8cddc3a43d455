"""Imports the released EMS model: the encoder and both heads.

The released model becomes an `EmsNetwork` with `xtr_layer_norm`. The import renames all parameters
and changes two tables. The first row of the position table is dropped, because it is for padding.
The rows of the language table are reordered: in the released table, they are in the order of the
language symbols in the vocabulary (<2en>, <2af>, ...), but in this library, they are in the order
of `vmsst.languages`. Languages that EMS was not trained on get rows of zeros.
"""

import pathlib
import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from vmsst import errors, languages
from vmsst.data import vocabularies
from vmsst.formats import encoder_json, tensors, transformers
from vmsst.formats.encoder_json import Converted
from vmsst.formats.tensors import Row, dense, norm
from vmsst.networks import sentence_encoder, transformer

_LAYERS = "model.bert.encoder.layer"
_WORDS = "model.bert.embedding.word_embedding.embedding"
_POSITIONS = "model.bert.embedding.position_embedding.position_embeddings.weight"
_LANGUAGES = "model.la_tag_linear.embedding.weight"
_LOGITS = "model.decoder.decoder.weight"
# A checkpoint contains this tensor only if the XTR head projects to the vocabulary with the token
# table.
_SHARED = "model.target_embedding.weight"
_PROJECTED = "alignproj.3.weight"
_POSITION_TABLE = "encoder/position_embedding"
_LANGUAGE_TABLE = "language_embedder/embedding"
_HEAD_DIM = 64
_OF_CONFIG = ("vocab_size", "emb_dim", "num_heads", "mlp_dim", "num_layers", "max_positions")


def convert(path: pathlib.Path, *, vocabulary: str, num_heads: int | None = None) -> Converted:
  """Imports an EMS checkpoint.

  Like the released code, the imported encoder lowercases each text and splits it into words with
  language-specific rules. `encode` therefore requires the language of the texts.

  Args:
    path: The released `EMS_model.pt`, another checkpoint written by the EMS training code, or a
      state dict in a `.safetensors` file. Code in the file is never run.
    vocabulary: The released SentencePiece model, `62languages_bpe_60000.model`.
    num_heads: Number of attention heads, which is not stored in the file. If omitted, the encoder
      has one head for every 64 dimensions (16 heads in the released model).

  Raises:
    InputError: If the file is not an EMS checkpoint, or the vocabulary does not match the
      checkpoint.
  """
  import sentencepiece

  weights = {}
  for name, tensor in tensors.open_file(path).items():
    # Data-parallel training adds the prefix "module." to tensor names. Older checkpoints use a
    # different name for the first layer of the XTR head.
    name = name.removeprefix("module.")
    weights[name.replace("model.decoder.transform.", "model.transform.")] = tensor
  try:
    vocab_size, width = weights[f"{_WORDS}.weight"].shape
    has_languages = _LANGUAGES in weights
    num_languages, language_dim = weights[_LANGUAGES].shape if has_languages else (0, 0)
    sizes: dict[str, Any] = {
      "vocab_size": vocab_size,
      "emb_dim": width,
      "num_heads": max(1, width // _HEAD_DIM) if num_heads is None else num_heads,
      "mlp_dim": weights[f"{_LAYERS}.0.intermediate.dense.weight"].shape[0],
      "num_layers": len({name.split(".")[4] for name in weights if name.startswith(_LAYERS)}),
      "max_positions": weights[_POSITIONS].shape[0] - 1,
      "num_source_languages": num_languages,
      "language_dim": language_dim or None,
      "share_embedding": _SHARED in weights,
      "projection_dim": weights[_PROJECTED].shape[0] if _PROJECTED in weights else None,
    }
  except (KeyError, ValueError):
    raise errors.InputError(
      f"{path} is not an EMS checkpoint; pass the released EMS_model.pt or its state dict"
    ) from None
  config, table = _config(sizes), rows(sizes)
  names = {row.source for row in table}
  tensors.check(table, {name: x for name, x in weights.items() if name in names}, str(path))
  pieces = vocabularies.SentencePieceVocabulary(vocabulary, lowercase=True, pretokenize=True)
  processor = sentencepiece.SentencePieceProcessor(model_proto=pieces.model_bytes)
  symbols = (processor.id_to_piece(i) for i in range(pieces.size) if processor.is_control(i))
  # Language codes from the symbols <2xx>, in the order of the rows in the language table.
  codes = [match[1] for x in symbols if (match := re.fullmatch(r"<2([a-z]+)>", x))]
  if pieces.size != vocab_size or (has_languages and len(codes) != num_languages):
    raise errors.InputError(
      f"{vocabulary} has {pieces.size} pieces and {len(codes)} language symbols <2xx>, but the "
      f"tables in {path} have {vocab_size} and {num_languages} rows; pass the model's vocabulary"
    )

  def params() -> dict[str, np.ndarray]:
    arrays = tensors.to_parameters(table, weights)
    arrays[_POSITION_TABLE] = arrays[_POSITION_TABLE][1:]
    if language_dim:
      table_LG = np.zeros((languages.NUM_LANGUAGES, language_dim), np.float32)
      table_LG[[languages.language(code).index for code in codes]] = arrays[_LANGUAGE_TABLE]
      arrays[_LANGUAGE_TABLE] = table_LG
    return arrays

  network = sentence_encoder.SentenceEncoder(config, width, head=False)
  copies = {_SHARED, _LOGITS} if sizes["share_embedding"] else set()
  return Converted(
    params=params,
    sizes=sizes,
    left_out={
      name: "a copy of the token table" if name in copies else "EmsNetwork has no such parameter"
      for name in sorted(weights.keys() - names)
    },
    assets=encoder_json.EncoderAssets(network, pieces, config.max_positions),
    notes=("`encode` needs the language of the texts: encode(sentences, language='en')",),
  )


def rows(sizes: Mapping[str, Any]) -> list[Row]:
  """Returns the table that maps the released tensors to parameters.

  Args:
    sizes: Values by name. The names are attributes of TransformerConfig; `language_dim`,
      `share_embedding` and `projection_dim`, attributes of EmsNetwork; and `num_source_languages`
      (rows in the released language table). The tensors of a size that is None or 0 do not exist.
  """
  width, config = sizes["emb_dim"], _config(sizes)
  wide = width + (sizes["language_dim"] or 0)
  head = width if sizes["share_embedding"] else wide
  layer_names = {
    name.replace("self.", "self_attention."): target
    for name, target in transformers.BERT_LAYER.items()
  }
  table = transformers.Table({_WORDS: tensors.TOKEN_TABLE}, _LAYERS, layer_names).rows(config)
  table += [
    Row(_POSITIONS, (sizes["max_positions"] + 1, width), (_POSITION_TABLE,)),
    *norm("model.bert.embedding.layer_norm", width, "encoder/embedding_layer_norm"),
    *dense("model.transform.dense", (head, wide), "xtr_transform"),
    *norm("model.transform.LayerNorm", head, "xtr_norm"),
  ]
  if dim := sizes["language_dim"]:
    table.append(Row(_LANGUAGES, (sizes["num_source_languages"], dim), (_LANGUAGE_TABLE,)))
    table += norm("model.la_tag_linear.layer_norm", dim, "language_layer_norm")
  if not sizes["share_embedding"]:
    shape = sizes["vocab_size"], head
    table += dense("model.decoder.decoder", shape, "xtr_logits", bias=False)
  if projected := sizes["projection_dim"]:
    table += dense("alignproj.0", (width, width), "projection_hidden")
    table += dense("alignproj.3", (projected, width), "projection")
  return table


def _config(sizes: Mapping[str, Any]) -> transformer.TransformerConfig:
  return transformer.TransformerConfig(
    **{key: sizes[key] for key in _OF_CONFIG}, activation="swish", layer_norm_eps=1e-12
  )
