"""Exports encoders for sentence-transformers, which loads them without custom code.

The encoder becomes one of transformers (`vmsst.formats.transformers_weights`). Pooling, heads
and scaling become modules after it. `encoder.json` and the vocabulary are for `vmsst.load`, which
opens the same folder.

Writing the files needs neither torch nor sentence-transformers.
"""

import dataclasses
import json
import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from vmsst import errors
from vmsst.formats import (
  architectures,
  encoder_json,
  hugging_face,
  hugging_face_vocabulary,
  sentence_transformers_files,
  tensors,
  tokenizer_file,
  transformers_weights,
  weight_tables,
)
from vmsst.formats.encoder_json import SavedEncoder
from vmsst.formats.tokenizer_file import ExportedTokenizer
from vmsst.networks import lstm, sentence_encoder, t5, transformer

# The classes' original package: all versions of sentence-transformers accept these names.
_MODULES = "sentence_transformers.models"
# The name of the default prompt if no other prompt equals it.
_PROMPT = "default"
# transformers requires the framework that the arrays of a file are for.
_METADATA = {"format": "pt"}


@dataclasses.dataclass(frozen=True)
class _Module:
  """A module after the transformer: its class, the content of its `config.json`, its arrays."""

  kind: str
  config: Mapping[str, Any]
  arrays: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)


def write(
  saved: SavedEncoder, folder: pathlib.Path, *, pretokenized: bool = False
) -> ExportedTokenizer:
  """Writes an encoder into a folder that `SentenceTransformer(folder)` and `vmsst.load` open.

  The vectors of `vmsst.load(folder).encode` are exactly those of the encoder. Those of
  sentence-transformers are the same in float32 and up to rounding error, with three exceptions.
  If the vocabulary has no EOS token, as EMS's, a batch of only empty texts is an error there. A
  text that spells the padding token of an imported tokenizer contains that token there. For the
  third, see `tokenizer_file.export_tokenizer`.

  Args:
    saved: The encoder.
    folder: A local folder.
    pretokenized: Texts will be split into words by `vmsst.data.word_splitting.split_words` before
      they are encoded, as vocabularies like that of EMS require.

  Raises:
    InputError: the folder cannot express the encoder (a BiLSTM, a vocabulary that splits text by
      the rules of its language).
  """
  assets, vocabulary = saved.assets, saved.assets.vocabulary
  tokenizer = tokenizer_file.export_tokenizer(vocabulary, pretokenized=pretokenized)
  weights = [hugging_face.WEIGHTS_FILE, *write_modules(saved, tokenizer, folder)]
  config = saved.network.config
  arrays = transformers_weights.to_tensors(config, saved.arrays, tokenizer.padding_id)
  tensors.write_file(folder / hugging_face.WEIGHTS_FILE, arrays, _METADATA)
  tokenizer_path = folder / hugging_face_vocabulary.TOKENIZER_FILE
  tokenizer_path.write_bytes(tokenizer.content)
  if isinstance(vocabulary, hugging_face_vocabulary.HuggingFaceVocabulary):
    # The encoder reads the tokenizer of this folder.
    vocabulary = dataclasses.replace(vocabulary, path=str(tokenizer_path))
    assets = dataclasses.replace(assets, vocabulary=vocabulary)
  encoder_json.save_assets(assets, folder, weights)
  return tokenizer


def write_modules(
  saved: SavedEncoder, tokenizer: ExportedTokenizer, folder: pathlib.Path, **options: Any
) -> list[str]:
  """Writes all but the transformer's weights and `tokenizer.json`; returns the files of weights.

  Args:
    saved: The encoder.
    tokenizer: Its tokenizer.
    folder: Where to write.
    **options: Further fields of `sentence_bert_config.json`.

  Raises:
    InputError: transformers has no such encoder. Nothing is written then.
  """
  max_length = saved.assets.max_length
  files: dict[str, Any] = {
    hugging_face.CONFIG_FILE: _transformer(saved, tokenizer.padding_id),
    "tokenizer_config.json": tokenizer_config(tokenizer, max_length),
    "sentence_bert_config.json": {"max_seq_length": max_length, "do_lower_case": False, **options},
    sentence_transformers_files.PROMPTS_FILE: {
      **_prompts(saved.assets.vocabulary),
      "similarity_fn_name": saved.assets.similarity_fn_name,
    },
  }
  weights = []
  listed = [{"idx": 0, "name": "0", "path": "", "type": f"{_MODULES}.Transformer"}]
  for index, module in enumerate(_modules(saved), start=1):
    path = f"{index}_{module.kind}"
    (folder / path).mkdir()
    if module.config:
      files[f"{path}/{hugging_face.CONFIG_FILE}"] = module.config
    if module.arrays:
      weights.append(f"{path}/{hugging_face.WEIGHTS_FILE}")
      tensors.write_file(folder / weights[-1], module.arrays, _METADATA)
    kind = f"{_MODULES}.{module.kind}"
    listed.append({"idx": index, "name": str(index), "path": path, "type": kind})
  for name, record in {**files, sentence_transformers_files.MODULES_FILE: listed}.items():
    _write_json(folder / name, record)
  return weights


def limits(saved: SavedEncoder, tokenizer: ExportedTokenizer) -> list[str]:
  """Returns what users of sentence-transformers must know about an export, as lines."""
  lines = []
  if getattr(saved.assets.vocabulary, "pretokenize", False):
    lines.append(
      "Texts must be split into words first: vmsst.data.word_splitting.split_words(texts, language)"
    )
  if tokenizer.eos is None:
    lines.append("A batch of only empty texts is an error there: this vocabulary has no EOS token")
  return lines


def _transformer(saved: SavedEncoder, padding_id: int) -> dict[str, Any]:
  """Returns the content of `config.json`."""
  config = saved.network.config
  shared = {
    "vocab_size": config.vocab_size,
    "pad_token_id": padding_id,
    "torch_dtype": "float32",
    "transformers_version": "4.40.0",
  }
  if isinstance(config, transformer.TransformerConfig):
    exported = transformers_weights.exported_config(config)
    architecture, record = architectures.of(exported)
    described = {"architectures": [architecture.name], **record}
  elif isinstance(config, t5.T5Config):
    described = architectures.describe_t5(
      config, config.num_encoder_layers, config.relpos_max_distance
    )
    described["architectures"] = ["T5EncoderModel"]
  else:
    raise _unknown_encoder(saved)
  return {**described, **shared}


def _modules(saved: SavedEncoder) -> list[_Module]:
  """Returns the modules after the transformer: pooling, heads and scaling."""
  network, params = saved.network, saved.arrays
  if isinstance(network.config, lstm.LstmConfig):
    raise _unknown_encoder(saved)
  names = network.pooling.replace("last", "lasttoken").split("+")
  flags = sentence_transformers_files.POOLING_FLAGS
  config: dict[str, Any] = {"word_embedding_dimension": network.config.width}
  config |= {flag: name in names for name, flag in flags.items()}
  if len(names) > 1:
    config["pooling_mode"] = names
  modules = [_Module("Pooling", config)]
  inputs, all_rows = network.widths, transformers_weights.layer_rows(network)
  for layer, width, rows in zip(network.layers.values(), inputs, all_rows, strict=False):
    config = {}
    if isinstance(layer, sentence_encoder.Dense):
      config = {"in_features": width, "out_features": layer.features, "bias": layer.bias}
      config["activation_function"] = f"torch.nn.{layer.activation}"
    elif isinstance(layer, sentence_encoder.LayerNorm):
      config = {"dimension": width}
    elif isinstance(layer, sentence_encoder.Dropout):
      config = {"dropout": layer.rate}
    modules.append(_Module(type(layer).__name__, config, weight_tables.to_tensors(rows, params)))
  return modules


def tokenizer_config(tokenizer: ExportedTokenizer, max_length: int) -> dict[str, Any]:
  """Returns the content of `tokenizer_config.json`."""
  special = {
    "pad_token": tokenizer.padding,
    "unk_token": tokenizer.unknown,
    "eos_token": tokenizer.eos,
  }
  return {
    "tokenizer_class": "PreTrainedTokenizerFast",
    "model_max_length": max_length,
    "padding_side": "right",
    "truncation_side": "right",
    "clean_up_tokenization_spaces": False,
    "model_input_names": ["input_ids", "attention_mask"],
    "split_special_tokens": tokenizer.splits_special_tokens,
    **{name: token for name, token in special.items() if token is not None},
  }


def _prompts(vocabulary: Any) -> dict[str, Any]:
  """Returns the prompts under the names that `encode_query` and `encode_document` look up there.

  sentence-transformers takes a missing "query" or "document" for an empty prompt, not for the
  default one or for "passage".
  """
  prefix, prompts = "", {}
  if isinstance(vocabulary, hugging_face_vocabulary.HuggingFaceVocabulary):
    prefix, prompts = vocabulary.prefix, dict(vocabulary.prompts)
  prompts |= hugging_face_vocabulary.method_prompts(prefix, prompts)
  default = next((name for name, prompt in prompts.items() if prompt == prefix), None)
  if prefix and default is None:
    default = _PROMPT
    while default in prompts:
      default += "_"
    prompts[default] = prefix
  return {"prompts": prompts, "default_prompt_name": default if prefix else None}


def _unknown_encoder(saved: SavedEncoder) -> errors.InputError:
  kind = type(saved.assets.network.config).__name__.removesuffix("Config").upper()
  return errors.InputError(
    f"{saved.name} is a {kind} encoder, which transformers does not have (only T5 and BERT-style "
    "encoders); use `vmsst export safetensors`, which exports any encoder"
  )


def _write_json(path: pathlib.Path, record: Any) -> None:
  path.write_text(json.dumps(record, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
