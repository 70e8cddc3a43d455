"""Parameters of encoders under the names of transformers, as in exports for sentence-transformers.

A T5 encoder becomes a `T5EncoderModel`; EMS, XLM-R and other relatives of BERT a `BertModel`, and
other imported encoders what they were. XLM-R's position table loses the rows before that of the
first token: a BERT that counts from 0 computes the same function. The layers after the pooling have
folders of their own.

`open_params` reads what `to_tensors` has made, bit for bit.
"""

import dataclasses
import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from vmsst import arrays, errors
from vmsst.formats import (
  architectures,
  hugging_face,
  layer_stacks,
  mt5,
  sentence_transformers_files,
  tensors,
  weight_tables,
)
from vmsst.networks import sentence_encoder, t5, transformer

_POSITIONS = "encoder/position_embedding"
_TOKEN_TYPES = "encoder/token_type_embedding"


def to_tensors(
  config: Any, params: Mapping[str, np.ndarray], padding_id: int
) -> dict[str, np.ndarray]:
  """Returns the tensors of the transformer, without the modules after it.

  Args:
    config: A T5Config or a TransformerConfig.
    params: Parameters of the encoder by name; layers may be scanned.
    padding_id: The tokenizer's padding id. Padding is 0 in this library.
  """
  arrays = layer_stacks.separate(params)
  arrays[weight_tables.TOKEN_TABLE] = swapped(arrays[weight_tables.TOKEN_TABLE], padding_id)
  unused = {}
  if isinstance(config, transformer.TransformerConfig):
    width, exported = config.emb_dim, exported_config(config)
    if _POSITIONS in arrays:
      arrays[_POSITIONS] = arrays[_POSITIONS][-exported.max_positions :]
    if exported.num_token_types > config.num_token_types:
      arrays[_TOKEN_TYPES] = np.zeros((1, width), np.float32)
    if architectures.POOLER in architectures.of(exported)[0].left_out:
      # transformers would initialize it at random and warn.
      shapes = {"weight": (width, width), "bias": (width,)}
      unused = {
        f"{architectures.POOLER}dense.{name}": np.zeros(x, np.float32) for name, x in shapes.items()
      }
  return {**weight_tables.to_tensors(_rows(config), arrays), **unused}


def exported_config(config: transformer.TransformerConfig) -> transformer.TransformerConfig:
  """Returns the config of an equal network that transformers has too: BERT for XLM-R and EMS."""
  if config.positions != "learned" or config.relpos_buckets:
    return config
  return dataclasses.replace(
    config,
    max_positions=config.max_tokens,
    position_offset=0,
    num_token_types=max(config.num_token_types, 1),
  )


def open_params(folder: pathlib.Path, network: Any) -> dict[str, tensors.StoredTensor]:
  """Returns the parameters of an export for sentence-transformers by name, to be read on request.

  Args:
    folder: The folder of the export.
    network: The network in its `encoder.json`.

  Raises:
    InputError: a file is missing or damaged.
  """
  config = network.config
  if not isinstance(config, (transformer.TransformerConfig, t5.T5Config)):
    raise errors.InputError(f"{folder}: transformers has no encoder of {type(config).__name__}")
  stored = hugging_face.open_tensors(folder)
  path = folder / hugging_face.CONFIG_FILE
  padding_id = hugging_face.read_object(path).get("pad_token_id")
  if type(padding_id) is not int or not 0 <= padding_id < config.vocab_size:
    raise errors.InputError(f"{path}: 'pad_token_id' is {padding_id!r}, not a row of the table")
  params = {name: tensor for row in _rows(config) for name, tensor in row.opened(stored).items()}
  if weight_tables.TOKEN_TABLE in params:
    table = params[weight_tables.TOKEN_TABLE]
    params[weight_tables.TOKEN_TABLE] = table.computed(lambda: swapped(table.read(), padding_id))
  if isinstance(config, transformer.TransformerConfig) and _POSITIONS in params:
    missing = config.max_positions - exported_config(config).max_positions
    params[_POSITIONS] = _after_zeros(params[_POSITIONS], missing)
  listed = sentence_transformers_files.list_modules(folder)[2:]
  for rows, (_, name) in zip(layer_rows(network), listed, strict=False):
    stored = hugging_face.open_tensors(folder / name) if rows else {}
    params |= {name: tensor for row in rows for name, tensor in row.opened(stored).items()}
  return params


def layer_rows(network: sentence_encoder.SentenceEncoder) -> list[list[weight_tables.Row]]:
  """Returns, for each layer after the pooling, the tensors of its module, if it has any."""
  rows = []
  for (name, layer), inputs in zip(network.layers.items(), network.widths, strict=False):
    table: weight_tables.Table = ()
    if isinstance(layer, sentence_encoder.Dense):
      table = weight_tables.dense("linear", name, "features", "inputs", bias=layer.bias)
    elif isinstance(layer, sentence_encoder.LayerNorm):
      table = weight_tables.norm("norm", name, "inputs")
    sizes = {"inputs": inputs, "features": getattr(layer, "features", inputs)}
    rows.append(weight_tables.expand(table, sizes))
  return rows


def _rows(config: Any) -> list[weight_tables.Row]:
  if isinstance(config, transformer.TransformerConfig):
    exported = exported_config(config)
    return architectures.of(exported)[0].rows(exported)
  return mt5.rows(dataclasses.asdict(config))


def swapped(table_VD: np.ndarray, padding_id: int) -> np.ndarray:
  """Returns a token table in which the rows of both padding ids have changed places."""
  table_VD = table_VD.copy()
  table_VD[[arrays.PAD_ID, padding_id]] = table_VD[[padding_id, arrays.PAD_ID]]
  return table_VD


def _after_zeros(tensor: tensors.StoredTensor, rows: int) -> tensors.StoredTensor:
  """Returns a table after a number of rows of zeros, which no token reads."""
  if not rows or not tensor.shape:
    return tensor
  count, *rest = tensor.shape
  shape = (rows + count, *rest)
  return tensor.computed(
    lambda: np.concatenate([np.zeros((rows, *rest), np.float32), tensor.read()]), shape
  )
