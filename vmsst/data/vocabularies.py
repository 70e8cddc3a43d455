"""Vocabularies: text to token ids and back, for training and inference; and how to train them.

Nothing here needs TensorFlow. Padding is id 0 in every vocabulary.
"""

import dataclasses
import functools
import io
import itertools
import os
import random
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol

from vmsst import arrays, errors
from vmsst.data import word_splitting
from vmsst.data.word_splitting import Languages
from vmsst.io import input_files, text_files

if TYPE_CHECKING:
  from vmsst.languages import Language

Role = Literal["query", "document"]
"""What a text is in a search."""
MODEL_TYPES = ("unigram", "bpe")
_PLAIN_TEXT = re.compile(r".*\.txt(\.gz)?")
# SentencePiece skips sentences of more than 4,192 bytes; a character has up to 4.
_PART = re.compile(r".{1,1000}(?!\S)|.{1,1000}", re.DOTALL)
_RESERVED = "\u2585"  # SentencePiece's mark of unknown characters; it skips sentences with it

# A sentence and its language, or None if it is not needed.
_Sentence = tuple[str, "Language | None"]
# Capital letters of Unicode 14 to 17. Python versions disagree on their small letters, so
# `small_letters` does not change them.
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
    """Returns at most `max_length` ids of every text, including the EOS token, if any."""
    eos_id = self.eos_id
    return [cut_with_eos(ids, max_length, eos_id) for ids in self.tokenize(texts, language)]

  def decode(self, ids: Iterable[int]) -> str:
    """Returns the text of ids up to the first EOS token, ignoring padding."""


def cut_with_eos(ids: Sequence[int], max_length: int, eos_id: int | None) -> list[int]:
  """Returns at most `max_length` ids: the first ones, and the EOS token, if any."""
  if max_length < 1:
    raise ValueError(f"max_length must be at least 1, not {max_length}")
  end = [] if eos_id is None else [eos_id]
  return [*ids[: max_length - len(end)], *end]


def text_ids(ids: Iterable[int], vocabulary: Vocabulary) -> list[int]:
  """Returns the ids before the first EOS token, without padding.

  Raises:
    ValueError: the vocabulary does not have an id.
  """
  token_ids = []
  eos_id, size = vocabulary.eos_id, vocabulary.size
  for value in ids:
    if value == eos_id:
      break
    if value != arrays.PAD_ID:
      if not 0 < value < size:
        raise ValueError(f"id {value} is not in a vocabulary of {size}")
      token_ids.append(int(value))
  return token_ids


def small_letters(text: str) -> str:
  """Returns `text` in small letters, the same in every Python version."""
  if _NEW_CAPITALS.search(text):
    pieces = _NEW_CAPITALS.split(text)
    return "".join(piece if i % 2 else piece.lower() for i, piece in enumerate(pieces))
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
    return self._processor.encode(
      [small_letters(t) for t in texts] if self.lowercase else list(texts)
    )

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
    small = [small_letters(text) for text in word_splitting.normalize_punctuation(texts)]
    # Pieces of unknown text may contain spaces. The original implementation splits them there.
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
    small = (small_letters(t) for t in texts) if self.lowercase else texts
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


def train_vocabulary(
  patterns: str | Sequence[str],
  output: str | os.PathLike[str],
  *,
  size: int,
  model_type: str = "unigram",
  character_coverage: float = 0.9995,
  byte_fallback: bool = False,
  lowercase: bool = False,
  pretokenize: bool = False,
  max_sentences: int | None = None,
  languages: tuple[str, str] | None = None,
) -> dict[str, int]:
  """Trains a vocabulary with ids pad 0, eos 1, unk 2 and no bos, and writes its `.model` file.

  The same files and options give the same model. Returns the number of sentences of each input.

  Args:
    patterns: Files or shell patterns of bitext (as in training; both sides are used) or of plain
      text, one sentence per line (`.txt`, `.txt.gz`).
    output: Path of the model file.
    size: Number of pieces.
    model_type: "unigram" or "bpe".
    character_coverage: Share of characters that the pieces cover.
    byte_fallback: Whether other characters become bytes instead of unknown.
    lowercase: Whether to lowercase the text first; use the vocabulary with the same option.
    pretokenize: Whether to split the text into words first, by the rules of its language
      (`vmsst.data.word_splitting`); use the vocabulary with the same option. Names of plain text
      files must then include the language: `news.de.txt`.
    max_sentences: Maximum number of sentences, sampled at random from all files (default: all).
    languages: Codes of the two sides of every bitext, if file names do not contain them.

  Raises:
    InputError: a pattern, a file or an option is invalid, or the text is too short for `size`.
  """
  import sentencepiece

  errors.check_choice("model_type", model_type, MODEL_TYPES)
  share = character_coverage
  errors.check(0 < share <= 1, "character_coverage", share, "a number above 0, at most 1")
  files = _texts_by_file(patterns, languages, plain_text_has_language=pretokenize)
  counts = dict.fromkeys(files, 0)

  def visible_sentences() -> Iterator[_Sentence]:
    """Yields the sentences that are not blank."""
    for name, texts in files.items():
      for sentence in texts:
        if not text_files.is_blank(sentence[0]):
          counts[name] += 1
          yield sentence

  sample = _sample(visible_sentences(), max_sentences)
  sentences = [sentence for sentence, _ in sample]
  if pretokenize:
    detected = [language for _, language in sample if language is not None]
    sentences = word_splitting.split_words(sentences, detected)
  if lowercase:
    sentences = [small_letters(sentence) for sentence in sentences]
  chunks = (chunk for text in sentences for chunk in _PART.findall(text.replace(_RESERVED, " ")))
  model = io.BytesIO()
  try:
    sentencepiece.SentencePieceTrainer.train(
      sentence_iterator=chunks,
      model_writer=model,
      vocab_size=size,
      model_type=model_type,
      character_coverage=character_coverage,
      byte_fallback=byte_fallback,
      pad_id=arrays.PAD_ID,
      eos_id=1,
      unk_id=2,
      bos_id=-1,
      num_threads=8,  # fixed: the order of summation, and so the model, depends on it
      minloglevel=2,
    )
  except (RuntimeError, ValueError, OSError) as error:
    # Remove the location in the trainer's source from the message.
    reason = str(error).split("] ")[-1].strip() or type(error).__name__
    raise errors.InputError(
      f"no vocabulary of {size} pieces from {len(sentences)} sentences: {reason}"
    ) from None
  with open(output, "wb") as stream:
    stream.write(model.getvalue())
  return counts


def _texts_by_file(
  patterns: str | Sequence[str], languages: tuple[str, str] | None, plain_text_has_language: bool
) -> dict[str, Iterator[_Sentence]]:
  """Returns the sentences of every input; a file is opened when its first sentence is read."""
  from vmsst.data import formats, readers

  texts: dict[str, Iterator[_Sentence]] = {}
  for path in readers.find_files(patterns):
    if _PLAIN_TEXT.fullmatch(path):
      language = None
      if plain_text_has_language:
        code = os.path.basename(path).removesuffix(".gz").removesuffix(".txt").rpartition(".")[2]
        language = formats.language_or_none(code)
        has_language = language is not None
        errors.check(has_language, "an input", path, "a name with its language, as in news.de.txt")
      texts[path] = zip(text_files.read_lines(path), itertools.repeat(language), strict=False)
    else:
      for bitext in readers.find_bitext(path, languages):
        side_languages = itertools.cycle((bitext.source, bitext.target))
        pairs = readers.read_pairs(bitext)
        texts[str(bitext)] = zip(itertools.chain.from_iterable(pairs), side_languages, strict=False)
  return texts


def _sample(sentences: Iterator[_Sentence], limit: int | None) -> list[_Sentence]:
  """Returns up to `limit` equally likely sentences.

  SentencePiece can sample, too, but its sample differs between processes, whatever the seed.
  """
  # Reservoir sampling: sentence n replaces a random one with probability limit / n.
  chooser = random.Random(0)
  sample = list(itertools.islice(sentences, limit))
  for count, sentence in enumerate(sentences, len(sample) + 1):
    index = chooser.randrange(count)
    if index < len(sample):
      sample[index] = sentence
  return sample
