"""Reads and writes Hugging Face tokenizers (`tokenizer.json`).

* `HuggingFaceVocabulary` is the vocabulary of a `tokenizer.json`. It keeps the tokenizer's ids,
  except that padding always has id 0 in this library. If the tokenizer pads with a different id,
  the vocabulary swaps that id with 0, and imports swap the corresponding rows of the token table.
* `read` builds the tokenizer that transformers would build from a model folder. For most models,
  transformers takes only the vocabulary from `tokenizer.json`. All other settings come from
  `tokenizer_config.json` and from defaults, and added tokens come from up to four files. `read`
  raises an error if a single `tokenizer.json` cannot express the result.
* `export` writes a vocabulary of this library as a `tokenizer.json` with the same ids.
"""

import base64
import collections
import contextlib
import dataclasses
import functools
import importlib
import itertools
import json
import os
import pathlib
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any, NamedTuple, cast, get_args

import msgspec
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

from vmsst import arrays, errors
from vmsst.data import vocabularies
from vmsst.data.vocabularies import Role
from vmsst.data.word_splitting import Languages
from vmsst.formats import transformers
from vmsst.io import input_files, text_files
from vmsst.networks.static import StaticConfig

TOKENIZER_FILE = "tokenizer.json"
SETTINGS_FILE = "tokenizer_config.json"
_SPECIAL_FILE = "special_tokens_map.json"
_ADDED_FILE = "added_tokens.json"
_PADDING = ("<pad>", "[PAD]")
_TEMPLATE = "TemplateProcessing"
ROLES = {"query": ("query",), "document": ("document", "passage", "corpus")}
"""Prompt names for queries and documents, in order of preference."""
# Texts for testing whether the tokens of a prefix stay the same when different scripts or
# punctuation marks follow the prefix.
_PROBES = ("a", "Hello, world", "(1999)", "Привет", "你好", "مرحبا", "«mañana»")
# Bonus added to the log probability of a new word. The bonus exceeds rounding error, so the
# tokenizer prefers the word to its pieces.
_PREFERENCE = 1e-6
# Number of texts per batch when counting words.
_CHUNK = 10_000
# SentencePiece writes a space as this character.
_SPACE = "\u2581"

# --------------------------------------------------------------------------------------------
# Vocabularies


@dataclasses.dataclass(frozen=True)
class HuggingFaceVocabulary(vocabularies.Vocabulary):
  """The vocabulary of a Hugging Face tokenizer. The file is read on first use.

  `tokenize` includes the special tokens before a text, such as BERT's [CLS] or XLM-R's <s>. The
  special token after a text, such as [SEP] or </s>, is the EOS token. The file's truncation and
  padding settings have no effect, because this library truncates and pads the ids itself.

  Attributes:
    path: The `tokenizer.json`; remote paths such as `gs://` work too.
    prefix: String put before every text, such as E5's "query: ".
    prompts: Other prefixes by name, such as "document", for `Encoder.encode`.
    tokenizer: Tokenizer to use instead of the file. Imports set this attribute if other files in
      the folder change the tokenizer.
    skips_unknown: Whether unknown tokens are dropped, as in Model2Vec.
  """

  path: str
  prefix: str = ""
  prompts: Mapping[str, str] = dataclasses.field(default_factory=dict, compare=False)
  tokenizer: tokenizers.Tokenizer | None = dataclasses.field(
    default=None, compare=False, repr=False
  )
  skips_unknown: bool = False

  @property
  def size(self) -> int:
    """Number of ids, including padding."""
    return self._loaded.size

  @property
  def eos_id(self) -> int | None:
    """Id of the special token after a text, if any."""
    return self._loaded.eos_id

  @property
  def unk_id(self) -> int | None:
    """Id of the unknown token, if any."""
    return self._loaded.unk_id

  @property
  def special_ids(self) -> tuple[int, ...]:
    """Ids of the special tokens before and after a text, such as [CLS] and [SEP]."""
    loaded = self._loaded
    return (*loaded.start_ids, *(() if loaded.eos_id is None else (loaded.eos_id,)))

  @functools.cached_property
  def leading_ids(self) -> tuple[int, ...]:
    """Ids before every text: special tokens, then the tokens of the prefix.

    Raises:
      InputError: If the tokens of the prefix depend on the text.
    """
    start = len(self._loaded.start_ids)
    unprefixed = self.with_prefix("")._ids(_PROBES)
    prefixes: set[Any] = set()
    for ids, text_ids in zip(self._ids(_PROBES), unprefixed, strict=True):
      leading = len(ids) - len(text_ids) + start
      # None marks a text that is tokenized differently after the prefix.
      prefixes.add(tuple(ids[:leading]) if ids[leading:] == text_ids[start:] else None)
    if len(prefixes) > 1 or None in prefixes:
      raise errors.InputError(
        f"{self.path}: the tokens of the prefix {self.prefix!r} depend on the text after it; end "
        "it with a space"
      )
    (leading_ids,) = prefixes
    return cast(tuple[int, ...], leading_ids)

  def with_prefix(self, prefix: str) -> "HuggingFaceVocabulary":
    """Returns this vocabulary with a different prefix, without reading the file again."""
    vocabulary = dataclasses.replace(self, prefix=prefix)
    vocabulary.__dict__["_loaded"] = self._loaded
    return vocabulary

  @property
  def padding_id(self) -> int:
    """The tokenizer's padding id. This library swaps it with 0."""
    return self._loaded.padding_id

  @functools.cached_property
  def content(self) -> bytes:
    """Content of the `tokenizer.json`, or `tokenizer` converted to this format."""
    return input_files.read_bytes(self.path) if self.tokenizer is None else _dump(self.tokenizer)

  def tokenize(self, texts: Sequence[str], language: Languages = None) -> list[list[int]]:
    """Returns the ids for every text, without the EOS token. The language has no effect.

    A blank text has no ids, not even special tokens. Training can therefore recognize and drop
    pairs with a blank text.
    """
    del language
    all_ids = zip(texts, self._ids(texts), strict=True)
    return [[] if text_files.is_blank(text) else ids for text, ids in all_ids]

  def encode(
    self, texts: Sequence[str], max_length: int, language: Languages = None
  ) -> list[list[int]]:
    """Returns at most `max_length` ids for every text, including special tokens."""
    del language
    eos_id = self.eos_id
    return [vocabularies.cut_with_eos(ids, max_length, eos_id) for ids in self._ids(texts)]

  def decode(self, ids: Iterable[int]) -> str:
    """Converts ids up to the first EOS token to text, without padding and special tokens."""
    # Convert `padding_id` back to the tokenizer's id 0. The padding has already been removed.
    original = [
      0 if value == self.padding_id else value for value in vocabularies.text_ids(ids, self)
    ]
    return str(self._loaded.tokenizer.decode(original, skip_special_tokens=True))

  def _ids(self, texts: Sequence[str]) -> list[list[int]]:
    """Returns the ids for every text, including the special tokens before the text but not EOS."""
    loaded = self._loaded
    with _package_errors(self.path):
      encodings = loaded.tokenizer.encode_batch_fast([self.prefix + text for text in texts])
    last = None if loaded.eos_id is None else -1
    ids = [[loaded.id_map.get(value, value) for value in text.ids[:last]] for text in encodings]
    if self.skips_unknown:
      ids = [[value for value in row if value != loaded.unk_id] for row in ids]
    return ids

  @functools.cached_property
  def _loaded(self) -> "_Loaded":
    return _load(self.path, self.content, self.tokenizer)


class _Loaded(NamedTuple):
  """A tokenizer and its properties. All ids except `padding_id` are this library's ids.

  Attributes:
    id_map: Maps each of the tokenizer's ids to this library's id, for the ids that differ.
    start_ids: Special tokens before a text.
  """

  tokenizer: Any
  size: int
  padding_id: int
  eos_id: int | None
  unk_id: int | None
  id_map: dict[int, int]
  start_ids: tuple[int, ...]


@functools.lru_cache(maxsize=2)
def _dump(tokenizer: tokenizers.Tokenizer) -> bytes:
  """Returns the content of a tokenizer's `tokenizer.json`."""
  return tokenizer.to_str().encode()


@functools.lru_cache(maxsize=2)
def _load(path: str, content: bytes, tokenizer: tokenizers.Tokenizer | None) -> _Loaded:
  """Returns a tokenizer with its properties; results are cached, because this may take a second.

  Args:
    path: The file, for messages.
    content: Content of the `tokenizer.json`.
    tokenizer: The tokenizer that `content` describes, if it has been created before.
  """
  with _package_errors(path):
    record = _outline(content)
    tokenizer = tokenizer or tokenizers.Tokenizer.from_str(content.decode())
  model = record["model"]
  if model.get("dropout"):
    raise errors.InputError(f"{path}: 'dropout' makes ids random; set it to null")
  tokenizer.no_padding()
  tokenizer.no_truncation()
  pad_id = padding_id(tokenizer)
  size = _size(tokenizer)
  # Tokenize a sample to learn which special tokens the tokenizer puts around a text.
  sample = tokenizer.encode("a \uffff")
  in_text = [i for i, special in enumerate(sample.special_tokens_mask) if not special] or [-1]
  start, end = sample.ids[: max(in_text[0], 0)], sample.ids[in_text[-1] + 1 :]
  if len(end) > 1:
    raise errors.InputError(
      f"{path}: the tokenizer puts {len(end)} special tokens after a text; only one is supported"
    )
  swapped = {arrays.PAD_ID: pad_id, pad_id: arrays.PAD_ID}
  unk_index = model.get("unk_id")
  if not isinstance(unk_index, int):
    unk_index = tokenizer.token_to_id(model.get("unk_token") or "")
  unknown = None if unk_index is None else swapped.get(unk_index, unk_index)
  eos = swapped.get(end[0], end[0]) if end else None
  # A text may contain the string "<pad>", but its ids must not contain padding. This string
  # therefore becomes the unknown token, or the EOS token if there is no unknown token.
  spelled = eos if unknown is None else unknown
  if spelled is None and pad_id >= size:  # The vocabulary has no padding token.
    spelled = pad_id
  if spelled is None or arrays.PAD_ID in (eos, unknown):
    raise errors.InputError(f"{path}: the tokenizer needs an EOS or unknown token besides padding")
  return _Loaded(
    tokenizer=tokenizer,
    size=max(1 + pad_id, size),
    padding_id=pad_id,
    eos_id=eos,
    unk_id=unknown,
    id_map={**swapped, pad_id: spelled},
    start_ids=tuple(swapped.get(value, value) for value in start),
  )


def _outline(content: bytes) -> dict[str, Any]:
  """Parses a `tokenizer.json`, but leaves the model's long vocabulary and merges as raw JSON."""
  fields = msgspec.json.decode(content, type=dict[str, msgspec.Raw])
  model = msgspec.json.decode(fields.pop("model"), type=dict[str, msgspec.Raw])
  settings = {key: msgspec.json.decode(model[key]) for key in model.keys() - {"vocab", "merges"}}
  decoded = {key: msgspec.json.decode(raw) for key, raw in fields.items()}
  return {**decoded, "model": {**model, **settings}}


@contextlib.contextmanager
def _package_errors(path: str | os.PathLike[str]) -> Iterator[None]:
  """Converts exceptions and Rust panics from the package tokenizers to InputError."""
  try:
    yield
  except errors.InputError:
    raise
  except BaseException as error:
    if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
      raise
    raise errors.InputError(f"{os.fspath(path)}: not a Hugging Face tokenizer: {error}") from None


def role_prompt(prompts: Mapping[str, str], role: Role) -> str | None:
  """Returns the prompt for queries or documents, or None if no prompt has a name in `ROLES`.

  If there are several such prompts, the first nonempty prompt is returned.
  """
  present = [prompts[name] for name in ROLES[role] if name in prompts]
  return max(present, key=bool, default=None)


def method_prompts(prefix: str, prompts: Mapping[str, str]) -> dict[str, str]:
  """Returns the prefixes that `encode_query` and `encode_document` use, by role.

  Args:
    prefix: Prefix for roles without a prompt.
    prompts: The encoder's prompts by name.
  """
  by_role = {role: role_prompt(prompts, role) for role in get_args(Role)}
  return {role: prefix if prompt is None else prompt for role, prompt in by_role.items()}


def padding_id(tokenizer: tokenizers.Tokenizer) -> int:
  """Returns the padding id of a tokenizer.

  Some tokenizers have no token that is used only for padding. Qwen, for example, pads with the
  token that ends texts. For these tokenizers, this function returns a new id after all tokens.
  """
  added = {token.content: index for index, token in tokenizer.get_added_tokens_decoder().items()}
  padding_ids = [int(added[content]) for content in _PADDING if content in added]
  return padding_ids[0] if padding_ids else _size(tokenizer)


def _size(tokenizer: tokenizers.Tokenizer) -> int:
  """Returns the largest id of a tokenizer, plus one."""
  return 1 + max(tokenizer.get_vocab(with_added_tokens=True).values(), default=-1)


def trim(
  vocabulary: HuggingFaceVocabulary, texts: Iterable[str]
) -> tuple[HuggingFaceVocabulary, list[int]]:
  """Reduces a vocabulary to the tokens in `texts`. These texts are still tokenized in the same way.

  Special tokens and single-character tokens are also kept, so unseen texts rarely contain unknown
  tokens. However, unseen texts may be split into more tokens than with the full vocabulary.

  Args:
    vocabulary: The full vocabulary, a Unigram or WordPiece tokenizer.
    texts: The texts, without the prefix.

  Returns:
    The reduced vocabulary, and the old id for each new id.

  Raises:
    InputError: If the tokenizer is neither Unigram nor WordPiece, or has an unsupported
      post-processor.
  """
  loaded, record = vocabulary._loaded, json.loads(vocabulary.content)
  model, after = record["model"], record.get("post_processor") or {"type": None}
  kinds = model.get("type"), after["type"]
  if kinds[0] not in ("Unigram", "WordPiece") or kinds[1] not in (None, _TEMPLATE):
    raise errors.InputError(
      f"{vocabulary.path}: a {kinds[0]} tokenizer with the post-processor {kinds[1]} cannot be "
      f"trimmed; use a Unigram or WordPiece tokenizer with {_TEMPLATE} or no post-processor"
    )
  used = {loaded.padding_id, loaded.tokenizer.token_to_id(model.get("unk_token") or "")}
  used |= {token["id"] for token in record["added_tokens"]} | {model.get("unk_id")}
  # Tokenize every text after every prefix, because the last tokens of a prefix may depend on the
  # text.
  prefixes = {"", vocabulary.prefix, *vocabulary.prompts.values()}
  for prefix, text in itertools.product(prefixes, ["", *texts]):
    used |= {*loaded.tokenizer.encode(prefix + text).ids}
  token_ids = loaded.tokenizer.get_vocab(with_added_tokens=True)
  start = model.get("continuing_subword_prefix") or _SPACE
  used |= {index for piece, index in token_ids.items() if len(piece.removeprefix(start)) <= 1}
  old_ids = sorted(used - {None})
  new = {old: index for index, old in enumerate(old_ids)}
  if model["type"] == "Unigram":
    model["vocab"] = [model["vocab"][old] for old in old_ids if old < len(model["vocab"])]
    model["unk_id"] = new.get(model["unk_id"])
  else:
    model["vocab"] = {x: new[old] for x, old in model["vocab"].items() if old in new}
  for token in record["added_tokens"]:
    token["id"] = new[token["id"]]
  for token in after.get("special_tokens", {}).values():
    token["ids"] = [new[old] for old in token["ids"]]
  tokenizer = tokenizers.Tokenizer.from_str(json.dumps(record))
  trimmed = dataclasses.replace(vocabulary, tokenizer=tokenizer)
  ids = (old_ids[_swap(index, trimmed.padding_id)] for index in range(len(old_ids)))
  return trimmed, [_swap(old, loaded.padding_id) for old in ids]


def _swap(index: int, pad_id: int) -> int:
  """Swaps the padding id and 0, to convert a tokenizer's id to this library's id or back."""
  return pad_id if index == arrays.PAD_ID else arrays.PAD_ID if index == pad_id else index


def for_static_encoder(
  vocabulary: HuggingFaceVocabulary, texts: Sequence[str] = (), words: int = 0
) -> tuple[HuggingFaceVocabulary, list[list[int]]]:
  """Removes the special tokens from a vocabulary and adds frequent words as tokens.

  In a Unigram tokenizer, the score of a new word is barely higher than the total score of the
  word's pieces. The word therefore only replaces these pieces, and everything else in a text is
  tokenized as before.

  Args:
    vocabulary: A transformer encoder's vocabulary. Its prompts are dropped.
    texts: Texts to count words in.
    words: Number of words to add. The most frequent words that consist of several tokens are added.

  Returns:
    The new vocabulary, and a list of old ids for each new token. Added words have several old ids.

  Raises:
    InputError: If `words` is positive, but the tokenizer is neither Unigram nor WordPiece.
  """
  record = json.loads(vocabulary.content) | {"post_processor": None}
  model, padding_id = record["model"], vocabulary.padding_id
  pieces: list[tuple[int, ...]] = [(index,) for index in range(vocabulary.size)]
  if words:
    is_unigram = model["type"] == "Unigram"
    if not is_unigram and model["type"] != "WordPiece":
      raise errors.InputError(
        f"{vocabulary.path}: words cannot be added to a {model['type']} tokenizer; only Unigram "
        "and WordPiece are supported"
      )
    vocab = {token for token, _ in model["vocab"]} if is_unigram else {*model["vocab"]}
    start = "" if is_unigram else model["continuing_subword_prefix"]
    added: dict[str, tuple[int, ...]] = {}
    tokenizer = tokenizers.Tokenizer.from_str(json.dumps(record))
    for (ids, tokens), _ in _words(tokenizer, texts, start or _SPACE).most_common():
      word = "".join(token.removeprefix(start) for token in tokens)
      if word not in vocab and len(added) < words:
        added[word] = ids
    # New words get the ids right after the model's tokens. `added_tokens` from there on move up.
    count = len(model["vocab"])
    for token in record["added_tokens"]:
      token["id"] += len(added) * (token["id"] >= count)
    pieces[count:count] = added.values()
    if is_unigram:
      scores = [score for _, score in model["vocab"]]
      model["vocab"] += [
        [word, sum(scores[index] for index in ids) + _PREFERENCE] for word, ids in added.items()
      ]
    else:
      model["vocab"] |= {word: count + number for number, word in enumerate(added)}
  static = HuggingFaceVocabulary(
    vocabulary.path, tokenizer=tokenizers.Tokenizer.from_str(json.dumps(record)), skips_unknown=True
  )
  originals = (pieces[_swap(index, static.padding_id)] for index in range(static.size))
  return static, [[_swap(index, padding_id) for index in ids] for ids in originals]


def _words(
  tokenizer: tokenizers.Tokenizer, texts: Sequence[str], start: str
) -> collections.Counter[tuple[tuple[int, ...], tuple[str, ...]]]:
  """Counts the words that consist of several tokens. Each key contains a word's ids and tokens."""

  @functools.cache
  def is_of_letters(token: str) -> bool:
    return all(unicodedata.category(x)[0] in "LM" for x in token.removeprefix(start))

  counts: collections.Counter[Any] = collections.Counter()
  for row in range(0, len(texts), _CHUNK):
    for text in tokenizer.encode_batch(texts[row : row + _CHUNK]):
      rows = zip(text.word_ids, text.ids, text.tokens, strict=True)
      for _, group in itertools.groupby(rows, key=lambda x: x[0]):
        # A group of tokens with the same word id can also contain punctuation after the word.
        word = [*itertools.takewhile(lambda x: is_of_letters(x[2]), group)]
        if len(word) > 1:
          _, ids, tokens = zip(*word, strict=True)
          counts[ids, tokens] += 1
  return counts


# --------------------------------------------------------------------------------------------
# Reading: the tokenizer of a model folder

_BERT, _XLMR, _PLAIN = "BertTokenizer", "XLMRobertaTokenizer", "PreTrainedTokenizer"
_MPNET, _ROBERTA = "MPNetTokenizer", "RobertaTokenizer"
_QWEN, _GEMMA, _T5 = "Qwen2Tokenizer", "GemmaTokenizer", "T5Tokenizer"
# Tokenizer classes in transformers, without "Fast". The last two use `tokenizer.json` unchanged.
_CLASSES = (_BERT, _XLMR, _MPNET, _ROBERTA, _QWEN, _GEMMA, _T5, _PLAIN, "TokenizersBackend")
_RENAMED = {"DistilBertTokenizer": _BERT}
_CLASS_OF = {"bert": _BERT, "distilbert": _BERT, "xlm-roberta": _XLMR, "roberta": _ROBERTA,
             "mpnet": _MPNET, "modernbert": _PLAIN, "qwen3": _QWEN, "gemma3_text": _GEMMA,
             "t5": _T5, "mt5": _T5}  # fmt: skip
# Model types with relative positions. The padding side does not affect their vectors.
_RELATIVE = ("modernbert", "qwen3", "gemma3_text", "t5", "mt5")
_NAMES = [f"{name}_token" for name in ("bos", "eos", "unk", "sep", "pad", "cls", "mask")]
# Default special tokens for each class, in the same order as `_NAMES`.
_DEFAULTS = {
  _BERT: (None, None, "[UNK]", "[SEP]", "[PAD]", "[CLS]", "[MASK]"),
  _XLMR: ("<s>", "</s>", "<unk>", "</s>", "<pad>", "<s>", "<mask>"),
  _ROBERTA: ("<s>", "</s>", "<unk>", "</s>", "<pad>", "<s>", "<mask>"),
  _MPNET: ("<s>", "</s>", "[UNK]", "</s>", "<pad>", "<s>", "<mask>"),
  _T5: (None, "</s>", "<unk>", None, "<pad>", None, None),
}
# Id of the unknown token in the classes that use Unigram.
_UNKNOWN_IDS = {_XLMR: 3, _T5: 2}
# Name prefix and default number of T5's sentinel tokens, which mark masked spans.
_EXTRA, _NUM_EXTRA = "extra_id_", 100
# Special tokens around a text in classes that ignore the post-processor in `tokenizer.json`.
_ENDS: dict[str, tuple[str, ...]] = {
  _XLMR: ("bos_token", "eos_token"),
  _T5: ("eos_token",),
  **dict.fromkeys((_BERT, _MPNET, _ROBERTA), ("cls_token", "sep_token")),
}
_QWEN_WORDS = (
  r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
  r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_BYTE_PAIRS = (_ROBERTA, _QWEN, _GEMMA)
# Settings that would replace parts of the tokenizer. They are not supported, because no known
# released encoder uses them.
_REPLACEMENTS = (
  "_spm_precompiled_charsmap", "auto_map", "fast_tokenizer_files", "gguf_file",
  "init_inputs", "merges", "model_specific_special_tokens", "post_processor", "processor_class",
  "tokenizer_object", "tokenizer_padding", "tokenizer_truncation", "vocab",
)  # fmt: skip


class Settings(msgspec.Struct):
  """The settings in a `tokenizer_config.json` that this library applies or must check.

  Attributes:
    do_lower_case: Whether BERT lowercases.
    strip_accents: Whether BERT removes accents; default: same as `do_lower_case`.
    tokenize_chinese_chars: Whether BERT splits Chinese characters.
    add_prefix_space: Whether XLM-R puts a space before a text.
    model_input_names: The inputs of the model.
    model_max_length: Maximum number of tokens in a text. A huge number means no limit.
    max_len: Older name for `model_max_length`.
    extra_ids: Number of T5's sentinel tokens.
  """

  do_lower_case: bool = True
  strip_accents: bool | None = None
  tokenize_chinese_chars: bool = True
  add_prefix_space: bool | None = None
  model_input_names: tuple[str, ...] = ("attention_mask",)
  model_max_length: Annotated[float, msgspec.Meta(ge=1)] | None = None
  max_len: Annotated[float, msgspec.Meta(ge=1)] | None = None
  extra_ids: Annotated[int, msgspec.Meta(ge=0, le=1000)] = _NUM_EXTRA

  @property
  def limit(self) -> int | None:
    """Maximum number of tokens in a text, if set."""
    value = self.model_max_length if self.model_max_length is not None else self.max_len
    return None if value is None else int(min(value, 1 << 31))


def read(
  folder: pathlib.Path, config: Mapping[str, Any], *, lowercase: bool = False
) -> tuple[tokenizers.Tokenizer | None, Settings]:
  """Returns the tokenizer that transformers builds from the files in a folder, and its settings.

  Args:
    folder: A model folder.
    config: Content of the folder's `config.json`.
    lowercase: Whether to lowercase texts first (`do_lower_case` in sentence-transformers).

  Returns:
    The tokenizer and the settings. The tokenizer is None if the folder has no `tokenizer.json`.
    Later calls return the same tokenizer, so do not modify it.

  Raises:
    InputError: If a file is damaged, or this library does not support a setting. The message names
      the file or setting.
  """
  stats = ((path.name, path.stat()) for path in sorted(folder.glob("*.json")))
  versions = tuple((name, stat.st_mtime_ns, stat.st_size) for name, stat in stats)
  return _read(folder, versions, msgspec.json.encode(config), lowercase)


@functools.lru_cache(maxsize=2)
def _read(
  folder: pathlib.Path, versions: Any, encoded_config: bytes, lowercase: bool
) -> tuple[tokenizers.Tokenizer | None, Settings]:
  """Like `read`, but caches results, because building a large tokenizer may take a second.

  `versions` identifies the content of the folder's files.
  """
  del versions
  config = msgspec.json.decode(encoded_config)
  path, settings_path = folder / TOKENIZER_FILE, folder / SETTINGS_FILE
  options = transformers.read_object(settings_path, if_missing={})
  record: dict[str, Any] = {}
  if path.is_file():
    with _package_errors(path):
      record = _outline(path.read_bytes())
  model_type = config.get("model_type")
  fixed: dict[str, Any] = dict.fromkeys(_REPLACEMENTS)
  fixed |= {"split_special_tokens": False, "truncation_side": "right"}
  if model_type not in _RELATIVE:
    fixed["padding_side"] = "right"
  # `tokenizer_config.json` overrides the truncation and padding sides in `tokenizer.json`.
  in_effect = {
    f"{operation}_side": section["direction"].lower()
    for operation in ("truncation", "padding")
    if "direction" in (section := record.get(operation) or {})
  }
  in_effect |= {key: value for key, value in options.items() if value not in (None, [], {})}
  settings = transformers.check_config(settings_path, in_effect, Settings, fixed)
  names, name = settings.model_input_names, f"{settings_path}: 'model_input_names'"
  errors.check("attention_mask" in names, name, names, "names with 'attention_mask'")
  if not record:
    return None, settings
  source, kind = settings_path, options.get("tokenizer_class")
  if model_type == "modernbert":
    kind = _PLAIN  # For ModernBERT, transformers ignores the class named in the files.
  elif not kind:
    source = folder / transformers.CONFIG_FILE
    kind = config.get("tokenizer_class") or _CLASS_OF.get(str(model_type))
  kind = str(kind).removesuffix("Fast")
  kind = _RENAMED.get(kind, kind)
  if kind not in _CLASSES:
    raise errors.InputError(
      f"{source}: 'tokenizer_class' is {kind!r}; only {', '.join(_CLASSES)} can be imported"
    )
  # Older models list special tokens in `special_tokens_map.json`.
  if "added_tokens_decoder" not in options:
    extra = options.get("extra_special_tokens") or options.get("additional_special_tokens")
    options |= transformers.read_object(folder / _SPECIAL_FILE, if_missing={})
    options |= {"extra_special_tokens": extra} if extra else {}
  added = transformers.read_object(folder / _ADDED_FILE, if_missing={})
  # Special tokens by name, in the order in which transformers adds them.
  texts: dict[str, Any] = dict(zip(_NAMES, _DEFAULTS.get(kind, [None] * 7), strict=True))
  if record.get("padding"):
    texts["pad_token"] = texts["pad_token"] or record["padding"]["pad_token"]
  texts |= {name: token for name, token in options.items() if name.endswith("_token")}
  if kind == _T5:
    texts |= {f"{_EXTRA}{i}": f"<{_EXTRA}{i}>" for i in range(settings.extra_ids)}
  extra = options.get("extra_special_tokens") or options.get("additional_special_tokens") or {}
  texts |= extra if isinstance(extra, dict) else {f"extra {i}": x for i, x in enumerate(extra)}
  by_name = {name: _token(x) for name, x in texts.items() if isinstance(x, (str, dict))}
  # Added tokens by id. If `added_tokens_decoder` exists, transformers ignores all other sources.
  if "added_tokens_decoder" in options:
    by_id = {int(i): _token(token) for i, token in options["added_tokens_decoder"].items()}
  else:
    extra = options.get("extra_special_tokens")
    special = {str(by_name[name]) for name in _NAMES if name in options and name in by_name}
    special |= {str(_token(x)) for x in (extra if isinstance(extra, list) else [])}
    by_id = {i: tokenizers.AddedToken(x, normalized=x not in special) for x, i in added.items()}
    by_id |= {token["id"]: _token(token) for token in record.get("added_tokens") or []}
  tokens = [by_id[index] for index in sorted(by_id)]
  around = [str(by_name[name]) for name in _ENDS.get(kind, ())]
  unknown = "" if kind not in _ENDS or kind in _BYTE_PAIRS else str(by_name["unk_token"])
  with _package_errors(path):
    tokenizer = _pipeline(kind, settings, record, unknown)
    present = set(map(repr, tokenizer.get_added_tokens_decoder().values()))
    tokenizer.add_tokens([token for token in tokens if repr(token) not in present])
    # Special tokens without an id get new ids if the model's token table has free rows. Otherwise,
    # the tokens are not added, and the same strings are tokenized as ordinary text.
    room = config.get("vocab_size", 0) - tokenizer.get_vocab_size()
    contents = {token.content for token in tokenizer.get_added_tokens_decoder().values()}
    tokenizer.add_tokens([
      token
      for name, token in by_name.items()
      if token.content not in contents and (
        tokenizer.token_to_id(token.content) is not None
        or room >= (_NUM_EXTRA if name.startswith(_EXTRA) else int(name in _NAMES))
      )
    ])  # fmt: skip
    if around:
      tokenizer.post_processor = processors.TemplateProcessing(
        [*around[:-1], "$A", around[-1]],
        special_tokens=[(x, tokenizer.token_to_id(x)) for x in around],
      )
    if lowercase:
      normalizer: Any = tokenizer.normalizer
      is_chain = isinstance(normalizer, normalizers.Sequence)
      steps = [] if normalizer is None else list(normalizer) if is_chain else [normalizer]
      if not any(isinstance(step, normalizers.Lowercase) for step in steps):
        tokenizer.normalizer = normalizers.Sequence([normalizers.Lowercase(), *steps])
    tokenizer.no_padding()
    tokenizer.no_truncation()
    if any(tokenizer.encode("a").type_ids):
      raise errors.InputError(f"{path}: 'post_processor' sets nonzero token types; remove them")
  return tokenizer, settings


def _token(value: Any) -> tokenizers.AddedToken:
  """Converts a JSON value (a special token string, or an object with attributes) to a token."""
  if isinstance(value, str):
    return tokenizers.AddedToken(value, special=True)
  return tokenizers.AddedToken(**{k: x for k, x in value.items() if k not in ("__type", "id")})


def _pipeline(
  kind: str, settings: Settings, record: Mapping[str, Any], unknown: str
) -> tokenizers.Tokenizer:
  """Builds a tokenizer of class `kind`, without added tokens or special tokens around a text.

  Args:
    kind: The tokenizer class.
    settings: Settings in `tokenizer_config.json`.
    record: Content of `tokenizer.json`.
    unknown: The unknown token, for WordPiece.
  """
  if kind not in _ENDS or kind in _BYTE_PAIRS:
    model = record["model"]
    if kind in _BYTE_PAIRS:
      fallbacks = dict.fromkeys(("fuse_unk", "byte_fallback"), kind == _GEMMA)
      affixes = dict.fromkeys(("continuing_subword_prefix", "end_of_word_suffix"))
      model = {**model, "ignore_merges": False, **fallbacks, **affixes}
    content = msgspec.json.encode({**record, "model": model})
    tokenizer = tokenizers.Tokenizer.from_str(content.decode())
    as_bytes = functools.partial(
      pre_tokenizers.ByteLevel, add_prefix_space=bool(settings.add_prefix_space)
    )
    if kind == _ROBERTA:
      tokenizer.normalizer, tokenizer.pre_tokenizer = None, as_bytes()
    elif kind == _QWEN:
      tokenizer.normalizer = normalizers.NFC()
      words = pre_tokenizers.Split(tokenizers.Regex(_QWEN_WORDS), "isolated")
      tokenizer.pre_tokenizer = pre_tokenizers.Sequence([words, as_bytes(use_regex=False)])
    elif kind == _GEMMA:
      tokenizer.normalizer = normalizers.Replace(" ", _SPACE)
      tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    return tokenizer
  vocabulary: Any = msgspec.json.decode(
    record["model"]["vocab"], type=dict[str, int] | list[tuple[str, float]]
  )
  if kind not in _UNKNOWN_IDS:
    tokenizer = tokenizers.Tokenizer(models.WordPiece(vocabulary, unk_token=unknown))
    tokenizer.normalizer = normalizers.BertNormalizer(
      handle_chinese_chars=settings.tokenize_chinese_chars,
      strip_accents=settings.strip_accents,
      lowercase=settings.do_lower_case,
    )
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    return tokenizer
  tokenizer = tokenizers.Tokenizer(models.Unigram(vocabulary, _UNKNOWN_IDS[kind], False))
  normalizer = record.get("normalizer") or {}
  for step in normalizer.get("normalizers", [normalizer]):
    if step.get("type") == "Precompiled":
      charsmap = base64.b64decode(step["precompiled_charsmap"])
      tokenizer.normalizer = normalizers.Precompiled(charsmap)
      break
  scheme = "never" if kind != _T5 and settings.add_prefix_space is False else "always"
  metaspace = pre_tokenizers.Metaspace(prepend_scheme=scheme)
  tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), metaspace])
  tokenizer.decoder = decoders.Metaspace(prepend_scheme=scheme)
  return tokenizer


# --------------------------------------------------------------------------------------------
# Writing. A text may contain the string of a special token: "</s>", for example, is often just web
# page markup. This library's vocabularies tokenize such a string as ordinary text. To do the same,
# an exported tokenizer has special tokens that start with a space (" </s>"). No text can match
# these tokens, because the tokenizer first replaces all spaces.

# Matches Σ at the end of a word: a letter precedes it, and no letter follows.
_FINAL_SIGMA = r"\p{Cased}\p{Case_Ignorable}*\KΣ(?!\p{Case_Ignorable}*\p{Cased})"


class ExportedTokenizer(NamedTuple):
  """A `tokenizer.json`, and the settings for `tokenizer_config.json`.

  Attributes:
    content: Content of `tokenizer.json`.
    padding: The padding token.
    padding_id: Id of the padding token in the file (in this library, padding has id 0).
    unknown: The token for unknown text, if any.
    eos: The token after a sentence, if any.
    splits_special_tokens: Whether a special token in a text is tokenized as ordinary text.
  """

  content: bytes
  padding: str
  padding_id: int
  unknown: str | None
  eos: str | None
  splits_special_tokens: bool


def export(vocabulary: vocabularies.Vocabulary, *, pretokenized: bool = False) -> ExportedTokenizer:
  """Returns a tokenizer that produces the ids of a vocabulary, including the EOS token.

  In a test with 50,000 sentences in 112 languages, the exported tokenizer produced the same ids as
  the vocabulary. The ids are known to differ for:

  * Capital letters added in Unicode 14 to 17. The package tokenizers lowercases them, but this
    library's `lowercase` does not.
  * Some decomposed letters in kana, polytonic Greek and Hangul.
  * Texts that contain the name of a byte token ("<0x41>"), if the vocabulary has byte tokens.

  Args:
    vocabulary: A vocabulary of this library.
    pretokenized: Whether callers will split texts into words before they tokenize them
      (`vmsst.data.word_splitting.split_words`). A `tokenizer.json` cannot describe this word
      splitting.

  Raises:
    InputError: If the file format cannot express the vocabulary.
  """
  if isinstance(vocabulary, HuggingFaceVocabulary):
    # Write the imported file without its padding and truncation settings.
    record = json.loads(vocabulary.content)
    record["padding"] = record["truncation"] = None
    tokens = {token["id"]: token["content"] for token in record["added_tokens"]}
    # Undo the swap of the padding id and 0 in this library's ids.
    unknown, eos = (
      tokens.get(vocabulary.padding_id if index == arrays.PAD_ID else index)
      for index in (vocabulary.unk_id, vocabulary.eos_id)
    )
    return ExportedTokenizer(
      content=json.dumps(record, ensure_ascii=False).encode(),
      # Without a padding token, pad with any token, because padding is masked.
      padding=tokens.get(vocabulary.padding_id) or eos or "",
      padding_id=vocabulary.padding_id,
      unknown=unknown,
      eos=eos,
      splits_special_tokens=False,
    )
  if isinstance(vocabulary, vocabularies.ByteVocabulary):
    tokenizer, special = _of_bytes(vocabulary)
  elif type(vocabulary) is vocabularies.SentencePieceVocabulary and (
    pretokenized or not vocabulary.pretokenize
  ):
    tokenizer, special = _of_sentencepiece(vocabulary)
  else:
    raise errors.InputError(
      f"a tokenizer.json cannot split words, as this {type(vocabulary).__name__} requires; "
      "use `vmsst export safetensors`, or pass --pretokenized and split texts with "
      "vmsst.data.word_splitting.split_words before you encode them"
    )
  eos = None if vocabulary.eos_id is None else special[vocabulary.eos_id]
  if eos is not None:
    tokenizer.post_processor = processors.TemplateProcessing(
      single=["$A", eos], pair=["$A", eos, "$B", eos], special_tokens=[(eos, vocabulary.eos_id)]
    )
  added = [tokenizers.AddedToken(token, normalized=False) for token in special.values()]
  tokenizer.add_special_tokens(added)
  return ExportedTokenizer(
    content=tokenizer.to_str(pretty=False).encode(),
    padding=special[arrays.PAD_ID],
    padding_id=arrays.PAD_ID,
    unknown=None if vocabulary.unk_id is None else special[vocabulary.unk_id],
    eos=eos,
    splits_special_tokens=True,
  )


def described_settings(tokenizer: ExportedTokenizer, max_length: int) -> dict[str, Any]:
  """Returns the content of `tokenizer_config.json` for an exported tokenizer."""
  settings = {
    "tokenizer_class": "PreTrainedTokenizerFast",
    "model_max_length": max_length,
    "clean_up_tokenization_spaces": False,
    "model_input_names": ["input_ids", "attention_mask"],
    "split_special_tokens": tokenizer.splits_special_tokens,
    "pad_token": tokenizer.padding,
    "unk_token": tokenizer.unknown,
    "eos_token": tokenizer.eos,
  }
  return {name: value for name, value in settings.items() if value is not None}


def limits(assets: Any) -> list[str]:
  """Returns the limitations of an exported encoder outside this library, one per line."""
  lines, vocabulary = [], assets.vocabulary
  if getattr(vocabulary, "pretokenize", False):
    lines.append(
      "Outside vmsst, texts must be split into words first: "
      "vmsst.data.word_splitting.split_words(texts, language)"
    )
  # A static encoder raises no error: it returns zeros for a text without tokens.
  if vocabulary.eos_id is None and not isinstance(assets.network.config, StaticConfig):
    lines.append("Outside vmsst, a batch of only empty texts raises an error (no EOS token)")
  return lines


def _of_bytes(vocabulary: vocabularies.ByteVocabulary) -> tuple[Any, dict[int, str]]:
  """Returns a tokenizer with one token per byte, and the special tokens by id."""
  special = {0: " <pad>", 1: " </s>", 2: " <unk>"}
  ids = {token: i for i, token in special.items()}
  # ByteLevel maps a visible byte to the character with the same code, and all other bytes to
  # letters from U+0100 on.
  visible = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
  substitutes = iter(range(0x100, 0x200))
  for byte in range(0x100):
    ids[chr(byte if byte in visible else next(substitutes))] = byte + 3
  tokenizer = tokenizers.Tokenizer(models.BPE(ids, [], unk_token=special[2]))
  if vocabulary.lowercase:
    tokenizer.normalizer = normalizers.Sequence(_lowercase())
  tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
  tokenizer.decoder = decoders.ByteLevel()
  return tokenizer, special


def _of_sentencepiece(
  vocabulary: vocabularies.SentencePieceVocabulary,
) -> tuple[Any, dict[int, str]]:
  """Converts a SentencePiece model to a tokenizer; also returns the special tokens by id."""
  # This protobuf module creates its classes at run time, so type checkers cannot see them.
  proto: Any = importlib.import_module("sentencepiece.sentencepiece_model_pb2")
  model = proto.ModelProto()
  model.ParseFromString(vocabulary.model_bytes)
  normalizer, trainer = model.normalizer_spec, model.trainer_spec
  kinds = proto.ModelProto.SentencePiece
  for problem, is_problem in {
    "escape_whitespaces is false": not normalizer.escape_whitespaces,
    "treat_whitespace_as_suffix is true": trainer.treat_whitespace_as_suffix,
    "it is neither Unigram nor BPE": trainer.model_type not in (trainer.UNIGRAM, trainer.BPE),
    "it has user-defined symbols": any(x.type == kinds.USER_DEFINED for x in model.pieces),
  }.items():
    if is_problem:
      raise errors.InputError(
        f"the SentencePiece model {vocabulary.path} cannot be exported as tokenizer.json: {problem}"
      )
  spelled = (kinds.NORMAL, kinds.BYTE)
  names = [x.piece if x.type in spelled else f" {x.piece}" for x in model.pieces]
  special = {
    i: names[i] for i, x in enumerate(model.pieces) if x.type in (kinds.CONTROL, kinds.UNKNOWN)
  }
  # `Unigram` derives the cost of unknown text from the lowest score among all pieces. SentencePiece
  # uses the lowest score among normal pieces, so set the scores of special pieces to that score.
  lowest = min((x.score for x in model.pieces if x.type == kinds.NORMAL), default=0.0)
  scores = [x.score if x.type == kinds.NORMAL else lowest for x in model.pieces]
  unknown = next(i for i, x in enumerate(model.pieces) if x.type == kinds.UNKNOWN)
  if trainer.model_type == trainer.UNIGRAM:
    unigram = models.Unigram(list(zip(names, scores, strict=True)), unknown, trainer.byte_fallback)
    tokenizer = tokenizers.Tokenizer(unigram)
  else:
    # All merges of two pieces into a third piece, sorted by the score of the third piece.
    pieces = sorted((x for x in model.pieces if x.type == kinds.NORMAL), key=lambda x: -x.score)
    spellings = {x.piece for x in pieces}
    cuts = ((x.piece[:i], x.piece[i:]) for x in pieces for i in range(1, len(x.piece)))
    merges = [pair for pair in cuts if spellings.issuperset(pair)]
    tokenizer = tokenizers.Tokenizer(
      models.BPE(
        {name: i for i, name in enumerate(names)},
        merges,
        unk_token=names[unknown],
        fuse_unk=True,
        byte_fallback=trainer.byte_fallback,
      )
    )
  steps = _lowercase() if vocabulary.lowercase else []
  if normalizer.precompiled_charsmap:
    mapped = normalizers.Precompiled(normalizer.precompiled_charsmap)
    steps += [normalizers.Replace(*pair) for pair in _unseen_signs(mapped, vocabulary)]
    steps.append(mapped)
  if normalizer.remove_extra_whitespaces:
    steps += [
      normalizers.Replace(tokenizers.Regex("^ +| +$"), ""),
      normalizers.Replace(tokenizers.Regex(" {2,}"), " "),
    ]
  if normalizer.add_dummy_prefix:
    steps.append(normalizers.Prepend(" "))
  steps.append(normalizers.Replace(" ", _SPACE))
  tokenizer.normalizer = normalizers.Sequence(steps)
  if not any(_SPACE in x.piece[1:] for x in model.pieces if x.type in spelled):
    # No piece extends across a space, so each word can be tokenized separately.
    tokenizer.pre_tokenizer = pre_tokenizers.Split(_SPACE, "merged_with_next")
  space, strip = decoders.Replace(_SPACE, " "), decoders.Strip(" ", 1, 0)
  tokenizer.decoder = decoders.Sequence([space, decoders.ByteFallback(), decoders.Fuse(), strip])
  return tokenizer, special


def _lowercase() -> list[Any]:
  """Returns normalizers that lowercase like `vocabularies.small_letters`, including a final Σ."""
  return [normalizers.Replace(tokenizers.Regex(_FINAL_SIGMA), "ς"), normalizers.Lowercase()]


def _unseen_signs(
  mapped: Any, vocabulary: vocabularies.SentencePieceVocabulary
) -> list[tuple[str, str]]:
  """Returns (decomposed, composed) pairs of vowel signs that `Precompiled` does not compose.

  `Precompiled` is the normalizer for SentencePiece models in the package tokenizers. It composes
  only graphemes of at most five bytes, but these signs, which are frequent in Tamil, have six
  bytes. SentencePiece itself composes them.
  """
  import sentencepiece

  processor = sentencepiece.SentencePieceProcessor(model_proto=vocabulary.model_bytes)
  signs = []
  for sign in map(chr, range(0x300, 0x10000)):
    decomposed = unicodedata.normalize("NFD", sign)
    if len(decomposed) == 1 or not unicodedata.category(sign).startswith("M"):
      continue
    # Put a letter first, so that the text does not start with the sign.
    normalized = processor.normalize(f"x{decomposed}")
    if normalized.endswith(f"x{sign}") and mapped.normalize_str(decomposed) != sign:
      signs.append((decomposed, sign))
  return sorted(signs, key=lambda pair: -len(pair[0]))
