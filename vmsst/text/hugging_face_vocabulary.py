"""Vocabularies of Hugging Face models: `tokenizer.json`, read by the package `tokenizers`.

Ids are the tokenizer's own, except padding, which is id 0 in this library. If the tokenizer pads
with another id, that id and 0 are swapped, and so are their two rows in an imported token table
(`vmsst.checkpoints.importers.bert`).
"""

import contextlib
import dataclasses
import functools
import importlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import tokenizers

from vmsst import errors
from vmsst.arrays import padding
from vmsst.files import input_files, text_fields
from vmsst.text import vocabularies
from vmsst.text.word_splitting import Languages

TOKENIZER_FILE = "tokenizer.json"
_PADDING = ("<pad>", "[PAD]")
# XLM-R: the first pieces of the SentencePiece model, the tokens of the first ids, and the last.
_SPM_SPECIAL = ["<unk>", "<s>", "</s>"]
_XLMR_SPECIAL = ("<s>", "<pad>", "</s>", "<unk>")
_MASK = "<mask>"
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
    plain = dataclasses.replace(self, prefix="")._ids(_PROBES)
    found = set()
    for ids, text_ids in zip(with_prefix, plain, strict=True):
      leading = len(ids) - len(text_ids) + start
      # None if the text has other ids after the prefix.
      found.add(tuple(ids[:leading]) if ids[leading:] == text_ids[start:] else None)
    (leading_ids,) = found if len(found) == 1 else {None}
    if leading_ids is None:
      raise errors.InputError(
        f"{self.path}: the tokens of the prefix {self.prefix!r} depend on the text after it; end "
        "it with a space"
      )
    return leading_ids

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
    own = [0 if value == self.padding_id else value for value in vocabularies.text_ids(ids, self)]
    return str(self._loaded.tokenizer.decode(own, skip_special_tokens=True))

  def _ids(self, texts: Sequence[str]) -> list[list[int]]:
    """Returns the ids of every text, including special tokens before it, without EOS token."""
    loaded = self._loaded
    with _package_errors(self.path):
      found = loaded.tokenizer.encode_batch_fast([self.prefix + text for text in texts])
    last = None if loaded.eos_id is None else -1
    return [[loaded.ours.get(value, value) for value in text.ids[:last]] for text in found]

  @functools.cached_property
  def _loaded(self) -> "_Loaded":
    return _parse(
      self.path, vocabularies.read_file(self.path, f"give the path of a {TOKENIZER_FILE}")
    )


def padding_id(path: str, record: Any) -> int:
  """Returns the padding id of a tokenizer, given the JSON object in its file.

  Raises:
    InputError: there is no padding id; the message names `path`.
  """
  try:
    found = {token["content"]: token["id"] for token in record["added_tokens"]}
  except (KeyError, TypeError):
    raise errors.InputError(f"{path}: no list of added tokens") from None
  for content in _PADDING:
    if isinstance(found.get(content), int) and found[content] >= 0:
      return int(found[content])
  raise errors.InputError(f"{path}: the added tokens contain neither '<pad>' nor '[PAD]'")


def tokenizer_of_xlmr(path: str | os.PathLike[str]) -> bytes:
  """Returns the `tokenizer.json` that gives XLM-R's ids for its SentencePiece model.

  XLM-R's ids differ from the model's: <s>, <pad>, </s> and <unk> come first, then the model's
  pieces without its first three, then <mask>.

  Raises:
    InputError: the file is not a unigram SentencePiece model with those three pieces, or the
      package `tokenizers` is not installed.
  """
  # It creates its classes at run time.
  proto: Any = importlib.import_module("sentencepiece.sentencepiece_model_pb2")
  model = proto.ModelProto()
  content = input_files.read_bytes(path)
  try:
    model.ParseFromString(content)
  except Exception as error:  # protobuf's own, whose module depends on its version
    raise errors.InputError(f"{path}: not a SentencePiece model: {error}") from None
  first = [piece.piece for piece in model.pieces[:3]]
  if model.trainer_spec.model_type != model.trainer_spec.UNIGRAM or first != _SPM_SPECIAL:
    raise errors.InputError(
      f"{path}: not a unigram SentencePiece model that starts with {', '.join(_SPM_SPECIAL)}, as "
      "that of XLM-R"
    )
  with _package_errors(path):
    return _unigram_of_xlmr(tokenizers, model)


def _unigram_of_xlmr(tokenizers: Any, model: Any) -> bytes:
  """Returns the `tokenizer.json` for a parsed SentencePiece model."""
  pieces = [(token, 0.0) for token in _XLMR_SPECIAL]
  pieces += [(piece.piece, piece.score) for piece in model.pieces[3:]]
  pieces.append((_MASK, 0.0))
  tokenizer = tokenizers.Tokenizer(tokenizers.models.Unigram(pieces, _XLMR_SPECIAL.index("<unk>")))
  tokenizer.normalizer = tokenizers.normalizers.Precompiled(
    model.normalizer_spec.precompiled_charsmap
  )
  metaspace = {"replacement": "\u2581", "prepend_scheme": "always"}
  tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Sequence(
    [
      tokenizers.pre_tokenizers.WhitespaceSplit(),
      tokenizers.pre_tokenizers.Metaspace(**metaspace),
    ]
  )
  tokenizer.decoder = tokenizers.decoders.Metaspace(**metaspace)
  tokenizer.add_special_tokens(list(_XLMR_SPECIAL))
  tokenizer.add_special_tokens([tokenizers.AddedToken(_MASK, lstrip=True)])
  tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
    single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
  )
  return str(tokenizer.to_str()).encode()


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


@functools.lru_cache(maxsize=4)
def _parse(path: str, content: bytes) -> _Loaded:
  """Returns the tokenizer in a file; a large one takes about a second."""
  with _package_errors(path):
    record = input_files.parse_json(content, path)
    tokenizer = tokenizers.Tokenizer.from_str(content.decode())
    tokenizer.no_padding()
    tokenizer.no_truncation()
    vocabulary = tokenizer.get_vocab(with_added_tokens=True)
    tokenizer.encode("a \uffff")
  if not vocabulary:
    raise errors.InputError(f"{path}: empty vocabulary")
  own = padding_id(path, record)
  swapped = {padding.PAD_ID: own, own: padding.PAD_ID}
  own_start, own_eos = _around(path, tokenizer)
  eos, unknown = (
    None if value is None else swapped.get(value, value)
    for value in (own_eos, _unknown_id(record["model"], vocabulary))
  )
  # A text contains no padding: text that spells it is unknown, or ends the sentence.
  spelled = eos if unknown is None else unknown
  if spelled is None or padding.PAD_ID in (eos, unknown):
    raise errors.InputError(f"{path}: no EOS or unknown token apart from padding")
  return _Loaded(
    tokenizer=tokenizer,
    content=content,
    size=1 + max(vocabulary.values()),
    padding_id=own,
    eos_id=eos,
    unk_id=unknown,
    ours={**swapped, own: spelled},
    start_ids=tuple(swapped.get(value, value) for value in own_start),
  )


@contextlib.contextmanager
def _package_errors(path: str | os.PathLike[str]) -> Iterator[None]:
  """Turns exceptions and Rust panics of the package into InputError."""
  try:
    yield
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


def _unknown_id(model: dict[str, Any], vocabulary: dict[str, int]) -> int | None:
  if isinstance(model.get("unk_id"), int):  # Unigram
    return int(model["unk_id"])
  return vocabulary.get(model.get("unk_token") or "")
