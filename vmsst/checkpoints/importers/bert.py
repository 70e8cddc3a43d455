"""Parameters of BERT and XLM-R encoders: mBERT, LaBSE, XLM-R, multilingual E5.

They become those of a `TokenEmbedder`, a `BertEncoder` and, where there is one, a `ClsPooler`
(`vmsst.networks.bert`), under the names `token_embedder`, `encoder` and `pooler`. Beside them comes
what `vmsst.load` needs: how token states become a sentence vector, and the tokenizer.

Padding is id 0 in this library. Where the tokenizer pads with another id (1 in XLM-R and all E5)
the two rows of the token table are swapped, and so are the ids of texts: `HuggingFaceVocabulary`
swaps them, and `swap_padding` those that come from elsewhere.
"""

import dataclasses
import os
import pathlib
import re
import shutil
from typing import Any

import numpy as np

from vmsst import errors
from vmsst.checkpoints import encoder_json, hugging_face, imports, t5x, tensors
from vmsst.files import atomic_files, input_files
from vmsst.text import hugging_face_vocabulary

MODULES_FILE = "modules.json"
PROMPTS_FILE = "config_sentence_transformers.json"
# Both may say how many tokens a sentence may have.
LENGTH_FILES = {
  "sentence_bert_config.json": "max_seq_length",
  "tokenizer_config.json": "model_max_length",
}
TOKENIZER_FILE = hugging_face_vocabulary.TOKENIZER_FILE
XLMR_FILE = "sentencepiece.bpe.model"
VOCABULARY_FILES = (TOKENIZER_FILE, XLMR_FILE, "vocab.txt")
POOLINGS = ("mean", "cls", "pooler")
# What sentence-transformers calls a pooled vector on its way through the modules.
_VECTOR = "sentence_embedding"

_TABLE = "token_embedder/embedding"
ACTIVATIONS = {"gelu": "gelu", "relu": "relu", "silu": "swish", "swish": "swish"}
# Models with a head keep the encoder under a name of its own.
_PREFIXES = ("", "bert.", "roberta.")
# Names of a norm's arrays in checkpoints that came from TensorFlow.
_OLD_NAMES = {"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"}
_LEFT_OUT = {
  "cls.": "head of pre-training",
  "lm_head.": "head of pre-training",
  "embeddings.position_ids": "no parameter: 0, 1, 2 and so on",
}
_PLACES = {
  "attention/query": "attention.self.query",
  "attention/key": "attention.self.key",
  "attention/value": "attention.self.value",
  "attention/out": "attention.output.dense",
  "post_attention_layer_norm": "attention.output.LayerNorm",
  "mlp/wi": "intermediate.dense",
  "mlp/wo": "output.dense",
  "post_mlp_layer_norm": "output.LayerNorm",
}


@dataclasses.dataclass(frozen=True)
class Sizes:
  """Sizes of the encoder, under the names of BertConfig and with its meanings."""

  vocab_size: int
  emb_dim: int
  num_heads: int
  mlp_dim: int
  num_layers: int
  max_positions: int
  position_offset: int
  num_token_types: int
  activation: str
  layer_norm_eps: float


@dataclasses.dataclass(frozen=True)
class Imported:
  """What an import has done.

  Attributes:
    checkpoint: The checkpoint written.
    vocabulary: Files of the tokenizer copied beside it.
    sizes: Sizes of the encoder.
    padding_id: The tokenizer's id of padding, which has changed places with id 0.
    has_pooler: Whether there is a `pooler`.
    pooling: How token states become a sentence vector: "mean", "cls" or "pooler".
    normalize: Whether sentence vectors are scaled to length 1.
    prefix: What is put before every text.
    max_length: Tokens of a sentence, marks included; longer ones are cut.
    tokenizer: Whether there is a `tokenizer.json`, so that `vmsst.load` opens the output.
    rows: Every tensor of the source.
  """

  checkpoint: pathlib.Path
  vocabulary: tuple[pathlib.Path, ...]
  sizes: Sizes
  padding_id: int
  has_pooler: bool
  pooling: str
  normalize: bool
  prefix: str
  max_length: int
  tokenizer: bool
  rows: tuple[imports.Row, ...]


@dataclasses.dataclass(frozen=True)
class _Chain:
  """What sentence-transformers applies one after the other.

  Attributes:
    transformer: The folder of the encoder.
    pooling: How token states become a sentence vector, the dense module included.
    dense: Name of the folder of a dense module, or None.
    normalize: Whether vectors are scaled to length 1.
    keeps_prompt: Whether the tokens of a prompt are pooled too.
  """

  transformer: pathlib.Path
  pooling: str = "mean"
  dense: str | None = None
  normalize: bool = False
  keeps_prompt: bool = True


def swap_padding(ids: np.ndarray, padding_id: int) -> np.ndarray:
  """Ids of the tokenizer as ids of the imported table, or back: 0 and `padding_id` swapped."""
  return np.where(ids == 0, padding_id, np.where(ids == padding_id, 0, ids)).astype(ids.dtype)


def import_bert(
  folder: str | os.PathLike[str],
  output: str | os.PathLike[str],
  *,
  prefix: str | None = None,
  pooling: str | None = None,
) -> Imported:
  """Writes an encoder as a folder that `vmsst.load` opens and that training runs start from.

  Args:
    folder: A Hugging Face folder: `config.json` and safetensors, of the encoder alone or with the
      head of its pre-training. In a folder of sentence-transformers the dense module behind a
      [CLS] pooling, as LaBSE has one, becomes the pooler in place of the encoder's own.
    output: Folder to make. It gets `checkpoint_0` and the tokenizer's files and, where there is a
      `tokenizer.json` or one can be made of XLM-R's SentencePiece model, `encoder.json`.
    prefix: What is put before every text. None: the folder's default prompt; where it has none,
      "query: " for a folder that its name or its config calls an E5, and nothing for others.
    pooling: How token states become a sentence vector: "mean" of all, "cls" for the first, "pooler"
      for the tanh layer on top of it. None: what sentence-transformers' files say, "mean" where
      there are none.

  Raises:
    InputError: the source cannot be used, or `output` exists; nothing has been written then.
  """
  folder, target = pathlib.Path(os.path.abspath(folder)), imports.free_folder(output)
  if not folder.is_dir():
    raise errors.InputError(f"no folder {folder}")
  chain = _chain(folder)
  source = chain.transformer
  path, config = source / hugging_face.CONFIG_FILE, hugging_face.read_config(source)
  sizes, padding_id = _sizes(path, config), _padding_id(source, config)
  if padding_id >= sizes.vocab_size:
    raise errors.InputError(
      f"{source}: padding is id {padding_id}, outside the table of {sizes.vocab_size} rows"
    )
  if prefix is None:
    prefix = _default_prefix(folder, config)
  if prefix and not chain.keeps_prompt:
    raise errors.InputError(
      f"{folder} leaves the tokens of a prompt out of the mean, which is not done here: give an "
      "empty prefix"
    )
  stored = hugging_face.open_tensors(source)
  if chain.dense is not None:
    opened = hugging_face.open_tensors(folder / chain.dense)
    stored |= {f"{chain.dense}/{name}": tensor for name, tensor in opened.items()}
  rows = _rows(source, stored, sizes, chain.dense)
  has_pooler = any(name.startswith("pooler/") for row in rows for name in row.targets)
  pooling = chain.pooling if pooling is None else pooling
  if pooling not in POOLINGS:
    raise errors.InputError(f"pooling is {pooling!r}; known: {', '.join(POOLINGS)}")
  if pooling == "pooler" and not has_pooler:
    raise errors.InputError(f"pooling is 'pooler', but {folder} has none")
  max_length = _max_length(source, sizes)
  with atomic_files.atomic_folder(target) as partial:
    params = {}
    for row in rows:
      for name in row.targets:
        array = stored[row.source].read()
        params[name] = np.ascontiguousarray(array.T) if name.endswith("/kernel") else array
    params[_TABLE][[0, padding_id]] = params[_TABLE][[padding_id, 0]]
    t5x.write_params(t5x.epath.Path(partial / imports.CHECKPOINT), params)
    vocabulary = [name for name in VOCABULARY_FILES if (source / name).is_file()]
    for name in vocabulary:
      shutil.copyfile(source / name, partial / name)
    if TOKENIZER_FILE not in vocabulary and XLMR_FILE in vocabulary:
      made = hugging_face_vocabulary.tokenizer_of_xlmr(source / XLMR_FILE)
      (partial / TOKENIZER_FILE).write_bytes(made)
      vocabulary.append(TOKENIZER_FILE)
    if TOKENIZER_FILE in vocabulary:
      encoder_json.save_imported_encoder(
        partial,
        network={
          "class": "SentenceEncoder",
          "config_class": "BertConfig",
          "config": dataclasses.asdict(sizes),
          "latent_dim": sizes.emb_dim,
          "head": False,
          "pooling": pooling,
          "normalize": chain.normalize,
        },
        vocabulary=hugging_face_vocabulary.HuggingFaceVocabulary(
          str(partial / TOKENIZER_FILE), prefix
        ),
        max_length=max_length,
      )
  return Imported(
    checkpoint=target / imports.CHECKPOINT,
    vocabulary=tuple(target / name for name in vocabulary),
    sizes=sizes,
    padding_id=padding_id,
    has_pooler=has_pooler,
    pooling=pooling,
    normalize=chain.normalize,
    prefix=prefix,
    max_length=max_length,
    tokenizer=TOKENIZER_FILE in vocabulary,
    rows=tuple(rows),
  )


def describe(imported: Imported) -> str:
  """A table of every tensor and what became of it, totals, sizes, and how to use the output."""
  lines = imports.describe_rows(imported.rows)
  for kind, rows in (
    ("became parameters", [row for row in imported.rows if row.targets]),
    ("were left out", [row for row in imported.rows if not row.targets]),
  ):
    lines.append(f"{len(rows)} tensors ({sum(row.size for row in rows):,} numbers) {kind}")
  if imported.padding_id:
    lines.append(
      f"The tokenizer pads with id {imported.padding_id}; here padding is 0: these two rows of the "
      "token table are swapped, and so are the ids of texts"
    )
  sizes = ", ".join(f"{key}={value!r}" for key, value in dataclasses.asdict(imported.sizes).items())
  lines.append(f"Sizes: {sizes}")
  if imported.tokenizer:
    lines += [
      f"Sentence vectors: pooling {imported.pooling!r}, normalize {imported.normalize}, prefix "
      f"{imported.prefix!r}, at most {imported.max_length} tokens",
      f"vmsst.load({str(imported.checkpoint.parent)!r}) opens them",
      f"VOCABULARY_PATH = {str(imported.checkpoint.with_name(TOKENIZER_FILE))!r}",
    ]
  else:
    lines.append(
      f"There is no {TOKENIZER_FILE} in it: training can start from the checkpoint with a "
      "vocabulary of the same ids, but vmsst.load cannot open it"
    )
  return "\n".join([*lines, f"INITIAL_CHECKPOINT_PATH = {str(imported.checkpoint)!r}"])


def hugging_face_names(sizes: Sizes, *, pooler: bool) -> dict[str, str]:
  """Name in transformers of every parameter, by ours."""
  matrices = {"position_embedding": "position_embeddings"}
  if sizes.num_token_types:
    matrices["token_type_embedding"] = "token_type_embeddings"
  modules = {"encoder/embedding_layer_norm": "embeddings.LayerNorm"}
  for layer in range(sizes.num_layers):
    for ours, theirs in _PLACES.items():
      modules[f"encoder/layers_{layer}/{ours}"] = f"encoder.layer.{layer}.{theirs}"
  if pooler:
    modules["pooler/dense"] = "pooler.dense"
  names = {_TABLE: "embeddings.word_embeddings.weight"}
  names |= {f"encoder/{ours}": f"embeddings.{theirs}.weight" for ours, theirs in matrices.items()}
  for ours, theirs in modules.items():
    names[f"{ours}/{'scale' if ours.endswith('norm') else 'kernel'}"] = f"{theirs}.weight"
    names[f"{ours}/bias"] = f"{theirs}.bias"
  return names


def _shape(name: str, sizes: Sizes) -> tuple[int, ...]:
  """Shape in transformers of a parameter of ours."""
  tables = {
    _TABLE: sizes.vocab_size,
    "encoder/position_embedding": sizes.max_positions,
    "encoder/token_type_embedding": sizes.num_token_types,
  }
  if name in tables:
    return (tables[name], sizes.emb_dim)
  outputs = sizes.mlp_dim if "/wi/" in name else sizes.emb_dim
  if not name.endswith("/kernel"):
    return (outputs,)
  return (outputs, sizes.mlp_dim if "/wo/" in name else sizes.emb_dim)


def _rows(
  folder: pathlib.Path,
  stored: dict[str, tensors.StoredTensor],
  sizes: Sizes,
  dense: str | None,
) -> list[imports.Row]:
  """What becomes of every tensor: the parameters in our order, then what is left out."""
  word_table = "embeddings.word_embeddings.weight"
  prefix = next((prefix for prefix in _PREFIXES if prefix + word_table in stored), None)
  if prefix is None:
    raise errors.InputError(f"{folder} lacks {word_table}: it is no BERT or XLM-R")
  source_of: dict[str, str] = {}
  left_out = []
  for source in sorted(stored):
    name = source.removeprefix(prefix)
    note = next((note for start, note in _LEFT_OUT.items() if name.startswith(start)), None)
    if dense is not None and name.startswith("pooler."):
      note = f"{dense} stands in its place"
    if note is not None:
      left_out.append(imports.Row(source, stored[source].shape, note=note))
      continue
    for old, new in _OLD_NAMES.items():
      name = name.replace(old, new)
    name = name.replace(f"{dense}/linear.", "pooler.dense.")
    if name in source_of:
      raise errors.InputError(f"{folder} holds {name} twice, as {source_of[name]} and {source}")
    source_of[name] = source
  tensors.check_layers(sizes.num_layers, stored, str(folder))
  names = hugging_face_names(sizes, pooler="pooler.dense.weight" in source_of)
  tensors.check_names_and_shapes(
    {name: stored[source] for name, source in source_of.items()},
    {theirs: _shape(ours, sizes) for ours, theirs in names.items()},
    str(folder),
  )
  return [
    imports.Row(source_of[theirs], stored[source_of[theirs]].shape, (ours,))
    for ours, theirs in names.items()
  ] + left_out


def _sizes(path: pathlib.Path, config: dict[str, Any]) -> Sizes:
  def number(key: str) -> int:
    return hugging_face.positive_integer(path, config, key)

  choices: tuple[tuple[str, Any, tuple[Any, ...]], ...] = (
    ("model_type", None, ("bert", "xlm-roberta")),
    ("hidden_act", "gelu", tuple(ACTIVATIONS)),
    ("position_embedding_type", "absolute", ("absolute",)),
    ("is_decoder", False, (False,)),
  )
  for key, default, known in choices:
    hugging_face.check_choice(path, config, key, default, known)
  epsilon = config.get("layer_norm_eps", 1e-12)
  if isinstance(epsilon, bool) or not isinstance(epsilon, (int, float)) or not 0 < epsilon < 1:
    raise errors.InputError(f"{path}: 'layer_norm_eps' is {epsilon!r}, not between 0 and 1")
  if number("hidden_size") % number("num_attention_heads"):
    raise errors.InputError(f"{path}: 'hidden_size' is no multiple of 'num_attention_heads'")
  # XLM-R counts positions from the row behind that of padding.
  offset = _config_padding_id(path, config) + 1 if config["model_type"] == "xlm-roberta" else 0
  if offset >= number("max_position_embeddings"):
    raise errors.InputError(
      f"{path}: 'max_position_embeddings' leaves no rows behind that of padding"
    )
  return Sizes(
    vocab_size=number("vocab_size"),
    emb_dim=number("hidden_size"),
    num_heads=number("num_attention_heads"),
    mlp_dim=number("intermediate_size"),
    num_layers=number("num_hidden_layers"),
    max_positions=number("max_position_embeddings"),
    position_offset=offset,
    num_token_types=number("type_vocab_size"),
    activation=ACTIVATIONS[config.get("hidden_act", "gelu")],
    layer_norm_eps=float(epsilon),
  )


def _config_padding_id(path: pathlib.Path, config: dict[str, Any]) -> int:
  default = 1 if config["model_type"] == "xlm-roberta" else 0
  value = config.get("pad_token_id", default)
  if isinstance(value, bool) or not isinstance(value, int) or value < 0:
    raise errors.InputError(f"{path}: 'pad_token_id' is {value!r}, not an id")
  return value


def _padding_id(folder: pathlib.Path, config: dict[str, Any]) -> int:
  """The id that the tokenizer pads with: small E5 are BERTs, id 0, with the tokenizer of XLM-R."""
  path = folder / TOKENIZER_FILE
  if path.is_file():
    return hugging_face_vocabulary.padding_id(str(path), input_files.read_json(path))
  if (folder / XLMR_FILE).is_file() or str(config.get("tokenizer_class")).startswith("XLMRoberta"):
    return 1
  return _config_padding_id(folder / hugging_face.CONFIG_FILE, config)


def _max_length(folder: pathlib.Path, sizes: Sizes) -> int:
  """Tokens that a sentence may have, by the position table and what the files say."""
  limits = [sizes.max_positions - sizes.position_offset]
  for name, key in LENGTH_FILES.items():
    path = folder / name
    record = hugging_face.read_object(path) if path.is_file() else {}
    value = record.get(key)
    if value is None:
      continue
    # No limit is written as a huge number, which may have lost its last digits as a float.
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not value >= 1:
      raise errors.InputError(f"{path}: {key!r} is {value!r}, not a positive integer")
    limits.append(int(min(value, limits[0])))
  return min(limits)


def _default_prefix(folder: pathlib.Path, config: dict[str, Any]) -> str:
  """What the model puts before a text if it is not told what to put there."""
  path = folder / PROMPTS_FILE
  record = hugging_face.read_object(path) if path.is_file() else {}
  name, prompts = record.get("default_prompt_name"), record.get("prompts")
  if name is not None:
    prompt = prompts.get(name) if isinstance(prompts, dict) and isinstance(name, str) else None
    if not isinstance(prompt, str):
      raise errors.InputError(
        f"{path}: there is no prompt {name!r}, which 'default_prompt_name' is"
      )
    return prompt
  # No file of E5 says that its texts need one. A cache of Hugging Face has the name two levels up.
  cache = [part.name for part in folder.parents if part.name.startswith("models--")]
  for called in (folder.name, str(config.get("_name_or_path", "")), *cache):
    words = re.split(r"[-_/]", called.lower())
    if "e5" in words and "instruct" not in words:
      return "query: "
  return ""


def _chain(folder: pathlib.Path) -> _Chain:
  """What the files of sentence-transformers say; a folder without them is pooled by the mean."""
  path = folder / MODULES_FILE
  if not path.is_file():
    return _Chain(folder)
  try:
    # Their packages have moved from version to version; the names of the classes have not.
    modules = [
      (str(m["type"]).rsplit(".", 1)[-1], str(m["path"])) for m in input_files.read_json(path)
    ]
  except (KeyError, TypeError):
    raise errors.InputError(f"{path} is no list of modules with 'type' and 'path'") from None
  kinds = [kind for kind, _ in modules]
  if kinds not in (
    ["Transformer", "Pooling", *dense, *end]
    for dense in ([], ["Dense"])
    for end in ([], ["Normalize"])
  ):
    raise errors.InputError(f"{path} lists {', '.join(kinds)}: such a chain cannot be imported")
  for kind, name in modules:
    is_root = kind == "Transformer" and not name
    is_plain = name not in ("", "..") and pathlib.PurePath(name).name == name
    if not is_root and (not is_plain or set(name) & {"\\", "\0"}):
      raise errors.InputError(f"{path}: the path of {kind} is {name!r}, not that of a folder in it")
  paths = dict(modules)
  config = hugging_face.read_config(folder / paths["Pooling"])
  pooling = _pooling(folder / paths["Pooling"], config)
  if "Dense" in paths:
    if pooling != "cls":
      raise errors.InputError(
        f"{folder / paths['Pooling']}: a dense module behind another pooling than 'cls' cannot be "
        "imported"
      )
    pooling = "pooler"
    dense = hugging_face.read_config(folder / paths["Dense"])
    activation = dense.get("activation_function")
    hugging_face.check_choice(
      folder / paths["Dense"], dense, "module_input_name", _VECTOR, (_VECTOR,)
    )
    if str(activation).rsplit(".", 1)[-1] != "Tanh":
      raise errors.InputError(
        f"{folder / paths['Dense']}: 'activation_function' is {activation!r}; only Tanh can be "
        "imported"
      )
  return _Chain(
    transformer=folder / paths["Transformer"],
    pooling=pooling,
    dense=paths.get("Dense"),
    normalize="Normalize" in paths,
    keeps_prompt=config.get("include_prompt") is not False,
  )


def _pooling(folder: pathlib.Path, config: dict[str, Any]) -> str:
  """The one way of pooling that a module's config asks for: by name, or by a flag for each."""
  found = config.get("pooling_mode")
  if found is None:
    flags = {"pooling_mode_cls_token": "cls", "pooling_mode_mean_tokens": "mean"}
    found = [
      flags.get(key, key)
      for key, value in config.items()
      if key.startswith("pooling_mode_") and value
    ]
  names = [found] if isinstance(found, str) else found
  if names not in (["mean"], ["cls"]):
    raise errors.InputError(
      f"{folder}: the pooling is {found!r}; only 'mean' or 'cls' can be imported"
    )
  return str(names[0])
