"""Vocabularies: text to token ids and back, the same for training and inference.

Nothing here needs TensorFlow. Padding is id 0 in every vocabulary.
"""

import dataclasses
import functools
import re
import sys
from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from vmsst import arrays, errors
from vmsst.data import word_splitting
from vmsst.data.word_splitting import Languages
from vmsst.io import input_files

# Capital letters of Unicode 14 to 17. Python versions disagree on their small letters, so
# `lowercase` keeps them.
_NEW_CAPITALS = re.compile(
  "([\u1c89\u2c2f\ua7c0\ua7cb\ua7cc\ua7ce\ua7d0\ua7d2\ua7d4\ua7d6\ua7d8\ua7da\ua7dc"
  "\U00010570-\U00010595\U00010d50-\U00010d65\U00016ea0-\U00016eb8]+)"
)


class Vocabulary(Protocol):
  """The vocabulary of a model and its tasks.

  `language` is the code of the texts' language, or one code for each text. Only vocabularies that
  split text into words by the rules of its language use it.
  """

  @property
  def size(self) -> int:
    """Number of ids, padding included."""

  @property
  def eos_id(self) -> int | None:
    """Id of the EOS token, or None."""

  @property
  def unk_id(self) -> int | None:
    """Id of text that the vocabulary cannot represent, or None."""

  @property
  def leading_ids(self) -> tuple[int, ...]:
    """Ids before the ids of every text: special tokens, then a prefix."""
    return ()

  @property
  def special_ids(self) -> tuple[int, ...]:
    """Ids of the special tokens before and after a text, in this order, without padding."""
    return () if self.eos_id is None else (self.eos_id,)

  def tokenize(self, texts: Sequence[str], language: Languages = None) -> list[list[int]]:
    """Returns the ids of every text, without EOS token."""

  def encode(
    self, texts: Sequence[str], max_length: int, language: Languages = None
  ) -> list[list[int]]:
    """Returns at most `max_length` ids of every text, including the EOS token if there is one."""
    eos_id = self.eos_id
    return [cut_with_eos(ids, max_length, eos_id) for ids in self.tokenize(texts, language)]

  def decode(self, ids: Iterable[int]) -> str:
    """Returns the text of ids up to the first EOS token, ignoring padding."""


def cut_with_eos(ids: Sequence[int], max_length: int, eos_id: int | None) -> list[int]:
  """Returns at most `max_length` ids: the first ones, and the EOS token if there is one."""
  if max_length < 1:
    raise ValueError(f"max_length must be at least 1, not {max_length}")
  end = [] if eos_id is None else [eos_id]
  return [*ids[: max_length - len(end)], *end]


def text_ids(ids: Iterable[int], vocabulary: Vocabulary) -> list[int]:
  """Returns the ids before the first EOS token, without padding.

  Raises:
    ValueError: the vocabulary does not have an id.
  """
  kept = []
  eos_id, size = vocabulary.eos_id, vocabulary.size
  for value in ids:
    if value == eos_id:
      break
    if value != arrays.PAD_ID:
      if not 0 < value < size:
        raise ValueError(f"id {value} is not in a vocabulary of {size}")
      kept.append(int(value))
  return kept


def lowercase(text: str) -> str:
  """Returns `text` in small letters, the same in every Python version."""
  if _NEW_CAPITALS.search(text):
    parts = _NEW_CAPITALS.split(text)
    return "".join(part if i % 2 else part.lower() for i, part in enumerate(parts))
  return text.lower()


@dataclasses.dataclass(frozen=True)
class SentencePieceVocabulary(Vocabulary):
  """A SentencePiece model file, read on first use. `encode` adds the model's EOS token, if any.

  Attributes:
    path: The `.model` file; remote paths such as `gs://` work too.
    lowercase: Whether to lowercase text first, as the EMS vocabulary expects.
    pretokenize: Whether to split text into words first, by the rules of its language
      (`vmsst.data.word_splitting`), before lowercasing it, as the EMS vocabulary expects.
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
    """Id of the model's EOS token, or None."""
    return _id_or_none(self._processor.eos_id())

  @property
  def unk_id(self) -> int | None:
    """Id of unknown pieces, or None."""
    return _id_or_none(self._processor.unk_id())

  @property
  def model_bytes(self) -> bytes:
    """Content of the model file."""
    return self._processor.serialized_model_proto()

  def tokenize(self, texts: Sequence[str], language: Languages = None) -> list[list[int]]:
    """Returns the ids of every text, without EOS token.

    Raises:
      InputError: with `pretokenize`, if `language` or the package that splits it is missing.
    """
    if self.pretokenize:
      texts = word_splitting.split_words(texts, language)
    return self._processor.encode([lowercase(t) for t in texts] if self.lowercase else list(texts))

  def decode(self, ids: Iterable[int]) -> str:
    """Returns the text of ids up to the first EOS token, ignoring padding."""
    return self._processor.decode(text_ids(ids, self))

  @functools.cached_property
  def _processor(self) -> Any:
    return _parse(self.path, input_files.read_bytes(self.path))


@dataclasses.dataclass(frozen=True)
class LaserVocabulary(SentencePieceVocabulary):
  """The vocabulary of LASER2 or LASER3, a file of `vmsst import`.

  As in the release, characters that do not print become spaces, Moses normalizes the punctuation of
  English, text is lowercased, and SentencePiece splits it. A piece that LASER's dictionary does not
  contain is unknown, and text that SentencePiece does not know may be in the dictionary.

  Attributes:
    path: A SentencePiece model with the pieces of the dictionary in its order, except padding,
      which is id 0. Words of the dictionary that are not pieces are control symbols.
    prepend_bos: Whether texts start with the BOS token.
  """

  lowercase: bool = dataclasses.field(default=True, init=False)
  pretokenize: bool = dataclasses.field(default=False, init=False)
  prepend_bos: bool = False

  @property
  def leading_ids(self) -> tuple[int, ...]:
    """Ids before the ids of every text: the BOS token, if any."""
    return (self._processor.bos_id(),) if self.prepend_bos else ()

  @property
  def special_ids(self) -> tuple[int, ...]:
    """Ids of the BOS token, if any, and of the EOS token."""
    return (*self.leading_ids, self._processor.eos_id())

  def tokenize(self, texts: Sequence[str], language: Languages = None) -> list[list[int]]:
    """Returns the ids of every text, without EOS token; none at all for a blank text.

    Raises:
      InputError: the package that normalizes punctuation is not installed.
    """
    specials = len(self.special_ids)
    return [x[:-1] if len(x) > specials else [] for x in self.encode(texts, sys.maxsize, language)]

  def encode(
    self, texts: Sequence[str], max_length: int, language: Languages = None
  ) -> list[list[int]]:
    """Returns at most `max_length` ids of every text, including special tokens."""
    del language
    processor, leading, eos_id = self._processor, self.leading_ids, self.eos_id
    small = [lowercase(text) for text in word_splitting.normalize_punctuation(texts)]
    # Pieces of unknown text may contain spaces, at which the original splits them.
    split = (" ".join(pieces).split() for pieces in processor.encode(small, out_type=str))
    ids = ([*leading, *processor.piece_to_id(pieces)] for pieces in split)
    return [cut_with_eos(text_ids, max_length, eos_id) for text_ids in ids]


@dataclasses.dataclass(frozen=True)
class ByteVocabulary(Vocabulary):
  """UTF-8 bytes: 0 is padding, 1 EOS, 2 unknown, byte b is 3 + b, as in ByT5.

  Attributes:
    lowercase: Whether to lowercase text first.
  """

  lowercase: bool = False

  @property
  def size(self) -> int:
    """256 bytes and 3 special ids."""
    return 259

  @property
  def eos_id(self) -> int | None:
    """Id of the EOS token."""
    return 1

  @property
  def unk_id(self) -> int | None:
    """An id that no text contains."""
    return 2

  def tokenize(self, texts: Sequence[str], language: Languages = None) -> list[list[int]]:
    """Returns the ids of every text, without EOS token, regardless of its language."""
    small = (lowercase(t) for t in texts) if self.lowercase else texts
    return [[byte + 3 for byte in text.encode("utf-8")] for text in small]

  def decode(self, ids: Iterable[int]) -> str:
    """Returns the text of ids up to the first EOS token; invalid UTF-8 becomes U+FFFD."""
    data = bytes(value - 3 for value in text_ids(ids, self) if value >= 3)
    return data.decode("utf-8", errors="replace")


def _id_or_none(value: int) -> int | None:
  return None if value < 0 else value


@functools.lru_cache(maxsize=4)
def _parse(path: str, content: bytes) -> Any:
  """Returns the processor of a model file; vocabularies of the same content share it."""
  import sentencepiece

  processor = sentencepiece.SentencePieceProcessor()
  try:
    processor.load_from_serialized_proto(content)
    pieces = processor.get_piece_size()
    processor.id_to_piece(list(range(pieces)))  # ValueError if one is not UTF-8
  except (RuntimeError, ValueError):
    pieces = 0
  if not pieces:
    raise errors.InputError(
      f"{path}: not a SentencePiece model ({len(content)} bytes); give the .model file, not "
      ".vocab, and check that it was copied completely"
    )
  if processor.pad_id() != arrays.PAD_ID:
    raise errors.InputError(
      f"{path}: id 0 must be padding but is {processor.id_to_piece(0)!r}; train one with `vmsst "
      "vocab train`, or with spm_train --pad_id=0 --eos_id=1 --unk_id=2 --bos_id=-1"
    )
  return processor
