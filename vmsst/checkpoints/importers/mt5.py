"""Imports mT5 as the start of training (VMSST paper, section 6.4).

Both encoders start as mT5's encoder. The decoder takes over self-attention, feed-forward layers and
norms; the norm before cross-attention becomes the one before the sentence injection. mT5's
`lm_head` becomes the part of the vocabulary projection that multiplies hidden states.
Cross-attention is left out. Heads, language tables, injections and the latents' part of the
projection start fresh.

One import serves all models: each reads the parameters that it has.
"""

import dataclasses
import functools
import os
import pathlib
import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from vmsst import errors
from vmsst.checkpoints import (
  encoder_json,
  hugging_face,
  output_folders,
  t5x,
  t5x_legacy,
  tensors,
  transformers_tokenizers,
)
from vmsst.checkpoints.importers import weight_tables
from vmsst.checkpoints.importers.weight_tables import Rule
from vmsst.files import input_files, storage, work_folders
from vmsst.text import vocabularies

VOCABULARY_FILE = "spiece.model"
# Tokens of a sentence, as in transformers' configs of T5; no position table limits them.
MAX_LENGTH = 512
TABLE_NAME = "shared.weight"
COPIES = ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight")

_NOTES = dict.fromkeys(COPIES, "a copy of the token table") | {
  "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight": "T5 never reads it"
}
_CROSS_ATTENTION = "/encoder_decoder_attention/"

_dense = functools.partial(weight_tables.dense, bias=False)
_norm = functools.partial(weight_tables.norm, bias=False)


def _attention(source: str, target: str) -> tuple[Rule, ...]:
  return (
    *_dense(f"{source}.q", f"{target}/query", "joined_dim"),
    *_dense(f"{source}.k", f"{target}/key", "joined_dim"),
    *_dense(f"{source}.v", f"{target}/value", "joined_dim"),
    *_dense(f"{source}.o", f"{target}/out", "emb_dim", "joined_dim"),
  )


def _mlp(source: str) -> tuple[Rule, ...]:
  return (
    *_dense(f"{source}.wi_0", "mlp/wi_0", "mlp_dim"),
    *_dense(f"{source}.wi_1", "mlp/wi_1", "mlp_dim"),
    *_dense(f"{source}.wo", "mlp/wo", "emb_dim", "mlp_dim"),
  )


def _stack(name: str, *layer: Rule) -> tuple[Rule, ...]:
  return (
    Rule(
      f"{name}.block.0.layer.0.SelfAttention.relative_attention_bias.weight",
      f"{name}/relpos_bias/rel_embedding",
      ("relpos_buckets", "num_heads"),
      transposed=True,
    ),
    *weight_tables.each_layer(
      f"num_{name}_layers", f"{name}.block.{{i}}.layer.", f"{name}/layers_{{i}}/", layer
    ),
    *_norm(f"{name}.final_layer_norm", f"{name}/{name}_norm"),
  )


# Names in transformers and in T5X.
ENCODER = (
  Rule(TABLE_NAME, weight_tables.TOKEN_TABLE, ("vocab_size", "emb_dim")),
  *_stack(
    "encoder",
    *_norm("0.layer_norm", "pre_attention_layer_norm"),
    *_attention("0.SelfAttention", "attention"),
    *_norm("1.layer_norm", "pre_mlp_layer_norm"),
    *_mlp("1.DenseReluDense"),
  ),
)
_DECODER = (
  *_stack(
    "decoder",
    *_norm("0.layer_norm", "pre_self_attention_layer_norm"),
    *_attention("0.SelfAttention", "self_attention"),
    *_norm("1.layer_norm", "pre_cross_attention_layer_norm"),
    *_attention("1.EncDecAttention", "encoder_decoder_attention"),
    *_norm("2.layer_norm", "pre_mlp_layer_norm"),
    *_mlp("2.DenseReluDense"),
  ),
  *_dense("lm_head", "decoder/logits_dense", "vocab_size"),
)


@dataclasses.dataclass(frozen=True)
class _Source:
  tensors: Mapping[str, tensors.StoredTensor]
  rows: list[weight_tables.Row]
  sizes: dict[str, int]
  vocabulary: pathlib.Path | None = None


def import_mt5(
  folder: str | os.PathLike[str], output: str | os.PathLike[str]
) -> weight_tables.Imported:
  """Writes the parameters of an mT5 as a T5X checkpoint for training runs to start from.

  Args:
    folder: A Hugging Face folder (`config.json` and safetensors), a T5X checkpoint of either
      layout, or a folder of T5X checkpoints. One in an object store is copied to this machine.
    output: Folder to make, local or in an object store. It gets `checkpoint_0` and, if the source
      has a `spiece.model`, the vocabulary and `encoder.json`: `vmsst.load` opens it.

  Raises:
    InputError: the source cannot be used, or `output` exists. Nothing is written then.
  """
  target = output_folders.new_folder(output)
  with storage.local_copy(storage.absolute(folder)) as source:
    found = _open(source)
    rows = [_for_training(row) for row in found.rows]
    with work_folders.atomic_folder(target) as partial:
      weight_tables.write_checkpoint(partial, weight_tables.to_parameters(rows, found.tensors))
      if found.vocabulary is not None:
        encoder_json.save_imported_encoder(
          partial,
          network=_encoder(found.sizes),
          vocabulary=vocabularies.SentencePieceVocabulary(str(found.vocabulary)),
          max_length=MAX_LENGTH,
        )
  notes = []
  if not found.sizes["num_decoder_layers"]:
    notes.append("The checkpoint has no decoder: only CONTRASTIVE can start from it.")
  if found.vocabulary is not None:
    notes.append(
      f"vmsst.load({str(target)!r}) opens the encoder, with the mean of its token states: mT5 is "
      "not yet a sentence encoder"
    )
  return weight_tables.Imported(
    checkpoint=target / weight_tables.CHECKPOINT,
    sizes=found.sizes,
    rows=tuple(rows),
    vocabulary=None if found.vocabulary is None else target / encoder_json.VOCABULARY_FILE,
    notes=tuple(notes),
  )


def rows(sizes: Mapping[str, Any], *, t5x_names: bool = False) -> list[weight_tables.Row]:
  """Returns the tensors of an mT5 in transformers and the T5X parameters that they are.

  Args:
    sizes: Attributes of a T5Config, and `num_decoder_layers` unless there is only the encoder.
    t5x_names: The tensors are those of a T5X checkpoint instead.
  """
  table = (*ENCODER, *(_DECODER if sizes.get("num_decoder_layers") else ()))
  joined = {"joined_dim": sizes["num_heads"] * sizes["head_dim"]}
  return weight_tables.expand(
    weight_tables.by_parameter(table) if t5x_names else table, {**sizes, **joined}
  )


def encoder_sizes(sizes: Mapping[str, int]) -> dict[str, int]:
  """Returns the attributes of a T5Config, without the number of decoder layers."""
  return {key: value for key, value in sizes.items() if key != "num_decoder_layers"}


def _encoder(sizes: Mapping[str, int]) -> dict[str, Any]:
  """Returns the entry of the encoder, with the mean of its token states, in `encoder.json`."""
  return {
    "class": "SentenceEncoder",
    "config_class": "T5Config",
    "config": encoder_sizes(sizes),
    "latent_dim": sizes["emb_dim"],
    "head": False,
  }


def infer_sizes(
  table: weight_tables.Table,
  stored: Mapping[str, tensors.StoredTensor],
  where: str,
  *,
  otherwise: str,
) -> dict[str, int]:
  """Returns the attributes of a T5Config, and numbers of layers, that tensors show.

  Raises:
    InputError: as `weight_tables.infer_sizes`.
  """
  found = weight_tables.infer_sizes(table, stored, where, otherwise=otherwise)
  return {
    "vocab_size": found["vocab_size"],
    "emb_dim": found["emb_dim"],
    "num_heads": found["num_heads"],
    "head_dim": found["joined_dim"] // found["num_heads"],
    "mlp_dim": found["mlp_dim"],
    "num_encoder_layers": found["num_encoder_layers"],
    "num_decoder_layers": found.get("num_decoder_layers", 0),
    "relpos_buckets": found["relpos_buckets"],
    "relpos_max_distance": 128,  # no tensor shows it
  }


def open_t5x(
  folder: pathlib.Path, *, decoder: bool
) -> tuple[pathlib.Path, dict[str, tensors.StoredTensor], dict[str, int]] | None:
  """Returns the T5X checkpoint in a folder, its parameters by name, and the sizes of its mT5.

  Args:
    folder: A checkpoint of either layout, or a folder of checkpoints, whose latest is taken.
    decoder: Whether sizes include the decoder.

  Returns:
    None if there is no checkpoint.

  Raises:
    InputError: it cannot be read, or is not an mT5.
  """
  newest = _newest_checkpoint(folder)
  if (newest / t5x_legacy.INDEX_FILE).is_file():
    found = t5x_legacy.open_params(newest)
  elif (newest / "state").is_dir():
    found = t5x.open_params(t5x.epath.Path(newest))
  else:
    return None
  table = weight_tables.by_parameter((*ENCODER, *(_DECODER if decoder else ())))
  why = (
    "it is not an mT5 in T5X's names; models with scanned layers (T5X's scalable_t5) have position "
    "tables in every layer and cannot be imported"
  )
  return newest, found, infer_sizes(table, found, str(newest), otherwise=why)


def _newest_checkpoint(folder: pathlib.Path) -> pathlib.Path:
  """Returns the latest checkpoint in `folder`, or `folder` if there is none."""
  steps = {
    int(match.group(1)): path
    for path in folder.iterdir()
    if (match := re.fullmatch(r"checkpoint_(\d+)", path.name)) and path.is_dir()
  }
  return steps[max(steps)] if steps else folder


def _for_training(row: weight_tables.Row) -> weight_tables.Row:
  """Replaces the T5X parameter of a tensor by those of the models that start from it."""
  if not row.targets:
    return row
  (name,) = row.targets
  if _CROSS_ATTENTION in name:
    return dataclasses.replace(row, targets=(), note="cross-attention")
  if name.startswith("encoder/"):
    return dataclasses.replace(row, targets=(name, f"language_{name}"))
  if name == "decoder/logits_dense/kernel":
    return dataclasses.replace(row, targets=("logits_hidden/kernel",))
  name = name.replace("/pre_cross_attention_layer_norm/", "/pre_injection_layer_norm/")
  return dataclasses.replace(row, targets=(name,))


def _open(folder: pathlib.Path) -> _Source:
  hugging_face.check_folder(
    folder, "a Hugging Face folder (config.json, model.safetensors) or a T5X checkpoint"
  )
  if (folder / hugging_face.CONFIG_FILE).exists():
    return _open_hugging_face(folder)
  checkpoint = open_t5x(folder, decoder=True)
  if checkpoint is None:
    inside = input_files.listed(path.name for path in folder.iterdir())
    raise errors.InputError(
      f"{folder} is neither a Hugging Face folder (config.json and model.safetensors) nor a T5X "
      f"checkpoint: it holds {inside}"
    )
  path, found, sizes = checkpoint
  expected = rows(sizes, t5x_names=True)
  weight_tables.check(expected, found, str(path))
  return _Source(found, expected, sizes)


def _open_hugging_face(folder: pathlib.Path) -> _Source:
  found = hugging_face.open_tensors(folder)
  has_decoder = any(name.startswith("decoder.") for name in found)
  sizes = _sizes_of_config(folder / hugging_face.CONFIG_FILE, hugging_face.read_config(folder))
  if not has_decoder:
    sizes["num_decoder_layers"] = 0
  for stack in ("encoder", "decoder"):
    tensors.check_layers(sizes[f"num_{stack}_layers"], found, str(folder))
  if has_decoder and "lm_head.weight" not in found:
    raise errors.InputError(
      f"{folder} has a decoder but no lm_head.weight, which mT5 does not share with the token "
      "table; save the whole model (MT5ForConditionalGeneration) or the encoder alone"
    )
  expected = rows(sizes)
  used = {name: tensor for name, tensor in found.items() if name not in _NOTES}
  weight_tables.check(expected, used, str(folder))
  for name in found.keys() & set(COPIES):
    if not np.array_equal(found[name].read(), found[TABLE_NAME].read()):
      raise errors.InputError(
        f"{found[name].where} differs from {TABLE_NAME}: in mT5 both stacks share one token table"
      )
  expected += [
    weight_tables.Row(name, found[name].shape, note=note)
    for name, note in _NOTES.items()
    if name in found
  ]
  vocabulary = folder / VOCABULARY_FILE
  settings = transformers_tokenizers.read_settings(folder)
  transformers_tokenizers.check_settings(
    folder / transformers_tokenizers.SETTINGS_FILE, settings, {}
  )
  return _Source(found, expected, sizes, vocabulary if vocabulary.is_file() else None)


def _sizes_of_config(path: pathlib.Path, config: dict[str, Any]) -> dict[str, int]:
  def number(key: str, default: int | None = None) -> int:
    return hugging_face.positive_integer(path, config, key, default)

  # T5 1.1 has the same parameters and function; umT5 has a bias table in every layer.
  choices: tuple[tuple[str, Any, tuple[Any, ...]], ...] = (
    ("model_type", None, ("mt5", "t5")),
    ("feed_forward_proj", None, ("gated-gelu",)),
    ("layer_norm_epsilon", 1e-6, (1e-6,)),
  )
  for key, default, known in choices:
    hugging_face.check_choice(path, config, key, default, known)
  layers = number("num_layers")
  return {
    "vocab_size": number("vocab_size"),
    "emb_dim": number("d_model"),
    "num_heads": number("num_heads"),
    "head_dim": number("d_kv"),
    "mlp_dim": number("d_ff"),
    "num_encoder_layers": layers,
    "num_decoder_layers": number("num_decoder_layers", layers),
    "relpos_buckets": number("relative_attention_num_buckets", 32),
    "relpos_max_distance": number("relative_attention_max_distance", 128),
  }
