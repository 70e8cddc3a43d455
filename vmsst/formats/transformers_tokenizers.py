"""Builds the tokenizer with which transformers opens a folder, to be one `tokenizer.json`.

transformers rebuilds the tokenizers of most models: it keeps the vocabulary of `tokenizer.json` and
takes everything else from `tokenizer_config.json` and its own defaults. Added tokens come from up
to four files. What one `tokenizer.json` cannot express is refused. So is a `tokenizer.json` of
RoBERTa, Qwen or Gemma that is not what transformers would make.
"""

import base64
import pathlib
from collections.abc import Mapping
from typing import Any

import msgspec
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

from vmsst import errors
from vmsst.formats import hugging_face, hugging_face_vocabulary
from vmsst.io import input_files

TOKENIZER_FILE = hugging_face_vocabulary.TOKENIZER_FILE
SETTINGS_FILE = "tokenizer_config.json"
_SPECIAL_FILE = "special_tokens_map.json"
_ADDED_FILE = "added_tokens.json"

_BERT, _XLMR, _PLAIN = "BertTokenizer", "XLMRobertaTokenizer", "PreTrainedTokenizer"
_MPNET, _ROBERTA = "MPNetTokenizer", "RobertaTokenizer"
_QWEN, _GEMMA, _T5 = "Qwen2Tokenizer", "GemmaTokenizer", "T5Tokenizer"
# Classes of transformers, without "Fast". The last two keep `tokenizer.json` as it is.
_CLASSES = (_BERT, _XLMR, _MPNET, _ROBERTA, _QWEN, _GEMMA, _T5, _PLAIN, "TokenizersBackend")
_RENAMED = {"DistilBertTokenizer": _BERT}
_CLASS_OF = {"bert": _BERT, "distilbert": _BERT, "xlm-roberta": _XLMR, "roberta": _ROBERTA,
             "mpnet": _MPNET, "modernbert": _PLAIN, "qwen3": _QWEN, "gemma3_text": _GEMMA,
             "t5": _T5, "mt5": _T5}  # fmt: skip
# Padding before a text changes no vectors if positions are relative.
_RELATIVE = ("modernbert", "qwen3", "gemma3_text", "t5", "mt5")
_NAMES = [f"{name}_token" for name in ("bos", "eos", "unk", "sep", "pad", "cls", "mask")]
# The default of each special token.
_DEFAULTS = {
  _BERT: (None, None, "[UNK]", "[SEP]", "[PAD]", "[CLS]", "[MASK]"),
  _XLMR: ("<s>", "</s>", "<unk>", "</s>", "<pad>", "<s>", "<mask>"),
  _ROBERTA: ("<s>", "</s>", "<unk>", "</s>", "<pad>", "<s>", "<mask>"),
  _MPNET: ("<s>", "</s>", "[UNK]", "</s>", "<pad>", "<s>", "<mask>"),
  _T5: (None, "</s>", "<unk>", None, "<pad>", None, None),
}
# The id of the unknown token in the classes with Unigram.
_UNKNOWN_IDS = {_XLMR: 3, _T5: 2}
# The start of the names of the tokens that T5 marks left-out text with, and their number.
_EXTRA, _NUM_EXTRA = "extra_id_", 100
# The special tokens around a text, where they do not come from `tokenizer.json`.
_ENDS: dict[str, tuple[str, ...]] = {
  _XLMR: ("bos_token", "eos_token"),
  _T5: ("eos_token",),
  **dict.fromkeys((_BERT, _MPNET, _ROBERTA), ("cls_token", "sep_token")),
}
_QWEN_WORDS = (
  r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
  r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# Options of byte pair encoding, which transformers sets by the class.
_FALLBACKS = ("fuse_unk", "byte_fallback")
_OPTIONS = (*_FALLBACKS, "ignore_merges", "continuing_subword_prefix", "end_of_word_suffix")
# Normalizer and pre-tokenizer of the classes with byte pair encoding.
_STEPS: dict[str, tuple[Any, Any]] = {
  _ROBERTA: (None, pre_tokenizers.ByteLevel(add_prefix_space=False)),
  _QWEN: (
    normalizers.NFC(),
    pre_tokenizers.Sequence([
      pre_tokenizers.Split(tokenizers.Regex(_QWEN_WORDS), "isolated"),
      pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ]),
  ),
  _GEMMA: (
    normalizers.Replace(" ", "\u2581"),
    pre_tokenizers.Split(" ", "merged_with_previous"),
  ),
}  # fmt: skip
# Settings that replace parts of the tokenizer. Files of released encoders have none of them.
_UNKNOWN = (
  "_spm_precompiled_charsmap", "auto_map", "fast_tokenizer_files", "gguf_file",
  "init_inputs", "merges", "model_specific_special_tokens", "post_processor", "processor_class",
  "tokenizer_object", "tokenizer_padding", "tokenizer_truncation", "vocab",
)  # fmt: skip

_Record = Mapping[str, Any]
_Tokens = Mapping[str, tokenizers.AddedToken]
_Vocabulary = dict[str, int] | list[tuple[str, float]]


def read_settings(folder: pathlib.Path) -> dict[str, Any]:
  """Returns the content of `tokenizer_config.json`, if there is one.

  Raises:
    InputError: it is damaged.
  """
  return _read_if_present(folder / SETTINGS_FILE)


def build(folder: pathlib.Path, config: _Record, *, lowercase: bool) -> tokenizers.Tokenizer | None:
  """Returns the tokenizer that transformers makes from the files of a folder.

  Args:
    folder: Folder of a model.
    config: Content of its `config.json`.
    lowercase: Whether texts are lowercased first, as sentence-transformers can ask for.

  Returns:
    None if there is no `tokenizer.json`.

  Raises:
    InputError: a file is damaged, or this library cannot express a setting; the message names it.
  """
  path, settings = folder / TOKENIZER_FILE, read_settings(folder)
  if not path.is_file():
    return None
  with hugging_face_vocabulary.package_errors(path):
    kind = _class(folder, settings, config)
    record = hugging_face_vocabulary.outline(input_files.read_bytes(path))
    hugging_face_vocabulary.check(path, record)
    relative = config.get("model_type") in _RELATIVE
    check_settings(folder / SETTINGS_FILE, settings, record, any_padding=relative)
    if "added_tokens_decoder" not in settings:
      extra = settings.get("extra_special_tokens") or settings.get("additional_special_tokens")
      settings |= _read_if_present(folder / _SPECIAL_FILE)
      settings |= {"extra_special_tokens": extra} if extra else {}
    try:
      named = _special_tokens(settings, kind, record)
      added = _added_tokens(folder, settings, record, named)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
      raise errors.InputError(
        f"{folder / SETTINGS_FILE}: its special tokens or 'added_tokens_decoder', or those in "
        f"{_SPECIAL_FILE}, {_ADDED_FILE} or {TOKENIZER_FILE} are damaged: {error}"
      ) from None
    made = _pipeline(folder / SETTINGS_FILE, kind, settings, record, named)
    present = set(map(repr, made.get_added_tokens_decoder().values()))
    made.add_tokens([token for token in added if repr(token) not in present])
    # A special token may be outside the model's table; then no text may spell it there.
    room = config.get("vocab_size", 0) - made.get_vocab_size()
    taken = {token.content for token in made.get_added_tokens_decoder().values()}
    others = [
      token
      for name, token in named.items()
      if made.token_to_id(token.content) is not None
      or room >= (_NUM_EXTRA if name.startswith(_EXTRA) else int(name in _NAMES))
    ]
    made.add_tokens([token for token in others if token.content not in taken])
    if kind in _ENDS:
      around = [str(named[name]) for name in _ENDS[kind]]
      made.post_processor = processors.TemplateProcessing(
        [*around[:-1], "$A", around[-1]], special_tokens=[(x, made.token_to_id(x)) for x in around]
      )
    if lowercase:
      _lowercase(made)
    made.no_padding()
    made.no_truncation()
    if any(made.encode("a").type_ids):
      raise errors.InputError(f"{path}: 'post_processor' gives tokens types other than 0")
  return made


def _read_if_present(path: pathlib.Path) -> dict[str, Any]:
  return hugging_face.read_object(path) if path.is_file() else {}


def _class(folder: pathlib.Path, settings: _Record, config: _Record) -> str:
  """Returns the name of the class that transformers makes, without "Fast"."""
  if config.get("model_type") == "modernbert":
    return _PLAIN  # whatever the files name
  key = "tokenizer_class"
  for name, record in ((SETTINGS_FILE, settings), (hugging_face.CONFIG_FILE, config)):
    if record.get(key):
      kind = str(record[key]).removesuffix("Fast")
      kind = _RENAMED.get(kind, kind)
      hugging_face.check_choice(folder / name, {key: kind}, key, None, _CLASSES)
      return kind
  kinds = tuple(_CLASS_OF)
  hugging_face.check_choice(folder / hugging_face.CONFIG_FILE, config, "model_type", None, kinds)
  return _CLASS_OF[config["model_type"]]


def check_settings(
  path: pathlib.Path, settings: _Record, record: _Record, *, any_padding: bool = False
) -> None:
  """Raises InputError if a setting changes ids in a way that this library cannot express.

  Args:
    path: The `tokenizer_config.json`.
    settings: Its content.
    record: Content of `tokenizer.json`, or nothing.
    any_padding: Whether padding may be on the left.
  """
  for part, side in (("truncation", "truncation_side"), ("padding", "padding_side")):
    direction = (record.get(part) or {}).get("direction", "right")
    sides = ("right", "left") if any_padding and part == "padding" else ("right",)
    hugging_face.check_choice(path, settings, side, str(direction).lower(), sides)
  hugging_face.check_choice(path, settings, "split_special_tokens", False, (False,))
  for key in _UNKNOWN:
    hugging_face.check_choice(path, settings, key, None, (None, [], {}))
  if "attention_mask" not in settings.get("model_input_names", ["attention_mask"]):
    raise errors.InputError(
      f"{path}: 'model_input_names' lacks 'attention_mask', which is required"
    )


def _special_tokens(settings: _Record, kind: str, record: _Record) -> _Tokens:
  """Returns the special tokens by name, in the order in which transformers adds them."""
  tokens: dict[str, Any] = dict(zip(_NAMES, _DEFAULTS.get(kind, [None] * 7), strict=True))
  if record.get("padding"):
    tokens["pad_token"] = tokens["pad_token"] or record["padding"]["pad_token"]
  tokens |= {name: token for name, token in settings.items() if name.endswith("_token")}
  if kind == _T5:
    numbers = range(settings.get("extra_ids", _NUM_EXTRA))
    tokens |= {f"{_EXTRA}{i}": f"<{_EXTRA}{i}>" for i in numbers}
  extra = settings.get("extra_special_tokens") or settings.get("additional_special_tokens") or {}
  tokens |= extra if isinstance(extra, dict) else {f"extra {i}": x for i, x in enumerate(extra)}
  return {name: _token(x) for name, x in tokens.items() if isinstance(x, (str, dict))}


def _added_tokens(
  folder: pathlib.Path, settings: _Record, record: _Record, named: _Tokens
) -> list[tokenizers.AddedToken]:
  """Returns the tokens that files add, in the order of their ids there."""
  if "added_tokens_decoder" in settings:  # It replaces the other files.
    by_id = {int(i): _token(token) for i, token in settings["added_tokens_decoder"].items()}
  else:
    listed = settings.get("extra_special_tokens")
    given = {str(token) for name, token in named.items() if name in _NAMES and name in settings}
    special = given | {str(_token(x)) for x in (listed if isinstance(listed, list) else [])}
    added = _read_if_present(folder / _ADDED_FILE).items()
    by_id = {i: tokenizers.AddedToken(x, normalized=x not in special) for x, i in added}
    for token in record.get("added_tokens") or []:
      by_id[token["id"]] = _token({key: x for key, x in token.items() if key != "id"})
  return [by_id[index] for index in sorted(by_id)]


def _token(value: Any) -> tokenizers.AddedToken:
  """Returns a token of a file: a text, which is special, or an object with its attributes."""
  if isinstance(value, str):
    return tokenizers.AddedToken(value, special=True)
  return tokenizers.AddedToken(**{key: x for key, x in value.items() if key != "__type"})


def _pipeline(
  path: pathlib.Path, kind: str, settings: _Record, record: _Record, named: _Tokens
) -> tokenizers.Tokenizer:
  """Returns the tokenizer of a class, without added tokens and without special tokens around."""
  is_rebuilt = kind in _ENDS and kind not in _STEPS
  for name in (*(("unk_token",) if is_rebuilt else ()), *_ENDS.get(kind, ())):
    if name not in named:
      raise errors.InputError(f"{path}: {name!r} is null, but {kind} requires it")
  if not is_rebuilt:
    made = tokenizers.Tokenizer.from_str(msgspec.json.encode(record).decode())
    if kind in _STEPS:
      hugging_face.check_choice(path, settings, "add_prefix_space", False, (False, None))
      steps = (made.normalizer, made.pre_tokenizer)
      options = {key for key in _OPTIONS if record["model"].get(key)}
      same = list(map(_shown, steps)) == list(map(_shown, _STEPS[kind]))
      if not same or options != (set(_FALLBACKS) if kind == _GEMMA else set()):
        raise errors.InputError(
          f"{path}: the 'tokenizer_class' is {kind}, as it is by default, but {TOKENIZER_FILE} has "
          f"another 'normalizer', 'pre_tokenizer' or {' or '.join(map(repr, _OPTIONS))}"
        )
    return made

  def flag(key: str, default: Any = True) -> Any:
    hugging_face.check_choice(path, settings, key, default, (True, False, default))
    return settings.get(key, default)

  vocabulary: Any = msgspec.json.decode(record["model"]["vocab"], type=_Vocabulary)
  if isinstance(vocabulary, dict) == (kind in _UNKNOWN_IDS):
    raise errors.InputError(
      f"{path}: the 'tokenizer_class' is {kind}, as it is by default, but {TOKENIZER_FILE} has "
      "another kind of vocabulary"
    )
  if kind not in _UNKNOWN_IDS:
    made = tokenizers.Tokenizer(models.WordPiece(vocabulary, unk_token=str(named["unk_token"])))
    made.normalizer = normalizers.BertNormalizer(
      handle_chinese_chars=flag("tokenize_chinese_chars"),
      strip_accents=flag("strip_accents", None),
      lowercase=flag("do_lower_case"),
    )
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.decoder = decoders.WordPiece()
    return made
  made = tokenizers.Tokenizer(models.Unigram(vocabulary, _UNKNOWN_IDS[kind], False))
  for step in hugging_face_vocabulary.steps(record.get("normalizer")):
    if step["type"] == "Precompiled":
      charsmap = base64.b64decode(step["precompiled_charsmap"])
      made.normalizer = normalizers.Precompiled(charsmap)
      break
  scheme = "always" if kind == _T5 or flag("add_prefix_space") else "never"
  metaspace = pre_tokenizers.Metaspace(prepend_scheme=scheme)
  made.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), metaspace])
  made.decoder = decoders.Metaspace(prepend_scheme=scheme)
  return made


def _shown(step: Any) -> str:
  """Returns a step as text, without the option that changes no ids."""
  return repr(step).replace("trim_offsets=False", "trim_offsets=True")


def _lowercase(made: tokenizers.Tokenizer) -> None:
  """Puts a normalizer that lowercases first, unless there is one."""
  normalizer: Any = made.normalizer
  is_chain = isinstance(normalizer, normalizers.Sequence)
  steps = [] if normalizer is None else list(normalizer) if is_chain else [normalizer]
  if not any(isinstance(step, normalizers.Lowercase) for step in steps):
    made.normalizer = normalizers.Sequence([normalizers.Lowercase(), *steps])
