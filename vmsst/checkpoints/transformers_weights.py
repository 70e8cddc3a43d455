"""Parameters of encoders under the names of transformers, as in exports for sentence-transformers.

A T5 encoder becomes a `T5EncoderModel`, a BERT-style one (EMS and imported encoders) a `BertModel`.
XLM-R's position table loses the rows before that of the first token: a BERT that counts from 0
computes the same function. The projection after pooling, if any, is the last dense module.

`open_params` reads what `to_tensors` has made, bit for bit.
"""

import dataclasses
import math
import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from vmsst import arrays, errors
from vmsst.checkpoints import (
  hugging_face,
  layer_stacks,
  sentence_transformers_files,
  tensors,
)
from vmsst.checkpoints.importers import bert as bert_import
from vmsst.checkpoints.importers import mt5, weight_tables
from vmsst.networks import bert, t5

PROJECTION = "mean/kernel"
DENSE_WEIGHT = "linear.weight"
_POSITIONS = "encoder/position_embedding"
_TOKEN_TYPES = "encoder/token_type_embedding"
_POOLER = ("pooler/dense/kernel", "pooler/dense/bias")


def to_tensors(
  config: Any, params: Mapping[str, np.ndarray], padding_id: int
) -> dict[str, np.ndarray]:
  """Returns the tensors of the transformer, without the modules after it.

  Args:
    config: A T5Config or a BertConfig.
    params: Parameters of the encoder by name; layers may be scanned.
    padding_id: The tokenizer's padding id. Padding is 0 in this library.
  """
  arrays = layer_stacks.separate(params)
  arrays[weight_tables.TOKEN_TABLE] = _swapped(arrays[weight_tables.TOKEN_TABLE], padding_id)
  if isinstance(config, bert.BertConfig):
    width = config.emb_dim
    arrays[_POSITIONS] = arrays[_POSITIONS][config.position_offset :]
    if not config.num_token_types:
      arrays[_TOKEN_TYPES] = np.zeros((1, width), np.float32)
    if _POOLER[0] not in arrays:
      # Unused, but transformers would initialize it at random and warn.
      kernel, bias = _POOLER
      arrays[kernel] = np.zeros((width, width), np.float32)
      arrays[bias] = np.zeros((width,), np.float32)
  return weight_tables.to_tensors(_rows(config), arrays)


def open_params(folder: pathlib.Path, network: Any) -> dict[str, tensors.StoredTensor]:
  """Returns the parameters of an export for sentence-transformers by name, to be read on request.

  Args:
    folder: The folder of the export.
    network: The network in its `encoder.json`.

  Raises:
    InputError: a file is missing or damaged.
  """
  config = network.config
  if not isinstance(config, (bert.BertConfig, t5.T5Config)):
    raise errors.InputError(f"{folder}: transformers has no encoder of {type(config).__name__}")
  is_bert = isinstance(config, bert.BertConfig)
  layers = getattr(config, "num_layers" if is_bert else "num_encoder_layers")
  stored = hugging_face.open_tensors(folder)
  tensors.check_layers(layers, stored, str(folder))
  path = folder / hugging_face.CONFIG_FILE
  padding_id = hugging_face.read_object(path).get("pad_token_id")
  if type(padding_id) is not int or not 0 <= padding_id < config.vocab_size:
    raise errors.InputError(f"{path}: 'pad_token_id' is {padding_id!r}, not a row of the table")
  params = {
    row.targets[0]: _transposed(stored[row.source]) if row.transposed else stored[row.source]
    for row in _rows(config)
    if row.source in stored
  }
  if weight_tables.TOKEN_TABLE in params:
    table = params[weight_tables.TOKEN_TABLE]
    params[weight_tables.TOKEN_TABLE] = table.computed(lambda: _swapped(table.read(), padding_id))
  if isinstance(config, bert.BertConfig) and _POSITIONS in params:
    params[_POSITIONS] = _after_zeros(params[_POSITIONS], config.position_offset)
  if network.head:
    listed = sentence_transformers_files.list_modules(folder)
    dense = [name for kind, name in listed if kind == "Dense"]
    head = hugging_face.open_tensors(folder / dense[-1]) if dense else {}
    if DENSE_WEIGHT in head:
      params[PROJECTION] = _transposed(head[DENSE_WEIGHT])
  return params


def _rows(config: Any) -> list[weight_tables.Row]:
  sizes = dataclasses.asdict(config)
  if isinstance(config, bert.BertConfig):
    return bert_import.rows(sizes, pooler=True)
  return mt5.rows(sizes)


def _swapped(table_VD: np.ndarray, padding_id: int) -> np.ndarray:
  """Returns a token table in which the rows of both padding ids have changed places."""
  table_VD = table_VD.copy()
  table_VD[[arrays.PAD_ID, padding_id]] = table_VD[[padding_id, arrays.PAD_ID]]
  return table_VD


def _transposed(tensor: tensors.StoredTensor) -> tensors.StoredTensor:
  return tensor.computed(lambda: np.ascontiguousarray(tensor.read().T), tensor.shape[::-1])


def _after_zeros(tensor: tensors.StoredTensor, rows: int) -> tensors.StoredTensor:
  """Returns a table after a number of rows of zeros, which no token reads."""
  if not rows or not tensor.shape:
    return tensor
  count, *rest = tensor.shape
  shape = (rows + count, *rest)
  tensors.check_held(math.prod(shape), math.prod(tensor.shape), tensor.where)
  return tensor.computed(
    lambda: np.concatenate([np.zeros((rows, *rest), np.float32), tensor.read()]), shape
  )
