"""Vocabularies of Hugging Face models: `tokenizer.json`, read by the package `tokenizers`.

Ids are the tokenizer's own, but for padding, which is id 0 in this library: where the tokenizer
pads with another id, that one and 0 have changed places, as have the two rows of an imported token
table (`vmsst.checkpoints.importers.bert`).
"""

import contextlib
import dataclasses
import functools
import importlib
import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from vmsst import errors, padding
from vmsst.files import input_files
from vmsst.text.word_splitting import Languages

TOKENIZER_FILE = "tokenizer.json"
_PADDING = ("<pad>", "[PAD]")
# The first pieces of XLM-R's SentencePiece model, and its first and last ids.
_SPM_MARKS = ["<unk>", "<s>", "</s>"]
_XLMR_MARKS = ("<s>", "<pad>", "</s>", "<unk>")
_MASK = "<mask>"


@dataclasses.dataclass(frozen=True)
class HuggingFaceVocabulary:
  """A tokenizer file of Hugging Face; text gives the ids that the model's own tokenizer gives.

  The file is read on first use. The marks that the tokenizer sets around a text ([CLS] and [SEP] of
  BERT, <s> and </s> of XLM-R) are part of its ids: those in front come with `tokenize`, the one
  behind is the end mark. Truncation and padding that the file asks for are left out: both are the
  library's.

  Attributes:
    path: The `tokenizer.json`; `gs://` and the like are understood too.
    prefix: What is put before every text, such as E5's "query: ".
  """

  path: str
  prefix: str = ""

  @property
  def size(self) -> int:
    """Number of ids, padding included."""
    return self._loaded.size

  @property
  def eos_id(self) -> int | None:
    """Id of the mark behind a sentence, or None."""
    return self._loaded.eos_id

  @property
  def unk_id(self) -> int | None:
    """Id of what the tokenizer cannot write, or None."""
    return self._loaded.unk_id

  @property
  def padding_id(self) -> int:
    """The tokenizer's own id of padding, which has changed places with 0."""
    return self._loaded.padding_id

  @property
  def content(self) -> bytes:
    """What the file holds."""
    return self._loaded.content

  def tokenize(self, texts: Sequence[str], language: Languages = None) -> list[list[int]]:
    """Ids of every text, without end mark; all languages alike.

    An empty text has none, not even the mark in front, so that training can leave its pair out.
    """
    del language
    return [ids if text.strip() else [] for text, ids in zip(texts, self._ids(texts), strict=True)]

  def encode(
    self, texts: Sequence[str], max_length: int, language: Languages = None
  ) -> list[list[int]]:
    """At most `max_length` ids of every text, those of its marks included."""
    del language
    if max_length < 1:
      raise ValueError(f"max_length must be at least 1, not {max_length}")
    end = [] if self.eos_id is None else [self.eos_id]
    keep = max_length - len(end)
    return [ids[:keep] + end for ids in self._ids(texts)]

  def decode(self, ids: Iterable[int]) -> str:
    """The text of ids, up to the first end mark; padding and marks are skipped."""
    kept = []
    for value in ids:
      if value == self.eos_id:
        break
      if value != padding.PAD_ID:
        if not 0 < value < self.size:
          raise ValueError(f"id {value} is not in a vocabulary of {self.size}")
        # Where padding changes places with 0, no text has 0.
        kept.append(0 if value == self.padding_id else int(value))
    return str(self._loaded.tokenizer.decode(kept, skip_special_tokens=True))

  def _ids(self, texts: Sequence[str]) -> list[list[int]]:
    """Ids of every text, its marks in front included, without end mark."""
    loaded = self._loaded
    with _package_errors(self.path):
      found = loaded.tokenizer.encode_batch_fast([self.prefix + text for text in texts])
    last = None if loaded.eos_id is None else -1
    return [[loaded.ours.get(value, value) for value in text.ids[:last]] for text in found]

  @functools.cached_property
  def _loaded(self) -> "_Loaded":
    return _parse(self.path, _read_bytes(self.path))


def padding_id(path: str, record: Any) -> int:
  """The id that a tokenizer pads with, by the object in its file.

  Raises:
    InputError: it has none; the message names `path`.
  """
  try:
    found = {token["content"]: token["id"] for token in record["added_tokens"]}
  except (KeyError, TypeError):
    raise errors.InputError(f"{path} has no list of added tokens") from None
  for content in _PADDING:
    if isinstance(found.get(content), int) and found[content] >= 0:
      return int(found[content])
  raise errors.InputError(f"{path} has neither '<pad>' nor '[PAD]' among its added tokens")


def tokenizer_of_xlmr(path: str | os.PathLike[str]) -> bytes:
  """The `tokenizer.json` that gives the ids of XLM-R for its SentencePiece model.

  XLM-R's ids are not the model's: <s>, <pad>, </s> and <unk> stand in front, the model's own pieces
  follow without its first three, and <mask> comes last.

  Raises:
    InputError: the file is no SentencePiece model of the unigram kind with those three, or the
      package that makes tokenizers is not installed.
  """
  tokenizers = _import_tokenizers(path)
  # Its classes are made at run time.
  proto: Any = importlib.import_module("sentencepiece.sentencepiece_model_pb2")
  model = proto.ModelProto()
  content = input_files.read_bytes(path)
  try:
    model.ParseFromString(content)
  except Exception as error:  # protobuf's own, whose place differs from version to version
    raise errors.InputError(f"{path} is no SentencePiece model: {error}") from None
  first = [piece.piece for piece in model.pieces[:3]]
  if model.trainer_spec.model_type != model.trainer_spec.UNIGRAM or first != _SPM_MARKS:
    raise errors.InputError(
      f"{path} is no SentencePiece model of the unigram kind that starts with "
      f"{', '.join(_SPM_MARKS)}, as that of XLM-R"
    )
  with _package_errors(path):
    return _unigram_of_xlmr(tokenizers, model)


def _unigram_of_xlmr(tokenizers: Any, model: Any) -> bytes:
  """The `tokenizer.json` of a SentencePiece model as protobuf has it."""
  pieces = [(mark, 0.0) for mark in _XLMR_MARKS]
  pieces += [(piece.piece, piece.score) for piece in model.pieces[3:]]
  pieces.append((_MASK, 0.0))
  tokenizer = tokenizers.Tokenizer(tokenizers.models.Unigram(pieces, _XLMR_MARKS.index("<unk>")))
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
  tokenizer.add_special_tokens(list(_XLMR_MARKS))
  tokenizer.add_special_tokens([tokenizers.AddedToken(_MASK, lstrip=True)])
  tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
    single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
  )
  return str(tokenizer.to_str()).encode()


def _read_bytes(path: str) -> bytes:
  try:
    return input_files.read_bytes(path)
  except errors.InputError as error:
    raise errors.InputError(f"vocabulary {error}; give the path of a {TOKENIZER_FILE}") from None


@dataclasses.dataclass(frozen=True)
class _Loaded:
  """A tokenizer and what is asked of it again and again; ids are ours, but for `padding_id`.

  Attributes:
    ours: Our ids, by the tokenizer's, of those that differ.
  """

  tokenizer: Any
  content: bytes
  size: int
  padding_id: int
  eos_id: int | None
  unk_id: int | None
  ours: dict[int, int]


@functools.lru_cache(maxsize=4)
def _parse(path: str, content: bytes) -> _Loaded:
  """The tokenizer that a file holds; that of a large one takes a second."""
  tokenizers = _import_tokenizers(path)
  with _package_errors(path):
    record = input_files.parse_json(content, path)
    tokenizer = tokenizers.Tokenizer.from_str(content.decode())
    tokenizer.no_padding()
    tokenizer.no_truncation()
    vocabulary = tokenizer.get_vocab(with_added_tokens=True)
    tokenizer.encode("a \uffff")
  if not vocabulary:
    raise errors.InputError(f"{path} has no vocabulary")
  own = padding_id(path, record)
  swapped = {padding.PAD_ID: own, own: padding.PAD_ID}
  eos, unknown = (
    None if value is None else swapped.get(value, value)
    for value in (_end_mark(path, tokenizer), _unknown_id(record["model"], vocabulary))
  )
  # Within a text there is no padding: what spells it is unknown, or ends the sentence.
  spelled = eos if unknown is None else unknown
  if spelled is None or padding.PAD_ID in (eos, unknown):
    raise errors.InputError(f"{path} has no end mark or unknown token of another id than padding")
  return _Loaded(
    tokenizer=tokenizer,
    content=content,
    size=1 + max(vocabulary.values()),
    padding_id=own,
    eos_id=eos,
    unk_id=unknown,
    ours={**swapped, own: spelled},
  )


@contextlib.contextmanager
def _package_errors(path: str | os.PathLike[str]) -> Iterator[None]:
  """Turns what the package raises into InputError: plain exceptions, and a Rust panic."""
  try:
    yield
  except BaseException as error:
    if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
      raise
    raise errors.InputError(f"{os.fspath(path)} is no tokenizer of Hugging Face: {error}") from None


def _import_tokenizers(path: str | os.PathLike[str]) -> Any:
  """The package `tokenizers`, which is optional."""
  try:
    import tokenizers
  except ModuleNotFoundError:
    raise errors.InputError(
      f"{os.fspath(path)} is read by the package tokenizers, which is not installed: pip install "
      "'vmsst[hugging-face]'"
    ) from None
  return tokenizers


def _end_mark(path: str, tokenizer: Any) -> int | None:
  """The mark that the tokenizer sets behind a text, or None."""
  sample = tokenizer.encode("a")
  if not any(sample.special_tokens_mask):
    return None
  in_text = (i for i, mark in enumerate(sample.special_tokens_mask) if not mark)
  text_end = max(in_text, default=-1) + 1
  marks = sample.ids[text_end:]
  if len(marks) > 1:
    raise errors.InputError(
      f"{path} sets {len(marks)} marks behind a text; at most one can be used"
    )
  return int(marks[0]) if marks else None


def _unknown_id(model: dict[str, Any], vocabulary: dict[str, int]) -> int | None:
  if isinstance(model.get("unk_id"), int):  # Unigram
    return int(model["unk_id"])
  return vocabulary.get(model.get("unk_token") or "")
