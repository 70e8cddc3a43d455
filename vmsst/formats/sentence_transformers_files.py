"""Reads what the files of a released encoder say, as sentence-transformers understands them.

They list the modules that follow the encoder, and give its tokenizer, prompts and maximum length.
What this library cannot express is refused. The weights are read elsewhere.
"""

import dataclasses
import json
import pathlib
import re
from collections.abc import Callable, Mapping
from typing import Any

import tokenizers

from vmsst import errors
from vmsst.formats import architectures, encoder_json, hugging_face, transformers_tokenizers
from vmsst.io import input_files
from vmsst.networks import sentence_encoder

MODULES_FILE = "modules.json"
PROMPTS_FILE = "config_sentence_transformers.json"
# The options of the encoder are in the first of these files that is not empty.
_OPTIONS_FILES = tuple(
  f"sentence_{name}_config.json"
  for name in ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
)
# Options that may have one value, and those that are read or change no vectors.
_OPTIONS: dict[str, Any] = {
  "transformer_task": "feature-extraction",
  "modality_config": {"text": {"method": "forward", "method_output_name": "last_hidden_state"}},
  "module_output_name": "token_embeddings",
}
_READ_OPTIONS = ("max_seq_length", "do_lower_case", "unpad_inputs")
# Files with which transformers opens another model or another preprocessing.
_OTHERS = ("adapter_config.json", "processor_config.json", "preprocessor_config.json")
_CHAT = "chat_template"
_E5 = {"query": "query: ", "passage": "passage: "}
# The prompts of documents, by preference.
_DOCUMENT = ("document", "passage", "corpus")
# The name of the pooled vector on its way through the modules.
_VECTOR = "sentence_embedding"
# In the order in which older files concatenate them.
POOLING_FLAGS = {
  "cls": "pooling_mode_cls_token",
  "max": "pooling_mode_max_tokens",
  "mean": "pooling_mode_mean_tokens",
  "mean_sqrt_len_tokens": "pooling_mode_mean_sqrt_len_tokens",
  "weightedmean": "pooling_mode_weightedmean_tokens",
  "lasttoken": "pooling_mode_lasttoken",
}
"""The keys of the ways of pooling in older files, by their names in newer ones."""


@dataclasses.dataclass(frozen=True)
class Released:
  """What the files of a released encoder say.

  Attributes:
    transformer: The folder of the encoder.
    config: Content of its `config.json`.
    tokenizer: Its tokenizer, or None if there are no files of one.
    max_length: The most tokens of a text, or None if no file limits them.
    pooling: How token states become a sentence vector, as `SentenceEncoder.pooling`.
    layers: Name of the folder and description of each layer that follows.
    prefix: The text before each sentence, if nothing else is requested.
    prompts: The texts before those of which a name is requested. "query" and "document" are what
      `encode_query` and `encode_document` use.
    pools_prompt: Whether the tokens of a prompt are pooled too.
    similarity_fn_name: How vectors are compared, one of `encoder_json.SIMILARITIES`.
  """

  transformer: pathlib.Path
  config: Mapping[str, Any]
  tokenizer: tokenizers.Tokenizer | None
  max_length: int | None
  pooling: str
  layers: tuple[tuple[str, sentence_encoder.Layer], ...]
  prefix: str
  prompts: Mapping[str, str]
  pools_prompt: bool
  similarity_fn_name: str


def read(folder: pathlib.Path) -> Released:
  """Returns what the files of a folder say.

  Without a list of modules, sentence-transformers pools the states of a causal language model by
  taking the last, and those of other models by the mean.

  Raises:
    InputError: a file is damaged, or this library cannot express a setting; the message names it.
  """
  has_modules = (folder / MODULES_FILE).is_file()
  listed = list_modules(folder) if has_modules else [("Transformer", "")]
  kinds = [kind for kind, _ in listed]
  if has_modules and (kinds[:2] != ["Transformer", "Pooling"] or not {*kinds[2:]} <= {*_LAYERS}):
    raise errors.InputError(
      f"{folder / MODULES_FILE} lists {', '.join(kinds)}: this chain cannot be imported; only "
      f"Transformer, Pooling and any of {', '.join(_LAYERS)} can"
    )
  transformer = folder / listed[0][1]
  for name in _OTHERS:
    if (transformer / name).is_file():
      raise errors.InputError(f"{transformer / name}: a model with this file cannot be imported")
  config = hugging_face.read_object(transformer / hugging_face.CONFIG_FILE)
  pooling, pools_prompt = "mean", True
  if has_modules:
    pooling, pools_prompt = _pooling(folder / listed[1][1])
  else:
    _check_no_chat(folder)
    if _is_causal_lm(config):
      pooling = "last"
  # sentence-transformers reads the other files only if there is a list of modules.
  options_file, options = _options(transformer) if has_modules else (transformer, {})
  path = folder / PROMPTS_FILE
  record = hugging_face.read_object(path) if has_modules and path.is_file() else {}
  prefix, prompts = _prompts(path, record, config)
  similarity = record.get("similarity_fn_name") or encoder_json.SIMILARITIES[0]
  errors.check_choice(f"{path}: 'similarity_fn_name'", similarity, encoder_json.SIMILARITIES)
  return Released(
    transformer=transformer,
    config=config,
    tokenizer=transformers_tokenizers.build(
      transformer, config, lowercase=bool(options.get("do_lower_case"))
    ),
    max_length=max_length(transformer, options_file, options),
    pooling=pooling,
    layers=tuple((name, _LAYERS[kind](_config(folder / name))) for kind, name in listed[2:]),
    prefix=prefix,
    prompts=prompts,
    pools_prompt=pools_prompt,
    similarity_fn_name=similarity,
  )


def _is_causal_lm(config: Mapping[str, Any]) -> bool:
  names = config.get("architectures")
  first = str(names[0]) if isinstance(names, list) and names else ""
  return first.endswith("ForCausalLM") and config.get("is_causal", True) is not False


def _check_no_chat(folder: pathlib.Path) -> None:
  """Raises InputError if sentence-transformers would put texts into a chat template."""
  files = sorted(folder.glob(f"{_CHAT}*.jinja"))
  if _CHAT in transformers_tokenizers.read_settings(folder):
    files.append(folder / transformers_tokenizers.SETTINGS_FILE)
  if files:
    raise errors.InputError(
      f"{files[0]}: a model with a chat template needs a {MODULES_FILE} to be imported"
    )


def config_path(folder: pathlib.Path) -> pathlib.Path:
  """Returns the path of the encoder's `config.json`, which may be missing.

  Raises:
    InputError: the list of modules is damaged.
  """
  listed = list_modules(folder) if (folder / MODULES_FILE).is_file() else []
  return folder / dict(listed).get("Transformer", "") / hugging_face.CONFIG_FILE


def check_layers(folder: pathlib.Path) -> None:
  """Raises InputError if a config claims more layers than any model has: making them never ends."""

  def check(pairs: list[tuple[str, Any]]) -> None:
    for key, value in pairs:
      repeats = re.search(r"layer|num_\w*(group|block)|depth", key) and type(value) is int
      valid = not repeats or value <= errors.MOST_LAYERS
      errors.check(valid, f"{path}: {key!r}", value, f"{errors.MOST_LAYERS} or less")

  for path in folder.rglob("*config.json"):
    json.loads(json.dumps(input_files.read_json(path)), object_pairs_hook=check)


def list_modules(folder: pathlib.Path) -> list[tuple[str, str]]:
  """Returns the class and the folder's name of each module, in order.

  Raises:
    InputError: the list is missing or damaged, or a name leads out of the folder.
  """
  path = folder / MODULES_FILE
  try:
    listed = [(str(m["type"]), str(m["path"])) for m in input_files.read_json(path)]
  except (KeyError, TypeError):
    raise errors.InputError(f"{path} is not a list of modules with 'type' and 'path'") from None
  for index, (kind, name) in enumerate(listed):
    if not kind.startswith("sentence_transformers."):
      raise errors.InputError(f"{path}: {kind} is custom code, which vmsst does not run")
    # The classes keep their names, but their packages differ between versions.
    kind = kind.rsplit(".", 1)[-1]
    listed[index] = kind, name
    is_plain = name != ".." and pathlib.PurePath(name).name == name
    if not is_plain or len(name) > 99 or set(name) & {"\\", "\0"}:
      raise errors.InputError(
        f"{path}: the path of {kind} is {name!r}, not the name of a folder next to this file"
      )
  return listed


def _options(folder: pathlib.Path) -> tuple[pathlib.Path, dict[str, Any]]:
  """Returns the file of the encoder's options, and these, which must be known."""
  for path in (folder / name for name in _OPTIONS_FILES):
    options = hugging_face.read_object(path) if path.is_file() else {}
    for key, value in options.items():
      if key not in _READ_OPTIONS and value not in (None, {}, _OPTIONS.get(key)):
        raise errors.InputError(
          f"{path}: {key!r} is {input_files.shown(value)}, which cannot be imported; remove it if "
          "it changes no vectors"
        )
    if options:
      return path, options
  return folder, {}


def max_length(folder: pathlib.Path, path: pathlib.Path, options: Mapping[str, Any]) -> int | None:
  """Returns the limit in the encoder's options or, without one, that of its tokenizer.

  Args:
    folder: Folder of the encoder and its tokenizer.
    path: File of the options.
    options: Its content.

  Raises:
    InputError: the limit is not a positive number.
  """
  key, value = "max_seq_length", options.get("max_seq_length")
  if value is None:
    path = folder / transformers_tokenizers.SETTINGS_FILE
    settings = transformers_tokenizers.read_settings(folder)
    key = "model_max_length" if "model_max_length" in settings else "max_len"
    value = settings.get(key)
  if value is None:
    return None
  # "No limit" is a huge number, possibly a float that has lost its last digits.
  if isinstance(value, bool) or not isinstance(value, (int, float)) or not value >= 1:
    raise errors.InputError(f"{path}: {key!r} is {value!r}, not a positive integer")
  return int(min(value, 1 << 31))


def _prompts(
  path: pathlib.Path, record: Mapping[str, Any], config: Mapping[str, Any]
) -> tuple[str, dict[str, str]]:
  """Returns the prompt before each sentence, and the prompts by name."""
  kind = "SentenceTransformer"
  hugging_face.check_choice(path, record, "model_type", kind, (kind,))
  hugging_face.check_choice(path, record, "truncate_dim", None, (None,))
  # A cache of Hugging Face has the name two levels up.
  cache = [part.name for part in path.parent.parents if part.name.startswith("models--")]
  names = (path.parent.name, str(config.get("_name_or_path", "")), *cache)
  words = [re.split(r"[-_/]", called.lower()) for called in names]
  is_e5 = any("e5" in x and "instruct" not in x for x in words)
  if is_e5 and not record.keys() & {"prompts", "default_prompt_name"}:
    # Its files do not mention its prompts.
    return _E5["query"], _E5 | {"document": _E5["passage"]}
  given, name = record.get("prompts") or {}, record.get("default_prompt_name")
  if not isinstance(given, dict) or not all(isinstance(x, str | None) for x in given.values()):
    raise errors.InputError(f"{path}: 'prompts' is {given!r}, not strings by name")
  prompts = {"query": "", "document": ""} | {key: text or "" for key, text in given.items()}
  if name is not None and name not in list(prompts):
    raise errors.InputError(f"{path}: 'default_prompt_name' is {name!r}, but no prompt has it")
  prefix = "" if name is None else prompts[name]
  # sentence-transformers saves an empty "document" with every model.
  documents = (prompts[key] for key in _DOCUMENT if prompts.get(key))
  prompts["document"] = next(documents, "")
  return prefix, prompts if any(prompts.values()) else {}


def _pooling(folder: pathlib.Path) -> tuple[str, bool]:
  """Returns the way of pooling, which has a name or a flag, and whether prompts are pooled."""
  config = hugging_face.read_object(folder / hugging_face.CONFIG_FILE)
  mode = config.get("pooling_mode")
  if mode is None:
    mode = [name for name, flag in POOLING_FLAGS.items() if config.get(flag)] or "mean"
  names = mode if isinstance(mode, list) else [mode]
  if not names or any(name not in list(POOLING_FLAGS) for name in names):
    raise errors.InputError(
      f"{folder}: the pooling is {mode!r}; only {', '.join(POOLING_FLAGS)} can be imported"
    )
  pooling = "+".join(names).replace("lasttoken", "last")
  return pooling, bool(config.get("include_prompt", True))


def _config(folder: pathlib.Path) -> architectures.ConfigFile:
  """Returns the config of a module, if it has one, which must replace the pooled vector."""
  path = folder / hugging_face.CONFIG_FILE
  file = architectures.ConfigFile(path, hugging_face.read_object(path) if path.is_file() else {})
  for key in ("module_input_name", "module_output_name"):
    hugging_face.check_choice(path, file.record, key, _VECTOR, (_VECTOR, None))
  return file


def _dense(file: architectures.ConfigFile) -> sentence_encoder.Dense:
  file.require("use_residual", False)
  hugging_face.check_choice(file.path, file.record, "bias", True, (True, False))
  activation = str(file.record.get("activation_function", "torch.nn.Tanh"))
  package, _, name = activation.rpartition(".")
  if not package.startswith("torch.nn") or name not in sentence_encoder.ACTIVATIONS:
    raise errors.InputError(
      f"{file.path}: 'activation_function' is {activation!r}; only these of torch.nn can be "
      f"imported: {', '.join(sentence_encoder.ACTIVATIONS)}"
    )
  return sentence_encoder.Dense(
    file.integer("out_features"), name, bias=file.record.get("bias", True)
  )


# What makes the layers of modules from their configs.
_LAYERS: dict[str, Callable[[architectures.ConfigFile], sentence_encoder.Layer]] = {
  "Dense": _dense,
  "LayerNorm": lambda _: sentence_encoder.LayerNorm(),
  "Dropout": lambda file: sentence_encoder.Dropout(file.record.get("dropout", 0.2)),
  "Normalize": lambda _: sentence_encoder.Normalize(),
}
