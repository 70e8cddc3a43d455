"""Vocabularies: text to token ids and back, the same for training and for inference.

The classes here need no TensorFlow. Training tokenizes through `to_seqio()`, which gives the same
ids. Padding is id 0 in every vocabulary.
"""

import dataclasses
import functools
import re
from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from vmsst import errors, padding
from vmsst.files import input_files
from vmsst.text import word_splitting
from vmsst.text.word_splitting import Languages

# Letters that came with Unicode 14 to 17 and have a small form. Python versions and TensorFlow
# disagree on them, so they stay as they are.
_YOUNG_CAPITALS = re.compile(
  "([\u1c89\u2c2f\ua7c0\ua7cb\ua7cc\ua7ce\ua7d0\ua7d2\ua7d4\ua7d6\ua7d8\ua7da\ua7dc"
  "\U00010570-\U00010595\U00010d50-\U00010d65\U00016ea0-\U00016eb8]+)"
)


class Vocabulary(Protocol):
  """What a model and its tasks need of a vocabulary.

  `language` is the code of the texts' language, or one code for each text; only vocabularies that
  split text into words by its language need it, the others do not look at it.
  """

  @property
  def size(self) -> int:
    """Number of ids, padding included."""

  @property
  def eos_id(self) -> int | None:
    """Id that ends a sentence, or None where the vocabulary has none."""

  @property
  def unk_id(self) -> int | None:
    """Id of what the vocabulary cannot write, or None."""

  def tokenize(self, texts: Sequence[str], language: Languages = None) -> list[list[int]]:
    """Ids of every text, without end mark."""

  def encode(
    self, texts: Sequence[str], max_length: int, language: Languages = None
  ) -> list[list[int]]:
    """At most `max_length` ids of every text, the end mark included where there is one."""

  def decode(self, ids: Iterable[int]) -> str:
    """The text of ids, up to the first end mark; padding is skipped."""


def lowercase(text: str) -> str:
  """`text` in small letters, alike in every Python version and in TensorFlow."""
  if _YOUNG_CAPITALS.search(text):
    parts = _YOUNG_CAPITALS.split(text)
    return "".join(part if i % 2 else part.lower() for i, part in enumerate(parts))
  return text.lower()


class _Shared:
  """What all vocabularies do alike on top of `tokenize` and `eos_id`."""

  def encode(
    self: Any, texts: Sequence[str], max_length: int, language: Languages = None
  ) -> list[list[int]]:
    """At most `max_length` ids of every text, the end mark included where there is one."""
    if max_length < 1:
      raise ValueError(f"max_length must be at least 1, not {max_length}")
    end = [] if self.eos_id is None else [self.eos_id]
    keep = max_length - len(end)
    return [ids[:keep] + end for ids in self.tokenize(texts, language)]

  def _text_ids(self: Any, ids: Iterable[int]) -> list[int]:
    """The ids before the first end mark that stand for text."""
    kept = []
    for value in ids:
      if value == self.eos_id:
        break
      if value != padding.PAD_ID:
        if not 0 < value < self.size:
          raise ValueError(f"id {value} is not in a vocabulary of {self.size}")
        kept.append(int(value))
    return kept


@dataclasses.dataclass(frozen=True)
class SentencePieceVocabulary(_Shared):
  """A SentencePiece model file.

  The file is read on first use. An end mark is appended where the model defines one.

  Attributes:
    path: The `.model` file; `gs://` and the like are understood too.
    lowercase: Whether text is lower-cased first, as the EMS vocabulary expects.
    pretokenize: Whether text is split into words first, by the rules of its language
      (`vmsst.text.word_splitting`), before it is lower-cased, as the EMS vocabulary expects.
  """

  path: str
  lowercase: bool = False
  pretokenize: bool = False

  @property
  def size(self) -> int:
    """Number of pieces."""
    return self._processor.get_piece_size()

  @property
  def eos_id(self) -> int | None:
    """Id of the model's end mark, or None."""
    return _id_or_none(self._processor.eos_id())

  @property
  def unk_id(self) -> int | None:
    """Id of unknown pieces."""
    return _id_or_none(self._processor.unk_id())

  @property
  def model_bytes(self) -> bytes:
    """The content of the model file."""
    return self._processor.serialized_model_proto()

  def tokenize(self, texts: Sequence[str], language: Languages = None) -> list[list[int]]:
    """Ids of every text, without end mark.

    Raises:
      InputError: with `pretokenize`, no language is given, or what splits it is not installed.
    """
    if self.pretokenize:
      texts = word_splitting.split_words(texts, language)
    return self._processor.encode([lowercase(t) for t in texts] if self.lowercase else list(texts))

  def decode(self, ids: Iterable[int]) -> str:
    """The text of ids, up to the first end mark; padding is skipped."""
    return self._processor.decode(self._text_ids(ids))

  @property
  def _processor(self) -> Any:
    return _load_sentencepiece(self.path)


@dataclasses.dataclass(frozen=True)
class ByteVocabulary(_Shared):
  """UTF-8 bytes: 0 is padding, 1 the end mark, 2 unknown, byte b is 3 + b, as in ByT5.

  Attributes:
    lowercase: Whether text is lower-cased first.
  """

  lowercase: bool = False

  @property
  def size(self) -> int:
    """256 bytes and 3 special ids."""
    return 259

  @property
  def eos_id(self) -> int | None:
    """Id of the end mark."""
    return 1

  @property
  def unk_id(self) -> int | None:
    """An id that no text gives."""
    return 2

  def tokenize(self, texts: Sequence[str], language: Languages = None) -> list[list[int]]:
    """Ids of every text, without end mark; all languages alike."""
    small = (lowercase(t) for t in texts) if self.lowercase else texts
    return [[byte + 3 for byte in text.encode("utf-8")] for text in small]

  def decode(self, ids: Iterable[int]) -> str:
    """The text of ids, up to the first end mark; broken UTF-8 becomes U+FFFD."""
    data = bytes(value - 3 for value in self._text_ids(ids) if value >= 3)
    return data.decode("utf-8", errors="replace")


def _id_or_none(value: int) -> int | None:
  return None if value < 0 else value


@functools.cache
def _load_sentencepiece(path: str) -> Any:
  """The processor of a model file, read once."""
  import sentencepiece

  data = _read_bytes(path)
  processor = sentencepiece.SentencePieceProcessor()
  try:
    processor.load_from_serialized_proto(data)
    pieces = processor.get_piece_size()
    processor.id_to_piece(list(range(pieces)))  # ValueError: one is not UTF-8
  except (RuntimeError, ValueError):
    pieces = 0
  if not pieces:
    raise errors.InputError(
      f"{path}: not a SentencePiece model ({len(data)} bytes): give the .model file, not .vocab, "
      "and check that it was copied whole"
    )
  if processor.pad_id() != padding.PAD_ID:
    raise errors.InputError(
      f"{path}: id 0 must be padding but is {processor.id_to_piece(0)!r}; train one with `vmsst "
      "vocab train`, or with spm_train --pad_id=0 --eos_id=1 --unk_id=2 --bos_id=-1"
    )
  return processor


def _read_bytes(path: str) -> bytes:
  try:
    return input_files.read_bytes(path)
  except errors.InputError as error:
    raise errors.InputError(
      f"vocabulary {error}; give the path of a "
      "SentencePiece model, or train one with `vmsst vocab train`"
    ) from None
