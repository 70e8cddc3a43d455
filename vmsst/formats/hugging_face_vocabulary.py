"""Vocabularies of Hugging Face models: `tokenizer.json`, read by the package `tokenizers`.

Ids are the tokenizer's own, except padding, which is id 0 in this library. If the tokenizer pads
with another id, that id and 0 are swapped, and so are their two rows in an imported token table
(`vmsst.formats.encoders`).
"""

import contextlib
import dataclasses
import functools
import itertools
import json
import os
import pathlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, get_args

import msgspec
import tokenizers

from vmsst import arrays, errors
from vmsst.data import vocabularies
from vmsst.data.word_splitting import Languages
from vmsst.io import text_fields

Role = Literal["query", "document"]
"""What a text is in a search."""

TOKENIZER_FILE = "tokenizer.json"
_PADDING = ("<pad>", "[PAD]")
_TEMPLATE = "TemplateProcessing"
# Keys of the steps in a sequence.
_SEQUENCES = ("normalizers", "pretokenizers", "processors", "decoders")
# Names of the prompts of queries and documents, by preference.
_ROLES = {"query": ("query",), "document": ("document", "passage", "corpus")}
# Texts of several scripts, which end a prefix in several ways.
_PROBES = ("a", "Hello, world", "(1999)", "Привет", "你好", "مرحبا", "«mañana»")


@dataclasses.dataclass(frozen=True)
class HuggingFaceVocabulary(vocabularies.Vocabulary):
  """A Hugging Face tokenizer file, read on first use; ids are those of the model's own tokenizer.

  Special tokens around a text ([CLS] and [SEP] of BERT, <s> and </s> of XLM-R) are part of its ids:
  `tokenize` includes those before the text, and the one after it is the EOS token. Truncation and
  padding settings of the file are ignored: the library truncates and pads.

  Attributes:
    path: The `tokenizer.json`; remote paths such as `gs://` work too.
    prefix: Text put before every text, such as E5's "query: ".
    prompts: Other prefixes by name, such as that of documents; for `Encoder.encode`.
  """

  path: str
  prefix: str = ""
  prompts: Mapping[str, str] = dataclasses.field(default_factory=dict, compare=False)

  @property
  def size(self) -> int:
    """Number of ids, padding included."""
    return self._loaded.size

  @property
  def eos_id(self) -> int | None:
    """Id of the special token after a text, or None."""
    return self._loaded.eos_id

  @property
  def unk_id(self) -> int | None:
    """Id of text that the tokenizer cannot represent, or None."""
    return self._loaded.unk_id

  @property
  def special_ids(self) -> tuple[int, ...]:
    """Ids of the special tokens before and after a text, such as [CLS] and [SEP]."""
    loaded = self._loaded
    return (*loaded.start_ids, *(() if loaded.eos_id is None else (loaded.eos_id,)))

  @functools.cached_property
  def leading_ids(self) -> tuple[int, ...]:
    """Ids before the ids of every text: special tokens, then the prefix.

    Raises:
      InputError: the tokens of the prefix depend on the text.
    """
    start = len(self._loaded.start_ids)
    with_prefix = self._ids(_PROBES)
    plain = self.with_prefix("")._ids(_PROBES)
    prefixes = set()
    for ids, text_ids in zip(with_prefix, plain, strict=True):
      leading = len(ids) - len(text_ids) + start
      # None if the text has other ids after the prefix.
      prefixes.add(tuple(ids[:leading]) if ids[leading:] == text_ids[start:] else None)
    (leading_ids,) = prefixes if len(prefixes) == 1 else {None}
    if leading_ids is None:
      raise errors.InputError(
        f"{self.path}: the tokens of the prefix {self.prefix!r} depend on the text after it; end "
        "it with a space"
      )
    return leading_ids

  def with_prefix(self, prefix: str) -> "HuggingFaceVocabulary":
    """Returns this vocabulary with another prefix; the file is not read again."""
    vocabulary = dataclasses.replace(self, prefix=prefix)
    vocabulary.__dict__["_loaded"] = self._loaded
    return vocabulary

  @property
  def padding_id(self) -> int:
    """The tokenizer's own padding id, swapped with 0 in this library."""
    return self._loaded.padding_id

  @property
  def content(self) -> bytes:
    """Content of the file."""
    return self._loaded.content

  def tokenize(self, texts: Sequence[str], language: Languages = None) -> list[list[int]]:
    """Returns the ids of every text, without EOS token, regardless of its language.

    A blank text has no ids, not even special tokens, so that training can drop its pair.
    """
    del language
    all_ids = zip(texts, self._ids(texts), strict=True)
    return [[] if text_fields.is_blank(text) else ids for text, ids in all_ids]

  def encode(
    self, texts: Sequence[str], max_length: int, language: Languages = None
  ) -> list[list[int]]:
    """Returns at most `max_length` ids of every text, including special tokens."""
    del language
    eos_id = self.eos_id
    return [vocabularies.cut_with_eos(ids, max_length, eos_id) for ids in self._ids(texts)]

  def decode(self, ids: Iterable[int]) -> str:
    """Returns the text of ids up to the first EOS token, ignoring padding and special tokens."""
    # If padding is swapped with 0, no text contains 0.
    original = [
      0 if value == self.padding_id else value for value in vocabularies.text_ids(ids, self)
    ]
    return str(self._loaded.tokenizer.decode(original, skip_special_tokens=True))

  def _ids(self, texts: Sequence[str]) -> list[list[int]]:
    """Returns the ids of every text, including special tokens before it, without EOS token."""
    loaded = self._loaded
    with package_errors(self.path):
      encodings = loaded.tokenizer.encode_batch_fast([self.prefix + text for text in texts])
    last = None if loaded.eos_id is None else -1
    return [[loaded.ours.get(value, value) for value in text.ids[:last]] for text in encodings]

  @functools.cached_property
  def _loaded(self) -> "_Loaded":
    return _parse(
      self.path, vocabularies.read_file(self.path, f"give the path of a {TOKENIZER_FILE}")
    )


def role_prompt(prompts: Mapping[str, str], role: Role) -> str | None:
  """Returns the prompt of queries, or of the texts to be found; None if there is none.

  That of texts to be found has the name "document", "passage" or "corpus": the first that is not
  empty.
  """
  present = [prompts[name] for name in _ROLES[role] if name in prompts]
  return next(filter(None, present), "" if present else None)


def method_prompts(prefix: str, prompts: Mapping[str, str]) -> dict[str, str]:
  """Returns the prefixes of `encode_query` and `encode_document`, as "query" and "document".

  Args:
    prefix: That of `encode`.
    prompts: The encoder's prompts.
  """
  by_role = {role: role_prompt(prompts, role) for role in get_args(Role)}
  return {role: prefix if prompt is None else prompt for role, prompt in by_role.items()}


def padding_id(tokenizer: tokenizers.Tokenizer) -> int:
  """Returns the padding id of a tokenizer.

  Without a token for padding alone (Qwen pads with the token that ends texts), it is the id after
  all others.
  """
  added = {token.content: index for index, token in tokenizer.get_added_tokens_decoder().items()}
  own = [int(added[content]) for content in _PADDING if content in added]
  return own[0] if own else _free_id(tokenizer)


def is_free(tokenizer: tokenizers.Tokenizer | None, index: int) -> bool:
  """Returns whether an id is the one after all those of a tokenizer."""
  return tokenizer is not None and index == _free_id(tokenizer)


def _free_id(tokenizer: tokenizers.Tokenizer) -> int:
  count = tokenizer.get_vocab_size(with_added_tokens=True)
  # Without gaps, there is no need for the vocabulary, which takes longer.
  is_token = [tokenizer.id_to_token(index) is not None for index in range(count + 1)]
  if False in is_token and is_token.index(False) == count:
    return count
  return 1 + max(tokenizer.get_vocab(with_added_tokens=True).values(), default=-1)


def outline(content: bytes) -> dict[str, Any]:
  """Returns what a `tokenizer.json` holds, with the tokens and merges of its model unparsed.

  Raises:
    Exception: it is not JSON, or not that of a tokenizer.
  """
  parts = msgspec.json.decode(content, type=dict[str, msgspec.Raw])
  model = msgspec.json.decode(parts.pop("model"), type=dict[str, msgspec.Raw])
  few = {key: msgspec.json.decode(model[key]) for key in model.keys() - {"vocab", "merges"}}
  others = {key: msgspec.json.decode(part) for key, part in parts.items()}
  return {**others, "model": {**model, **few}}


def check(path: str | os.PathLike[str], record: Mapping[str, Any]) -> None:
  """Raises InputError if the ids of a tokenizer are random.

  Args:
    path: Its file, for the message.
    record: The JSON object in it.
  """
  if record["model"].get("dropout"):
    raise errors.InputError(f"{os.fspath(path)}: 'dropout' makes ids random; set it to null")


def steps(part: Mapping[str, Any] | None) -> list[Mapping[str, Any]]:
  """Returns the steps of a part of `tokenizer.json`, without the sequences that join them."""
  if part is None:
    return []
  inner = [part[key] for key in _SEQUENCES if key in part]
  return [step for inner_part in inner[0] for step in steps(inner_part)] if inner else [part]


@dataclasses.dataclass(frozen=True)
class _Loaded:
  """A tokenizer and its cached properties; ids are this library's, except `padding_id`.

  Attributes:
    ours: Maps the tokenizer's ids to this library's, if they differ.
    start_ids: Special tokens before a text.
  """

  tokenizer: Any
  content: bytes
  size: int
  padding_id: int
  eos_id: int | None
  unk_id: int | None
  ours: dict[int, int]
  start_ids: tuple[int, ...]


def save(
  tokenizer: tokenizers.Tokenizer, path: str, prefix: str, prompts: Mapping[str, str]
) -> HuggingFaceVocabulary:
  """Writes a tokenizer to a file and returns its vocabulary, which does not read it again."""
  tokenizer.save(path, pretty=False)
  vocabulary = HuggingFaceVocabulary(path, prefix, prompts)
  vocabulary.__dict__["_loaded"] = _load(path, pathlib.Path(path).read_bytes(), tokenizer)
  return vocabulary


def trim(
  vocabulary: HuggingFaceVocabulary, texts: Iterable[str], path: str
) -> tuple[HuggingFaceVocabulary, list[int]]:
  """Returns a vocabulary with the tokens of some texts, which have the same tokens in it.

  It keeps special tokens and those of one character, so that other texts have more tokens, but few
  unknown ones.

  Args:
    vocabulary: The whole vocabulary, a Unigram or WordPiece tokenizer.
    texts: The texts, without prefix.
    path: File to write.

  Returns:
    The vocabulary, and the id in the whole one of each of its ids.

  Raises:
    InputError: the tokenizer is of another kind.
  """
  loaded, record = vocabulary._loaded, json.loads(vocabulary.content)
  model, after = record["model"], record.get("post_processor") or {"type": None}
  kinds = model.get("type"), after["type"]
  if kinds[0] not in ("Unigram", "WordPiece") or kinds[1] not in (None, _TEMPLATE):
    raise errors.InputError(
      f"{vocabulary.path} is a {kinds[0]} tokenizer with {kinds[1]}; only Unigram and WordPiece "
      f"can be trimmed, with {_TEMPLATE}"
    )
  used = {loaded.padding_id, loaded.tokenizer.token_to_id(model.get("unk_token") or "")}
  used |= {token["id"] for token in record["added_tokens"]} | {model.get("unk_id")}
  # The tokens at the end of a prefix may depend on the text.
  prefixes = {"", vocabulary.prefix, *vocabulary.prompts.values()}
  for prefix, text in itertools.product(prefixes, ["", *texts]):
    used |= {*loaded.tokenizer.encode(prefix + text).ids}
  own = loaded.tokenizer.get_vocab(with_added_tokens=True)
  start = model.get("continuing_subword_prefix") or "\u2581"
  used |= {index for piece, index in own.items() if len(piece.removeprefix(start)) <= 1}
  kept = sorted(used - {None})
  new = {old: index for index, old in enumerate(kept)}
  if model["type"] == "Unigram":
    model["vocab"] = [model["vocab"][old] for old in kept if old < len(model["vocab"])]
    model["unk_id"] = new.get(model["unk_id"])
  else:
    model["vocab"] = {x: new[old] for x, old in model["vocab"].items() if old in new}
  for token in record["added_tokens"]:
    token["id"] = new[token["id"]]
  for token in after.get("special_tokens", {}).values():
    token["ids"] = [new[old] for old in token["ids"]]
  pathlib.Path(path).write_text(json.dumps(record, ensure_ascii=False), encoding="utf-8")
  made = dataclasses.replace(vocabulary, path=path)

  def swapped(index: int, pad_id: int) -> int:
    return pad_id if index == arrays.PAD_ID else arrays.PAD_ID if index == pad_id else index

  ids = (kept[swapped(index, made.padding_id)] for index in range(len(kept)))
  return made, [swapped(old, loaded.padding_id) for old in ids]


@functools.lru_cache(maxsize=4)
def _parse(path: str, content: bytes) -> _Loaded:
  """Returns the tokenizer in a file; a large one takes about a second."""
  return _load(path, content, None)


def _load(path: str, content: bytes, tokenizer: tokenizers.Tokenizer | None) -> _Loaded:
  with package_errors(path):
    record = outline(content)
    check(path, record)
    tokenizer = tokenizer or tokenizers.Tokenizer.from_str(content.decode())
    tokenizer.no_padding()
    tokenizer.no_truncation()
    size = _free_id(tokenizer)
    tokenizer.encode("a \uffff")
  if not size:
    raise errors.InputError(f"{path}: empty vocabulary")
  pad_id = padding_id(tokenizer)
  swapped = {arrays.PAD_ID: pad_id, pad_id: arrays.PAD_ID}
  own_start, own_eos = _around(path, tokenizer)
  model = record["model"]
  is_unigram = isinstance(model.get("unk_id"), int)
  unknown_token = model.get("unk_token") or ""
  own_unknown = int(model["unk_id"]) if is_unigram else tokenizer.token_to_id(unknown_token)
  eos, unknown = (
    None if value is None else swapped.get(value, value) for value in (own_eos, own_unknown)
  )
  # A text contains no padding: text that spells it is unknown, or ends the sentence.
  spelled = eos if unknown is None else unknown
  if spelled is None or arrays.PAD_ID in (eos, unknown):
    raise errors.InputError(f"{path}: no EOS or unknown token apart from padding")
  return _Loaded(
    tokenizer=tokenizer,
    content=content,
    size=max(1 + pad_id, size),
    padding_id=pad_id,
    eos_id=eos,
    unk_id=unknown,
    ours={**swapped, pad_id: spelled},
    start_ids=tuple(swapped.get(value, value) for value in own_start),
  )


@contextlib.contextmanager
def package_errors(path: str | os.PathLike[str]) -> Iterator[None]:
  """Turns exceptions and Rust panics of the package into InputError."""
  try:
    yield
  except errors.InputError:
    raise
  except BaseException as error:
    if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
      raise
    raise errors.InputError(f"{os.fspath(path)}: not a Hugging Face tokenizer: {error}") from None


def _around(path: str, tokenizer: Any) -> tuple[list[int], int | None]:
  """Returns the ids of the special tokens before a text, and the one after it or None."""
  sample = tokenizer.encode("a")
  if not any(sample.special_tokens_mask):
    return [], None
  in_text = [i for i, special in enumerate(sample.special_tokens_mask) if not special] or [-1]
  after = sample.ids[in_text[-1] + 1 :]
  if len(after) > 1:
    raise errors.InputError(
      f"{path}: {len(after)} special tokens after a text; only one is supported"
    )
  return sample.ids[: max(in_text[0], 0)], int(after[0]) if after else None
