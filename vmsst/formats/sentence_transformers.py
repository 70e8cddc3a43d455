"""Reads sentence-transformers encoders, and exports encoders in the same format.

In a sentence-transformers folder, `modules.json` lists the modules: the transformer, the pooling
and the layers after the pooling. Other files contain the tokenizer, the prompts and the maximum
length. The imported network is a `vmsst.networks.sentence_encoder.SentenceEncoder`. Settings that
this library does not support raise an error.

Exports also contain `encoder.json`, so that `vmsst.load` can open the same folder. Exports contain
no custom code. Neither reading nor writing requires torch or sentence-transformers.
"""

import dataclasses
import json
import pathlib
import re
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal

import msgspec
import numpy as np

from vmsst import errors
from vmsst.formats import encoder_json, static, tensors, tokenizers, transformers
from vmsst.formats.encoder_json import Converted
from vmsst.formats.tokenizers import ExportedTokenizer
from vmsst.networks import sentence_encoder, transformer
from vmsst.networks.static import StaticConfig

MODULES_FILE = "modules.json"
PROMPTS_FILE = "config_sentence_transformers.json"
MAX_LENGTH = 512
"""Default maximum length for encoders without a position table, as in transformers' T5 configs."""
# Files with transformer options. The first file that exists and is not empty is used.
_OPTIONS_FILES = tuple(
  f"sentence_{name}_config.json"
  for name in ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
)
# The only supported value of each of these transformer options.
_OPTIONS: dict[str, Any] = {
  "transformer_task": "feature-extraction",
  "modality_config": {"text": {"method": "forward", "method_output_name": "last_hidden_state"}},
  "module_output_name": "token_embeddings",
}
# Files that change the model or its preprocessing in transformers. Models with these files are not
# supported.
_OTHERS = ("adapter_config.json", "processor_config.json", "preprocessor_config.json")
_E5 = {"query": "query: ", "passage": "passage: "}
# Name of the pooled vector in the modules' inputs and outputs.
_VECTOR = "sentence_embedding"
# Pooling methods, with the corresponding keys in older files. If a model uses several methods,
# their vectors are concatenated in this order.
_Pool = Literal["cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken"]
_POOLING_FLAGS: dict[_Pool, str] = {
  "cls": "pooling_mode_cls_token",
  "max": "pooling_mode_max_tokens",
  "mean": "pooling_mode_mean_tokens",
  "mean_sqrt_len_tokens": "pooling_mode_mean_sqrt_len_tokens",
  "weightedmean": "pooling_mode_weightedmean_tokens",
  "lasttoken": "pooling_mode_lasttoken",
}
# Package that originally contained the module classes. All versions of sentence-transformers accept
# this package name.
_PACKAGE = "sentence_transformers.models"
# Exports save the default prompt under this name, unless a named prompt has the same text.
_PROMPT = "default"
# transformers requires the framework's name in the metadata of a safetensors file.
_METADATA = {"format": "pt"}


_LAYERS = ("Dense", "LayerNorm", "Dropout", "Normalize")
# Required values of a layer's options: the layer's output replaces the pooled vector.
_LAYER = {"module_input_name": _VECTOR, "module_output_name": _VECTOR, "use_residual": False}


class _Module(msgspec.Struct):
  """An entry in `modules.json`. The path is empty or the name of a folder next to this file."""

  type: Annotated[str, msgspec.Meta(pattern=r"^sentence_transformers\.")]
  path: Annotated[str, msgspec.Meta(pattern=r"^(?!\.\.$)[^/\\\0]{0,99}$")]


class _Options(msgspec.Struct, forbid_unknown_fields=True):
  """Transformer options, read from one of `_OPTIONS_FILES`."""

  max_seq_length: Annotated[int, msgspec.Meta(ge=1)] | None = None
  do_lower_case: bool = False
  unpad_inputs: bool | None = None


class _Prompts(msgspec.Struct):
  """The content of `config_sentence_transformers.json`."""

  prompts: dict[str, str | None] = {}
  default_prompt_name: str | None = None
  similarity_fn_name: encoder_json.Similarity = encoder_json.SIMILARITIES[0]


class _Pooling(msgspec.Struct):
  """The pooling's `config.json`. Older files use the keys in `_POOLING_FLAGS` instead."""

  pooling_mode: _Pool | list[_Pool] | None = None
  include_prompt: bool = True


_ACTIVATION = rf"^torch\.nn\.(\w+\.)*({'|'.join(sentence_encoder.ACTIVATIONS)})$"


class _Dense(msgspec.Struct):
  """The content of a dense layer's `config.json`."""

  out_features: transformers.Size
  activation_function: Annotated[str, msgspec.Meta(pattern=_ACTIVATION)] = "torch.nn.Tanh"
  bias: bool = True


# --------------------------------------------------------------------------------------------
# Reading


def read(folder: pathlib.Path, *, prefix: str | None = None) -> Converted:
  """Imports an encoder from a sentence-transformers or transformers folder.

  Padding has id 0 in this library. If the tokenizer pads with a different id (1 in XLM-R and all E5
  models), this id and 0 are swapped in the vocabulary and in the token table.

  If the folder has no `modules.json`, the import uses the default pooling in sentence-transformers:
  the last token for causal language models, and the mean for all other models. The weights of a
  pre-training head are skipped.

  Layers after the pooling are imported as the head of the network, with two exceptions. If the
  first layer is a dense layer with tanh, as in LaBSE, it is imported as the pooler. If the last
  layer scales vectors to length 1, it is imported as the option `normalize`.

  Args:
    folder: The folder.
    prefix: Text to put before every sentence. If omitted, the folder's default prompt is used. If
      the folder has no prompts and its name or config contains "e5", the default is "query: ".

  Raises:
    InputError: If a file is damaged, or a setting is not supported.
  """
  modules = list_modules(folder)
  source = folder / modules[0][1]
  if modules[0][0] == static.MODULE:
    return _read_static(folder, modules, prefix)
  path = source / transformers.CONFIG_FILE
  record = transformers.read_object(path)
  architecture = transformers.ARCHITECTURES.get(str(record.get("model_type")))
  if architecture is None:
    raise errors.InputError(
      f"{path}: 'model_type' is {record.get('model_type')!r}; only "
      f"{', '.join(transformers.ARCHITECTURES)} and exports of this library are supported. "
      "If sentence-transformers is installed, commands can open its other models too"
    )
  for name in _OTHERS:
    if (source / name).is_file():
      raise errors.InputError(f"{source / name}: a model with this file is not supported")
  # Without `modules.json`, sentence-transformers ignores its other settings files.
  options, settings, pooling, pools_prompt = _Options(), _Prompts(), "mean", True
  if len(modules) > 1:
    for options_path in (source / name for name in _OPTIONS_FILES):
      if options_record := transformers.read_object(options_path, if_missing={}):
        changed_options = {
          key: x for key, x in options_record.items() if x not in (None, {}, _OPTIONS.get(key))
        }
        options = transformers.check_config(options_path, changed_options, _Options)
        break
    settings_record, settings = _settings(folder)
    pooling_path = folder / modules[1][1] / transformers.CONFIG_FILE
    pooling_record = transformers.read_object(pooling_path)
    pooling_settings = transformers.check_config(pooling_path, pooling_record, _Pooling)
    pools_prompt, mode = pooling_settings.include_prompt, pooling_settings.pooling_mode
    if mode is None:
      mode = [name for name, flag in _POOLING_FLAGS.items() if pooling_record.get(flag)] or "mean"
    pooling = "+".join(mode if isinstance(mode, list) else [mode]).replace("lasttoken", "last")
  else:
    settings_record = {}
    kinds = record.get("architectures") or [""]
    if str(kinds[0]).endswith("ForCausalLM") and record.get("is_causal", True) is not False:
      pooling = "last"
  default, prompts = _prompts(folder, settings_record, settings, record)
  sizes = architecture.sizes(path, record)
  tokenizer, tokenizer_settings = tokenizers.read(source, record, lowercase=options.do_lower_case)
  rows = sizes["vocab_size"]
  if tokenizer is not None:
    # The padding id comes from the tokenizer, not from the model's config. The small E5, for
    # example, is a BERT (padding id 0) with XLM-R's tokenizer (padding id 1).
    padding_id = tokenizers.padding_id(tokenizer)
  elif str(record.get("tokenizer_class")).startswith("XLMRoberta"):
    padding_id = 1
  else:
    padding_id = record.get("pad_token_id") or 0
  if padding_id >= rows:
    if tokenizer is None or tokenizer.id_to_token(padding_id) is not None:
      raise errors.InputError(
        f"{source}: the padding id {padding_id} is outside the token table ({rows} rows)"
      )
    sizes["vocab_size"] = padding_id + 1
  first = sizes.get("position_offset", 0)
  if first and tokenizer is not None and padding_id != first - 1:
    raise errors.InputError(
      f"{path}: the model numbers positions starting after padding id {first - 1}, but the "
      f"tokenizer pads with {padding_id}"
    )
  if not pools_prompt:
    if prefix or (prefix is None and (default or prompts)):
      raise errors.InputError(
        f"{folder}: pooling without the prompt ('include_prompt') is not supported; pass an empty "
        "prefix"
      )
    prompts = {}
  config = transformer.TransformerConfig(**sizes)
  network, head_params = _network(folder, modules[2:], config, pooling)
  weights, left_out = architecture.name_tensors(source, transformers.open_tensors(source))
  table = architecture.table.rows(dataclasses.replace(config, vocab_size=rows))
  tensors.check(table, weights, str(source))

  def params() -> dict[str, np.ndarray]:
    arrays = tensors.to_parameters(table, weights) | head_params()
    if padding_id:
      table_VD = arrays[tensors.TOKEN_TABLE]
      if config.vocab_size > rows:
        # Add rows up to the padding id. No text uses these rows.
        unused_ND = np.zeros((config.vocab_size - rows, config.emb_dim), np.float32)
        table_VD = np.concatenate([table_VD, unused_ND])  # np.pad is ten times slower.
      table_VD[[0, padding_id]] = table_VD[[padding_id, 0]]
      arrays[tensors.TOKEN_TABLE] = table_VD
    return arrays

  max_length = options.max_seq_length or tokenizer_settings.limit or config.max_tokens + 1
  if max_length > config.max_tokens:
    max_length = MAX_LENGTH if config.positions == "relative" else config.max_tokens
  text_prefix = default if prefix is None else prefix

  vocabulary = tokenizers.HuggingFaceVocabulary(
    str(source / tokenizers.TOKENIZER_FILE), text_prefix, prompts, tokenizer
  )
  assets = encoder_json.EncoderAssets(
    network, vocabulary, max_length, similarity_fn_name=settings.similarity_fn_name
  )
  note = (
    f"The model has no {tokenizers.TOKENIZER_FILE}, so vmsst.load cannot open it. Save one with "
    "transformers' AutoTokenizer, or train from it with a vocabulary that has the same ids"
  )
  return Converted(
    params=params,
    sizes=sizes,
    left_out=left_out,
    assets=None if tokenizer is None else assets,
    notes=() if tokenizer else (note,),
  )


def _read_static(
  folder: pathlib.Path, modules: list[tuple[str, str]], prefix: str | None
) -> Converted:
  """Imports a StaticEmbedding or Model2Vec encoder; see `read`."""
  settings_record, settings = _settings(folder)
  # A missing list of prompts means no prompts, even if the name contains "e5".
  default, prompts = _prompts(folder, {"prompts": None, **settings_record}, settings, {})
  embedding = static.read(folder / modules[0][1])
  network, head_params = _network(folder, modules[1:], embedding.config)
  vocabulary = dataclasses.replace(
    embedding.vocabulary, prefix=default if prefix is None else prefix, prompts=prompts
  )
  return Converted(
    params=lambda: {tensors.TOKEN_TABLE: embedding.table(), **head_params()},
    sizes=dataclasses.asdict(embedding.config),
    left_out={},
    assets=encoder_json.EncoderAssets(
      network, vocabulary, embedding.max_length, similarity_fn_name=settings.similarity_fn_name
    ),
  )


def _settings(folder: pathlib.Path) -> tuple[dict[str, Any], _Prompts]:
  """Returns the content of `config_sentence_transformers.json`, raw and parsed."""
  path = folder / PROMPTS_FILE
  record = transformers.read_object(path, if_missing={})
  # A null in the file stands for the default.
  values = {key: value for key, value in record.items() if value is not None}
  fixed = {"model_type": "SentenceTransformer", "truncate_dim": None}
  return record, transformers.check_config(path, values, _Prompts, fixed)


def _network(
  folder: pathlib.Path, modules: list[tuple[str, str]], config: Any, pooling: str = "mean"
) -> tuple[sentence_encoder.SentenceEncoder, Callable[[], dict[str, np.ndarray]]]:
  """Returns the network, and a function that reads the weights of the layers after the pooling.

  Args:
    folder: The folder.
    modules: The class and the folder of each layer after the pooling.
    config: Config of the transformer or static encoder.
    pooling: The pooling methods, joined by "+".
  """
  head: list[sentence_encoder.Layer] = []
  for kind, name in modules:
    path = folder / name / transformers.CONFIG_FILE
    record = transformers.read_object(path, if_missing={})
    record = {key: value for key, value in record.items() if value is not None}
    transformers.check_config(path, record, dict, _LAYER)
    if kind == "Dense":
      linear = transformers.check_config(path, record, _Dense)
      activation = linear.activation_function.rpartition(".")[2]
      head.append(sentence_encoder.Dense(linear.out_features, activation, bias=linear.bias))
    elif kind == "Dropout":
      head.append(sentence_encoder.Dropout(record.get("dropout", 0.2)))
    else:
      head.append(getattr(sentence_encoder, kind)())
  widths = [layer.features for layer in head if isinstance(layer, sentence_encoder.Dense)]
  # Import a first layer with tanh as the pooler, because a training run that starts from this
  # encoder keeps the pooler but not the head.
  has_pooler = bool(widths) and head[0] == sentence_encoder.Dense(widths[0])
  normalize = head[-1:] == [sentence_encoder.Normalize()]
  network = sentence_encoder.SentenceEncoder(
    config,
    widths[-1] if widths else config.width * len(pooling.split("+")),
    head=tuple(head[has_pooler : len(head) - normalize]) or False,
    pooling=pooling,
    normalize=normalize,
    pooler_dim=widths[0] if has_pooler else None,
  )
  heads = []
  for (_, name), table in zip(modules, transformers.layer_rows(network), strict=True):
    if table:
      weights = transformers.open_tensors(folder / name)
      tensors.check(table, weights, str(folder / name))
      heads.append((table, weights))
  return network, lambda: {
    name: array for head in heads for name, array in tensors.to_parameters(*head).items()
  }


def list_modules(folder: pathlib.Path) -> list[tuple[str, str]]:
  """Returns the class and the folder of each module in `modules.json`.

  If this file does not exist, the folder is read as a single transformer or a Model2Vec encoder.

  Raises:
    InputError: If the file is damaged, a path points outside the folder, or a module (such as
      custom code) is not supported.
  """
  path = folder / MODULES_FILE
  if not path.is_file():
    if modules := static.list_modules(folder):
      return modules
    settings_path = folder / tokenizers.SETTINGS_FILE
    has_template = "chat_template" in transformers.read_object(settings_path, if_missing={})
    if has_template or any(folder.glob("chat_template*.jinja")):
      raise errors.InputError(
        f"{folder}: a model with a chat template but without a {MODULES_FILE} is not supported"
      )
    return [("Transformer", "")]
  try:
    entries = msgspec.json.decode(path.read_bytes(), type=list[_Module])
  except msgspec.MsgspecError as error:
    raise errors.InputError(
      f"{path}: not a list of sentence-transformers modules with 'type' and 'path': {error}. "
      "Custom code is not supported, and each path must be the name of a folder next to this file"
    ) from None
  # The package of a class differs between versions, but the class name does not.
  modules = [(module.type.rsplit(".", 1)[-1], module.path) for module in entries]
  kinds = [kind for kind, _ in modules]
  first = 1 if kinds[:1] == [static.MODULE] else 2
  if kinds[:first] not in ([static.MODULE], ["Transformer", "Pooling"]) or not (
    {*kinds[first:]} <= {*_LAYERS}
  ):
    raise errors.InputError(
      f"{path}: the modules {', '.join(kinds)} are not supported; a model must start with "
      f"Transformer and Pooling, or with {static.MODULE}, and may continue with "
      f"{', '.join(_LAYERS)}"
    )
  return modules


def _prompts(
  folder: pathlib.Path, record: Mapping[str, Any], settings: _Prompts, config: Mapping[str, Any]
) -> tuple[str, dict[str, str]]:
  """Returns the default prompt, and the prompts by name.

  Args:
    folder: The folder. Its name may show that the model is an E5 model.
    record: Raw content of `config_sentence_transformers.json`.
    settings: Parsed content of the same file.
    config: Content of `config.json`.
  """
  # In the Hugging Face cache, the folder with the model's name is two levels up.
  cache = [parent.name for parent in folder.parents if parent.name.startswith("models--")]
  names = (folder.name, str(config.get("_name_or_path", "")), *cache)
  words = [re.split(r"[-_/]", name.lower()) for name in names]
  is_e5 = any("e5" in x and "instruct" not in x for x in words)
  if is_e5 and not record.keys() & {"prompts", "default_prompt_name"}:
    # E5 needs prompts, but the files of E5 models do not contain prompts.
    return _E5["query"], _E5 | {"document": _E5["passage"]}
  prompts = {"query": "", "document": ""}
  prompts |= {key: text or "" for key, text in settings.prompts.items()}
  name = settings.default_prompt_name
  prefix = "" if name is None else prompts[name]
  # Ignore empty prompts, because sentence-transformers saves an empty "document" prompt with every
  # model.
  prompts["document"] = tokenizers.role_prompt(prompts, "document") or ""
  return prefix, prompts if any(prompts.values()) else {}


def read_params(
  folder: pathlib.Path, network: sentence_encoder.SentenceEncoder
) -> dict[str, np.ndarray]:
  """Reads the parameters of an export by name, exactly as they were before the export.

  Args:
    folder: The export's folder.
    network: The network described in the export's `encoder.json`.

  Raises:
    InputError: If a file is missing or damaged.
  """
  if isinstance(network.config, StaticConfig):
    params = {tensors.TOKEN_TABLE: static.read(folder).table()}
  else:
    params = transformers.read_params(folder, network.config)
  all_rows = transformers.layer_rows(network)
  layer_modules = list_modules(folder)[-len(all_rows) :]
  for rows, (_, name) in zip(all_rows, layer_modules, strict=False):
    if rows:
      params |= tensors.to_parameters(rows, transformers.open_tensors(folder / name))
  return params


# --------------------------------------------------------------------------------------------
# Writing


def write(
  saved: encoder_json.SavedEncoder, folder: pathlib.Path, *, pretokenized: bool = False
) -> ExportedTokenizer:
  """Writes an encoder into a folder that `SentenceTransformer(folder)` and `vmsst.load` open.

  `vmsst.load(folder).encode` returns exactly the same vectors as the original encoder.
  sentence-transformers returns the same vectors in float32, up to rounding error, with three
  exceptions:

  * If the encoder is a transformer without an EOS token, such as EMS, a batch of empty texts raises
    an error.
  * If a text contains the padding token of an imported tokenizer, such as "<pad>", this string is
    treated as padding.
  * A few texts are tokenized differently; see `tokenizers.export`.

  Args:
    saved: The encoder.
    folder: An empty or new local folder.
    pretokenized: Whether callers will split texts with `vmsst.data.word_splitting.split_words`
      before encoding them. Some vocabularies, such as EMS's, require this split.

  Raises:
    InputError: If the format does not support the encoder (for example a BiLSTM, or a vocabulary
      that splits words). Nothing is written in this case.
  """
  assets, vocabulary = saved.assets, saved.assets.vocabulary
  if isinstance(saved.network.config, StaticConfig):
    tokenizer = static.export(vocabulary, assets.max_length)
    arrays = static.to_tensors(saved.arrays[tensors.TOKEN_TABLE], vocabulary, tokenizer)
  else:
    tokenizer = tokenizers.export(vocabulary, pretokenized=pretokenized)
    arrays = transformers.to_tensors(saved.network.config, saved.arrays, tokenizer.padding_id)
  weights = [transformers.WEIGHTS_FILE, *write_modules(saved, tokenizer, folder)]
  tensors.write_file(folder / transformers.WEIGHTS_FILE, arrays, _METADATA)
  path = folder / tokenizers.TOKENIZER_FILE
  path.write_bytes(tokenizer.content)
  if isinstance(vocabulary, tokenizers.HuggingFaceVocabulary):
    # Save the exported tokenizer's checksum, not the original tokenizer's checksum.
    vocabulary = dataclasses.replace(vocabulary, path=str(path), tokenizer=None)
    assets = msgspec.structs.replace(assets, vocabulary=vocabulary)
  encoder_json.save_assets(assets, folder, weights)
  return tokenizer


def write_modules(
  saved: encoder_json.SavedEncoder,
  tokenizer: ExportedTokenizer,
  folder: pathlib.Path,
  **options: Any,
) -> list[str]:
  """Writes all files in an export except `tokenizer.json` and the transformer's weights.

  Args:
    saved: The encoder.
    tokenizer: The exported tokenizer.
    folder: Folder to write to.
    **options: Additional fields for `sentence_bert_config.json`.

  Returns:
    Names of the weight files for the layers after the pooling.

  Raises:
    InputError: If transformers does not support the encoder. Nothing is written in this case.
  """
  network, assets = saved.network, saved.assets
  # sentence-transformers treats a missing "query" or "document" prompt as empty. This library uses
  # the "passage", "corpus" or default prompt instead, so export that prompt under the missing name.
  vocabulary = assets.vocabulary
  prefix, prompts = getattr(vocabulary, "prefix", ""), dict(getattr(vocabulary, "prompts", {}))
  prompts |= tokenizers.method_prompts(prefix, prompts)
  default = next((name for name, prompt in prompts.items() if prompt == prefix), None)
  if prefix and default is None:
    default = _PROMPT
    while default in prompts:
      default += "_"
    prompts[default] = prefix
  files: dict[str, Any] = {
    PROMPTS_FILE: {
      "prompts": prompts,
      "default_prompt_name": default if prefix else None,
      "similarity_fn_name": assets.similarity_fn_name,
    }
  }
  weights, paths, kind = [], [""], static.MODULE
  if isinstance(network.config, StaticConfig):
    folder.mkdir(parents=True, exist_ok=True)
    config = static.describe(network, vocabulary, assets.max_length)
    files |= {transformers.CONFIG_FILE: config} if config else {}
  else:
    kind = "Transformer"
    paths.append("1_Pooling")
    names = network.pooling.replace("last", "lasttoken").split("+")
    pooling: dict[str, Any] = {"word_embedding_dimension": network.config.width}
    pooling |= {flag: name in names for name, flag in _POOLING_FLAGS.items()}
    if len(names) > 1:
      pooling["pooling_mode"] = names
    files |= {
      transformers.CONFIG_FILE: transformers.describe(network.config, tokenizer.padding_id),
      tokenizers.SETTINGS_FILE: tokenizers.described_settings(tokenizer, assets.max_length),
      _OPTIONS_FILES[0]: {"max_seq_length": assets.max_length, "do_lower_case": False, **options},
      f"{paths[1]}/{transformers.CONFIG_FILE}": pooling,
    }
    (folder / paths[1]).mkdir(parents=True)
  inputs, all_rows = network.widths, transformers.layer_rows(network)
  for layer, width, rows in zip(network.layers.values(), inputs, all_rows, strict=False):
    paths.append(f"{len(paths)}_{type(layer).__name__}")
    (folder / paths[-1]).mkdir()
    config = {}
    if isinstance(layer, sentence_encoder.Dense):
      config = {"in_features": width, "out_features": layer.features, "bias": layer.bias}
      config["activation_function"] = f"torch.nn.{layer.activation}"
    elif isinstance(layer, sentence_encoder.LayerNorm):
      config = {"dimension": width}
    elif isinstance(layer, sentence_encoder.Dropout):
      config = {"dropout": layer.rate}
    if config:
      files[f"{paths[-1]}/{transformers.CONFIG_FILE}"] = config
    if rows:
      weights.append(f"{paths[-1]}/{transformers.WEIGHTS_FILE}")
      arrays = tensors.to_tensors(rows, saved.arrays)
      tensors.write_file(folder / weights[-1], arrays, _METADATA)
  files[MODULES_FILE] = []
  for i, path in enumerate(paths):
    layer_kind = path.partition("_")[2] or kind
    entry = {"idx": i, "name": str(i), "path": path, "type": f"{_PACKAGE}.{layer_kind}"}
    files[MODULES_FILE].append(entry)
  for name, record in files.items():
    text = json.dumps(record, indent=2, ensure_ascii=False) + "\n"
    (folder / name).write_text(text, encoding="utf-8")
  return weights
