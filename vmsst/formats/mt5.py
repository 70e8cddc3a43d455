"""Imports mT5 as the start of training (VMSST paper, section 6.4), and the released VMSST.

Both encoders start as mT5's encoder. The decoder takes over self-attention, feed-forward layers and
norms; the norm before cross-attention becomes the one before the sentence injection. mT5's
`lm_head` becomes the part of the vocabulary projection that multiplies hidden states.
Cross-attention is left out. Heads, language tables, injections and the latents' part of the
projection start fresh.

One import serves all models: each reads the parameters that it has.

The released VMSST (`jwieting/vmsst`) is an mT5 encoder and the projection after its mean. In its
files, the encoder's names start with `mt5_encoder.`, and the projection is `projection.weight`. The
names of other parameters (language encoder, decoder) are not published.
"""

import dataclasses
import functools
import pathlib
from collections.abc import Mapping
from typing import Any

import msgspec

from vmsst import errors
from vmsst.data import vocabularies
from vmsst.formats import encoder_json, tensors, tokenizers, transformers
from vmsst.formats.encoder_json import Converted
from vmsst.formats.tensors import Row
from vmsst.networks import sentence_encoder, t5

TYPES = ("mt5", "t5")
"""The `model_type` of T5 1.1, which has the same parameters and function, and mT5."""
VOCABULARY_FILE = "spiece.model"
# Start of the names of the encoder's tensors in the release of VMSST.
_VMSST = "mt5_encoder."
_PROJECTION = "projection.weight"
# Tokens of a sentence, as in transformers' configs of T5; no position table limits them.
MAX_LENGTH = 512
_TABLE = "shared.weight"
_COPIES = ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight")
_UNUSED = dict.fromkeys(_COPIES, "copies of the token table") | {
  "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight": "T5 never reads it"
}
_CROSS_ATTENTION = "EncDecAttention"
# Names of mT5's parameters in T5X, and in models that start from it.
_INSTEAD = {
  "/pre_cross_attention_layer_norm/": "/pre_injection_layer_norm/",
  "decoder/logits_dense/": "logits_hidden/",
}

_norm = functools.partial(tensors.norm, bias=False)
# Names in transformers, and in T5X.
_DECODER = (
  *transformers.t5_stack(
    "decoder",
    *_norm("0.layer_norm", "pre_self_attention_layer_norm"),
    *transformers.t5_attention("0.SelfAttention", "self_attention"),
    *_norm("1.layer_norm", "pre_cross_attention_layer_norm"),
    *transformers.t5_attention("1.EncDecAttention", "encoder_decoder_attention"),
    *_norm("2.layer_norm", "pre_mlp_layer_norm"),
    *transformers.t5_mlp("2.DenseReluDense"),
  ),
  *tensors.dense("lm_head", "decoder/logits_dense", "vocab_size", bias=False),
)


def convert(
  source: pathlib.Path, *, vocabulary: pathlib.Path | None = None, whole: bool = True
) -> Converted:
  """Returns an mT5, whose vectors are means of token states: not yet a sentence encoder; or VMSST.

  Args:
    source: Its folder.
    vocabulary: Its SentencePiece model; None: `spiece.model` in the folder or, without one,
      `tokenizer.json`, which newer versions of transformers write instead.
    whole: Whether to return all that training can start from, or the encoder alone.

  Raises:
    InputError: the source cannot be used.
  """
  sizes, stored = read_config(source), transformers.open_tensors(source)
  if any(name.startswith(_VMSST) for name in stored):
    return _convert_vmsst(source, stored, vocabulary)
  if not whole:
    stored = {x: y for x, y in stored.items() if not x.startswith(("decoder.", "lm_head."))}
  if not any(name.startswith("decoder.") for name in stored):
    sizes["num_decoder_layers"] = 0
  table, left_out = match(stored, sizes, source)
  left_out |= {row.source: "cross-attention" for row in table if _CROSS_ATTENTION in row.source}
  used = [row for row in table if _CROSS_ATTENTION not in row.source]
  if whole:
    used = [dataclasses.replace(row, targets=_training_targets(*row.targets)) for row in used]
  vocabulary = vocabulary or source / VOCABULARY_FILE
  config = transformers.read_object(source / transformers.CONFIG_FILE)
  tokenizer, settings = tokenizers.read(source, config)

  pieces: vocabularies.Vocabulary = vocabularies.SentencePieceVocabulary(str(vocabulary))
  if not vocabulary.is_file():
    path = str(source / tokenizers.TOKENIZER_FILE)
    pieces = tokenizers.HuggingFaceVocabulary(path, tokenizer=tokenizer)
  assets = msgspec.structs.replace(
    encoder_assets(sizes, pieces, sizes["emb_dim"], head=False),
    max_length=min(settings.limit or MAX_LENGTH, MAX_LENGTH),
  )
  note = "The checkpoint has no decoder: only CONTRASTIVE can start from it."
  return Converted(
    params=lambda: tensors.to_parameters(used, stored),
    sizes=sizes,
    left_out=left_out,
    assets=assets if tokenizer or vocabulary.is_file() else None,
    notes=() if sizes["num_decoder_layers"] else (note,),
  )


def _convert_vmsst(
  source: pathlib.Path, stored: dict[str, tensors.StoredTensor], vocabulary: pathlib.Path | None
) -> Converted:
  """Returns VMSST.

  As in the released code, it reads 512 tokens of a sentence, though it was trained on 32; see
  `max_length` of `vmsst.load`.
  """
  sizes = read_config(source) | {"num_decoder_layers": 0}
  own = {x: y for x, y in stored.items() if x.startswith(_VMSST) or x == _PROJECTION}
  tensors_by_name = {name.removeprefix(_VMSST): tensor for name, tensor in own.items()}
  dimension = own[_PROJECTION].shape[0] if _PROJECTION in own else 0
  shape = (dimension, sizes["emb_dim"])
  head = Row(_PROJECTION, shape, ("mean/kernel",), transposed=True)
  table, copies = match(tensors_by_name, sizes, source, head)
  vocabulary = vocabulary or source / VOCABULARY_FILE
  if not vocabulary.is_file():
    raise errors.InputError(
      f"{vocabulary} does not exist; pass that of google/mt5-large (--vocabulary)"
    )
  pieces = vocabularies.SentencePieceVocabulary(str(vocabulary))
  return Converted(
    params=lambda: tensors.to_parameters(table, tensors_by_name),
    sizes=sizes,
    left_out={
      **{_VMSST + name: reason for name, reason in copies.items()},
      **dict.fromkeys(stored.keys() - own.keys(), "the sentence encoder has no such parameter"),
    },
    assets=encoder_assets(sizes, pieces, dimension, head=True),
  )


def rows(sizes: Mapping[str, Any]) -> list[Row]:
  """Returns the tensors of an mT5 in transformers and the T5X parameters that they are.

  Args:
    sizes: Attributes of a T5Config, and `num_decoder_layers` unless there is only the encoder.
  """
  encoder = transformers.t5_encoder("wi_0", "wi_1")
  table = (*encoder, *(_DECODER if sizes.get("num_decoder_layers") else ()))
  joined = {"joined": sizes["num_heads"] * sizes["head_dim"]}
  return tensors.expand(table, {**sizes, **joined})


def match(
  stored: dict[str, tensors.StoredTensor],
  sizes: Mapping[str, int],
  where: pathlib.Path,
  *head: Row,
) -> tuple[list[Row], dict[str, str]]:
  """Returns what each tensor of an mT5 becomes, and the reason for those that become nothing.

  Args:
    stored: All tensors in transformers' names. A copy of the token table may stand for it.
    sizes: As for `rows`.
    where: The source, for messages.
    *head: What the tensors of a head become.

  Raises:
    InputError: a tensor is missing, has another shape or is unknown.
  """
  if _TABLE not in stored and _COPIES[0] in stored:
    stored[_TABLE] = stored.pop(_COPIES[0])
  table = [*rows(sizes), *head]
  left_out = {name: reason for name, reason in _UNUSED.items() if name in stored}
  used = {name: tensor for name, tensor in stored.items() if name not in left_out}
  tensors.check(table, used, str(where))
  return table, left_out


def encoder_assets(
  sizes: Mapping[str, Any], vocabulary: vocabularies.Vocabulary, dimension: int, *, head: bool
) -> encoder_json.EncoderAssets:
  """Returns what `vmsst.load` needs to know about the encoder of an mT5.

  Args:
    sizes: As for `rows`.
    vocabulary: mT5's.
    dimension: Width of the sentence vectors.
    head: Whether a projection follows the mean of token states.
  """
  config = t5.T5Config(**{key: x for key, x in sizes.items() if key != "num_decoder_layers"})
  network = sentence_encoder.SentenceEncoder(config, dimension, head=head)
  return encoder_json.EncoderAssets(network, vocabulary, MAX_LENGTH)


def _training_targets(name: str) -> tuple[str, ...]:
  """Returns the parameters of a model that starts from a T5X parameter."""
  if name.startswith("encoder/"):
    return (name, f"language_{name}")
  for theirs, ours in _INSTEAD.items():
    name = name.replace(theirs, ours)
  return (name,)


class _Options(msgspec.Struct, rename=transformers.T5_NAMES | {
  "num_encoder_layers": "num_layers", "relpos_max_distance": "relative_attention_max_distance",
}):  # fmt: skip
  """The attributes of a T5Config, and `num_decoder_layers`, by their names there."""

  vocab_size: transformers.Size
  emb_dim: transformers.Size
  num_heads: transformers.Size
  head_dim: transformers.Size
  mlp_dim: transformers.Size
  num_encoder_layers: transformers.Layers
  num_decoder_layers: transformers.Layers | None = None
  relpos_buckets: transformers.Size = 32
  relpos_max_distance: transformers.Size = 128


def read_config(folder: pathlib.Path) -> dict[str, int]:
  """Returns the attributes of a T5Config, and `num_decoder_layers`, in a `config.json`.

  Raises:
    InputError: the file is missing or damaged, or describes another model than mT5 or T5 1.1.
  """
  path = folder / transformers.CONFIG_FILE
  record = transformers.read_object(path)
  # umT5, another `model_type`, has a bias table in every layer.
  fixed = {"feed_forward_proj": "gated-gelu", "layer_norm_epsilon": 1e-6}
  sizes = msgspec.structs.asdict(transformers.checked(path, record, _Options, fixed))
  return sizes | {"num_decoder_layers": sizes["num_decoder_layers"] or sizes["num_encoder_layers"]}
