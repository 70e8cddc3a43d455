"""Reads and writes static encoders: sentence-transformers' `StaticEmbedding`, and Model2Vec.

A static encoder consists of a tokenizer without special tokens and a table of token vectors. A
sentence vector is the mean of the token vectors. Model2Vec skips unknown tokens, and stores its
settings in `config.json`. In its table, tokens may share a row, and may each have a weight.
sentence-transformers opens Model2Vec folders too, but includes unknown tokens in the mean.
"""

import json
import pathlib
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from tokenizers import Tokenizer

from vmsst import errors
from vmsst.formats import tokenizers, transformers
from vmsst.networks import sentence_encoder, static

MODULE = "StaticEmbedding"
_MODEL_TYPE = "model2vec"
# Names of the table in sentence-transformers and in Model2Vec.
_TABLE, _MODEL2VEC_TABLE = "embedding.weight", "embeddings"
# Maximum length if the tokenizer does not set one. No text has this many tokens.
_UNLIMITED = 1 << 20
# Model2Vec's maximum length if `config.json` does not set one.
_MODEL2VEC_LENGTH = 512


class StaticEmbedding(NamedTuple):
  """A static encoder in a folder.

  Attributes:
    config: Sizes of the table.
    vocabulary: The tokenizer, without special tokens.
    max_length: Maximum number of tokens in a text.
    table: Reads the token vectors, [V, D]. Row 0 is padding.
  """

  config: static.StaticConfig
  vocabulary: tokenizers.HuggingFaceVocabulary
  max_length: int
  table: Callable[[], np.ndarray]


# --------------------------------------------------------------------------------------------
# Reading


def list_modules(folder: pathlib.Path) -> list[tuple[str, str]]:
  """Returns the class and folder of each module, or [] if this is not a Model2Vec folder."""
  record = transformers.read_object(folder / transformers.CONFIG_FILE, if_missing={})
  if record.get("model_type") != _MODEL_TYPE:
    return []
  return [(MODULE, ""), *([("Normalize", "")] if record.get("normalize") else [])]


def read(folder: pathlib.Path) -> StaticEmbedding:
  """Reads the tokenizer and the table in a folder.

  The vectors of texts longer than `max_length` may differ from Model2Vec's vectors, because
  Model2Vec first truncates texts by characters.

  Raises:
    InputError: If a file is missing or damaged, or the table does not match the tokenizer.
  """
  path = folder / tokenizers.TOKENIZER_FILE
  record = transformers.read_object(path)
  try:
    tokenizer = Tokenizer.from_str(json.dumps({**record, "post_processor": None}))
  except Exception as error:  # The tokenizers package raises plain Exception.
    raise errors.InputError(f"{path}: not a Hugging Face tokenizer: {error}") from None
  weights = transformers.open_tensors(folder)
  is_model2vec = _MODEL2VEC_TABLE in weights
  name = _MODEL2VEC_TABLE if is_model2vec else _TABLE
  if name not in weights:
    raise errors.InputError(f"{folder} has no tensor {_TABLE} or {_MODEL2VEC_TABLE}")
  vocabulary = tokenizers.HuggingFaceVocabulary(
    str(path), tokenizer=tokenizer, skips_unknown=is_model2vec
  )
  rows, padding_id = weights.get("mapping", weights[name]).shape[0], vocabulary.padding_id
  # If there is no padding token, the padding id is the first id after the table.
  size = max(rows, padding_id + 1)
  if vocabulary.size > size or padding_id > rows:
    raise errors.InputError(f"{folder}: the table has {rows} rows for {vocabulary.size} tokens")

  def table() -> np.ndarray:
    table_VD = weights[name].read()
    if "mapping" in weights:
      table_VD = table_VD[weights["mapping"].load()]
    if "weights" in weights:
      table_VD = table_VD * weights["weights"].read()[:, None]
    if size > rows:
      table_VD = np.concatenate([table_VD, np.zeros_like(table_VD[:1])])
    return transformers.swap_padding(table_VD, padding_id)

  max_length = (record.get("truncation") or {}).get("max_length")
  if is_model2vec:
    settings = transformers.read_object(folder / transformers.CONFIG_FILE, if_missing={})
    max_length = settings.get("max_length", _MODEL2VEC_LENGTH)
  config = static.StaticConfig(size, weights[name].shape[1])
  return StaticEmbedding(config, vocabulary, max_length or _UNLIMITED, table)


# --------------------------------------------------------------------------------------------
# Writing


def export(vocabulary: Any, max_length: int) -> tokenizers.ExportedTokenizer:
  """Returns a tokenizer that truncates texts.

  Neither sentence-transformers nor Model2Vec truncates texts without such a tokenizer.

  Raises:
    InputError: If the vocabulary adds special tokens to texts, or cannot be converted to a
      `tokenizer.json`.
  """
  tokenizer = tokenizers.export(vocabulary)
  if vocabulary.special_ids:
    raise errors.InputError(
      f"{MODULE} does not support special tokens, but this vocabulary adds special tokens to "
      "texts; use `vmsst export safetensors`"
    )
  record = json.loads(tokenizer.content)
  if max_length < _UNLIMITED:
    record["truncation"] = {
      "direction": "Right", "max_length": max_length, "strategy": "LongestFirst", "stride": 0
    }  # fmt: skip
  return tokenizer._replace(content=json.dumps(record, ensure_ascii=False).encode())


def describe(
  network: sentence_encoder.SentenceEncoder, vocabulary: Any, max_length: int
) -> dict[str, Any] | None:
  """Returns the content of Model2Vec's `config.json`, or None for other encoders."""
  if not getattr(vocabulary, "skips_unknown", False) or network.layers.keys() - {"normalize"}:
    return None
  return {
    "model_type": _MODEL_TYPE,
    "architectures": ["StaticModel"],
    "hidden_dim": network.latent_dim,
    "normalize": network.normalize,
    "max_length": max_length,
  }


def to_tensors(
  table_VD: np.ndarray, vocabulary: Any, tokenizer: tokenizers.ExportedTokenizer
) -> dict[str, np.ndarray]:
  """Returns the token table, without the padding row if the tokenizer has no padding token."""
  table_VD = transformers.swap_padding(table_VD, tokenizer.padding_id)
  if not tokenizer.padding:
    table_VD = table_VD[: tokenizer.padding_id]
  return {_MODEL2VEC_TABLE if getattr(vocabulary, "skips_unknown", False) else _TABLE: table_VD}
