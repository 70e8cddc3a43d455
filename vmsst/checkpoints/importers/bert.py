"""Imports BERT and XLM-R encoders: mBERT, LaBSE, XLM-R, multilingual E5.

The parameters are those of a `TokenEmbedder`, a `BertEncoder` and, if the source has one, a
`ClsPooler` (`vmsst.networks.bert`), named `token_embedder`, `encoder` and `pooler`. `vmsst.load`
also gets the pooling and the tokenizer.

Padding is id 0 in this library. If the tokenizer pads with another id (1 in XLM-R and all E5), the
two rows of the token table are swapped. `HuggingFaceVocabulary` swaps the ids of its texts too; use
`swap_padding` for ids from elsewhere.
"""

import os
import pathlib
from collections.abc import Mapping
from typing import Any, cast

import numpy as np

from vmsst import errors
from vmsst.checkpoints import encoder_json, hugging_face, sentence_transformers_files, tensors
from vmsst.checkpoints.importers import weight_tables
from vmsst.checkpoints.importers.weight_tables import Converted, Imported, Row, Rule, dense, norm
from vmsst.data import hugging_face_vocabulary
from vmsst.io import outputs, storage
from vmsst.networks import bert, sentence_encoder

TOKENIZER_FILE = hugging_face_vocabulary.TOKENIZER_FILE
POOLINGS = ("mean", "cls", "pooler")
ACTIVATIONS = {"gelu": "gelu", "relu": "relu", "silu": "swish", "swish": "swish"}

TYPES = ("bert", "xlm-roberta")
"""The `model_type` of the models of transformers that can be imported."""
_KINDS = ("model_type", None, TYPES)
_WORDS = "embeddings.word_embeddings.weight"
# Models with a pre-training head have a prefix before the encoder's names.
_PREFIXES = ("", "bert.", "roberta.")
# Norms in checkpoints that came from TensorFlow.
_OLD_NAMES = {"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"}
_LEFT_OUT = {
  "cls.": "pre-training head",
  "lm_head.": "pre-training head",
  "embeddings.position_ids": "not a parameter: 0, 1, 2 and so on",
}


def layers(source: str, self_attention: str) -> tuple[Rule, ...]:
  """Returns the rules of all layers of a BERT.

  Args:
    source: Start of the layers' names.
    self_attention: Name of the module with queries, keys and values.
  """
  inner = f"attention.{self_attention}"
  return weight_tables.each_layer(
    "num_layers",
    f"{source}.{{i}}.",
    "encoder/layers_{i}/",
    (
      *dense(f"{inner}.query", "attention/query"),
      *dense(f"{inner}.key", "attention/key"),
      *dense(f"{inner}.value", "attention/value"),
      *dense("attention.output.dense", "attention/out"),
      *norm("attention.output.LayerNorm", "post_attention_layer_norm"),
      *dense("intermediate.dense", "mlp/wi", "mlp_dim"),
      *dense("output.dense", "mlp/wo", "emb_dim", "mlp_dim"),
      *norm("output.LayerNorm", "post_mlp_layer_norm"),
    ),
  )


_ENCODER = (
  Rule(_WORDS, weight_tables.TOKEN_TABLE, ("vocab_size", "emb_dim")),
  Rule(
    "embeddings.position_embeddings.weight",
    "encoder/position_embedding",
    ("max_positions", "emb_dim"),
  ),
  Rule(
    "embeddings.token_type_embeddings.weight",
    "encoder/token_type_embedding",
    ("num_token_types", "emb_dim"),
  ),
  *norm("embeddings.LayerNorm", "encoder/embedding_layer_norm"),
  *layers("encoder.layer", "self"),
)
_POOLER = dense("pooler.dense", "pooler/dense")


def swap_padding(ids: np.ndarray, padding_id: int) -> np.ndarray:
  """Returns ids with 0 and `padding_id` swapped: the tokenizer's as the table's, or back."""
  return np.where(ids == 0, padding_id, np.where(ids == padding_id, 0, ids)).astype(ids.dtype)


def rows(sizes: Mapping[str, Any], *, pooler: bool) -> list[Row]:
  """Returns the tensors of a BERT in transformers and the parameters that they become.

  Args:
    sizes: Attributes of a BertConfig.
    pooler: Whether it has a pooler.
  """
  return weight_tables.expand((*_ENCODER, *(_POOLER if pooler else ())), sizes)


def import_bert(
  folder: str | os.PathLike[str],
  output: str | os.PathLike[str],
  *,
  prefix: str | None = None,
  pooling: str | None = None,
) -> Imported:
  """Writes an encoder as a folder that `vmsst.load` opens and that training runs start from.

  Args:
    folder: A Hugging Face folder: `config.json` and safetensors of the encoder, with or without its
      pre-training head. A dense module of sentence-transformers after [CLS] pooling, as in LaBSE,
      becomes the pooler and replaces the encoder's own. One in an object store is copied to this
      machine.
    output: Folder to make, local or in an object store. It gets `checkpoint_0` and, if the source
      has a tokenizer, `encoder.json` and a `tokenizer.json` made from all of the tokenizer's files.
    prefix: Text before every sentence. None: the folder's default prompt; if its files do not
      mention prompts, "query: " if its name or config calls it an E5, and nothing otherwise.
    pooling: How token states become a sentence vector: "mean" of all, "cls" for the first, "pooler"
      for the tanh layer on top of the first. None: as sentence-transformers' files say, or "mean".

  Raises:
    InputError: the source cannot be used, or `output` exists. Nothing is written then.
  """
  target = outputs.new_folder(output)
  with storage.local_copy(storage.absolute(folder)) as local:
    return weight_tables.save(convert(local, prefix=prefix, pooling=pooling), target)


def convert(
  local: pathlib.Path, *, prefix: str | None = None, pooling: str | None = None
) -> Converted:
  """Returns an encoder without writing it; arguments and errors are those of `import_bert`."""
  weight_tables.check_folder(local)
  config_file = local / hugging_face.CONFIG_FILE
  if config_file.is_file():
    # Before the modules, whose errors would hide that it is another kind of model.
    hugging_face.check_choice(config_file, hugging_face.read_object(config_file), *_KINDS)
  released = sentence_transformers_files.read(local)
  source, tokenizer = released.transformer, cast(Any, released.tokenizer)
  path = source / hugging_face.CONFIG_FILE
  sizes = _sizes(path, released.config)
  # The id that the tokenizer pads with. The model's config may have another: a small E5 is a BERT,
  # id 0, with the tokenizer of XLM-R.
  if tokenizer is not None:
    padding_id = hugging_face_vocabulary.padding_id(source / TOKENIZER_FILE, tokenizer)
  elif str(released.config.get("tokenizer_class")).startswith("XLMRoberta"):
    padding_id = 1
  else:
    padding_id = _config_padding_id(path, released.config)
  if padding_id >= sizes["vocab_size"]:
    raise errors.InputError(
      f"{source}: the padding id is {padding_id}, outside the table of {sizes['vocab_size']} rows"
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
  dense_module = {}
  if released.dense is not None:
    opened = hugging_face.open_tensors(local / released.dense)
    dense_module = {name.replace("linear.", "pooler.dense."): x for name, x in opened.items()}
  named, left_out = _named(source, stored, dense_module)
  pooling = released.pooling if pooling is None else pooling
  if pooling not in POOLINGS:
    raise errors.InputError(f"pooling is {pooling!r}; known: {', '.join(POOLINGS)}")
  has_pooler = "pooler.dense.weight" in named
  if pooling == "pooler" and not has_pooler:
    raise errors.InputError(f"pooling is 'pooler', but {local} has none")
  tensors.check_layers(sizes["num_layers"], stored, str(source))
  table = rows(sizes, pooler=has_pooler)
  weight_tables.check(table, named, str(source))
  params = weight_tables.to_parameters(table, named)
  notes = []
  if padding_id:
    table_VD = params[weight_tables.TOKEN_TABLE].copy()
    table_VD[[0, padding_id]] = table_VD[[padding_id, 0]]
    params[weight_tables.TOKEN_TABLE] = table_VD
    notes.append(
      f"The tokenizer pads with id {padding_id}, this library with 0: these two rows of the token "
      "table are swapped, and so are the ids of texts"
    )
  positions = sizes["max_positions"] - sizes["position_offset"]
  max_length = min(positions, released.max_length or positions)

  def assets(folder: pathlib.Path) -> encoder_json.EncoderAssets:
    tokenizer_file = str(folder / TOKENIZER_FILE)
    tokenizer.save(tokenizer_file, pretty=False)
    vocabulary = hugging_face_vocabulary.HuggingFaceVocabulary(tokenizer_file, prefix, prompts)
    config, normalize = bert.BertConfig(**sizes), released.normalize
    network = sentence_encoder.SentenceEncoder(
      config, sizes["emb_dim"], head=False, pooling=pooling, normalize=normalize
    )
    return encoder_json.EncoderAssets(network, vocabulary, max_length)

  if tokenizer is None:
    notes.append(
      f"Without a {TOKENIZER_FILE}, vmsst.load cannot open it: save one with transformers' "
      "AutoTokenizer. Training can start from it with a vocabulary of the same ids"
    )
  else:
    notes.append(
      f"Sentence vectors: pooling {pooling!r}, normalize {released.normalize}, prefix {prefix!r}, "
      f"at most {max_length} tokens"
    )
  return Converted(
    params=params,
    sizes=sizes,
    left_out=left_out,
    assets=None if tokenizer is None else assets,
    notes=tuple(notes),
  )


def _named(
  folder: pathlib.Path,
  stored: Mapping[str, tensors.StoredTensor],
  pooler: Mapping[str, tensors.StoredTensor],
) -> tuple[dict[str, tensors.StoredTensor], dict[str, str]]:
  """Returns the encoder's tensors by their names in a plain BERT, and why others are left out.

  Args:
    folder: The source, for messages.
    stored: All tensors.
    pooler: Tensors of a dense module, which replaces the model's own pooler.
  """
  prefix = next((prefix for prefix in _PREFIXES if prefix + _WORDS in stored), None)
  if prefix is None:
    raise errors.InputError(f"{folder} lacks {_WORDS}: it is not a BERT or XLM-R")
  named, left_out = dict(pooler), {}
  for source, tensor in stored.items():
    name = source.removeprefix(prefix)
    for old, new in _OLD_NAMES.items():
      name = name.replace(old, new)
    reason = next((note for start, note in _LEFT_OUT.items() if name.startswith(start)), None)
    if pooler and name.startswith("pooler."):
      reason = "the dense module replaces it"
    if reason is not None:
      left_out[source] = reason
    elif name in named:
      raise errors.InputError(f"{folder} holds {name} twice, also as {source}")
    else:
      named[name] = tensor
  return named, left_out


def _sizes(path: pathlib.Path, config: Mapping[str, Any]) -> dict[str, Any]:
  """Returns attributes of a BertConfig."""

  def number(key: str) -> int:
    return hugging_face.positive_integer(path, config, key)

  hugging_face.check_choice(path, config, *_KINDS)
  hugging_face.check_choice(path, config, "hidden_act", "gelu", tuple(ACTIVATIONS))
  hugging_face.check_choice(path, config, "position_embedding_type", "absolute", ("absolute",))
  hugging_face.check_choice(path, config, "is_decoder", False, (False,))
  epsilon = config.get("layer_norm_eps", 1e-12)
  if isinstance(epsilon, bool) or not isinstance(epsilon, (int, float)) or not 0 < epsilon < 1:
    raise errors.InputError(f"{path}: 'layer_norm_eps' is {epsilon!r}, not between 0 and 1")
  if number("hidden_size") % number("num_attention_heads"):
    raise errors.InputError(f"{path}: 'hidden_size' is not a multiple of 'num_attention_heads'")
  # XLM-R counts positions from the row after that of padding.
  offset = _config_padding_id(path, config) + 1 if config["model_type"] == "xlm-roberta" else 0
  if offset >= number("max_position_embeddings"):
    raise errors.InputError(
      f"{path}: 'max_position_embeddings' leaves no rows after that of padding"
    )
  return {
    "vocab_size": number("vocab_size"),
    "emb_dim": number("hidden_size"),
    "num_heads": number("num_attention_heads"),
    "mlp_dim": number("intermediate_size"),
    "num_layers": number("num_hidden_layers"),
    "max_positions": number("max_position_embeddings"),
    "position_offset": offset,
    "num_token_types": number("type_vocab_size"),
    "activation": ACTIVATIONS[config.get("hidden_act", "gelu")],
    "layer_norm_eps": float(epsilon),
  }


def _config_padding_id(path: pathlib.Path, config: Mapping[str, Any]) -> int:
  default = 1 if config["model_type"] == "xlm-roberta" else 0
  value = config.get("pad_token_id", default)
  if isinstance(value, bool) or not isinstance(value, int) or value < 0:
    raise errors.InputError(f"{path}: 'pad_token_id' is {value!r}, not an id")
  return value
