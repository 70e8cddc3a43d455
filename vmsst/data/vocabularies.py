"""Vocabularies, which convert text to token ids and back, and a function that trains them.

Nothing here needs TensorFlow. In every vocabulary, id 0 is padding.
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

Role = Literal["query", "document"]  # role of a text in a search
MODEL_TYPES = ("unigram", "bpe")
_PLAIN_TEXT = re.compile(r".*\.txt(\.gz)?")
# Matches up to 1,000 characters (4,000 bytes), because SentencePiece skips sentences longer than
# 4,192 bytes.
_PART = re.compile(r".{1,1000}(?!\S)|.{1,1000}", re.DOTALL)
_RESERVED = "\u2585"  # SentencePiece skips sentences that contain this character.

# A sentence and its language. The language is None if it is not needed.
_Sentence = tuple[str, "Language | None"]
# Uppercase letters added in Unicode 14 to 17. Not every Python version can lowercase them, so
# `small_letters` leaves them unchanged.
_NEW_CAPITALS = re.compile(
  "([\u1c89\u2c2f\ua7c0\ua7cb\ua7cc\ua7ce\ua7d0\ua7d2\ua7d4\ua7d6\ua7d8\ua7da\ua7dc"
  "\U00010570-\U00010595\U00010d50-\U00010d65\U00016ea0-\U00016eb8]+)"
)


class Vocabulary(Protocol):
  """Converts between texts and token ids.

  The argument `language` is one language code for all texts, or one code for each text. Only
  vocabularies that first split text into words by language-specific rules use `language`.
  """

  @property
  def size(self) -> int:
    """Number of ids, including padding."""

  @property
  def eos_id(self) -> int | None:
    """Id of the EOS token, or None."""

  @property
  def unk_id(self) -> int | None:
    """Id for text that the vocabulary cannot represent, or None."""

  @property
  def leading_ids(self) -> tuple[int, ...]:
    """Ids prepended to every text: special tokens, then any prefix."""
    return ()

  @property
  def special_ids(self) -> tuple[int, ...]:
    """Ids of the special tokens around a text, in order, without padding."""
    return () if self.eos_id is None else (self.eos_id,)

  def tokenize(self, texts: Sequence[str], language: Languages = None) -> list[list[int]]:
    """Returns the ids of each text, without an EOS token."""

  def encode(
    self, texts: Sequence[str], max_length: int, language: Languages = None
  ) -> list[list[int]]:
    """Returns at most `max_length` ids for each text, including any EOS token."""
    eos_id = self.eos_id
    return [cut_with_eos(ids, max_length, eos_id) for ids in self.tokenize(texts, language)]

  def decode(self, ids: Iterable[int]) -> str:
    """Returns the text for the ids up to the first EOS token, ignoring padding."""


def cut_with_eos(ids: Sequence[int], max_length: int, eos_id: int | None) -> list[int]:
  """Returns at most `max_length` ids, including `eos_id`, which is appended unless it is None."""
  if max_length < 1:
    raise ValueError(f"max_length must be at least 1, not {max_length}")
  end = [] if eos_id is None else [eos_id]
  return [*ids[: max_length - len(end)], *end]


def text_ids(ids: Iterable[int], vocabulary: Vocabulary) -> list[int]:
  """Returns the ids that precede the first EOS token, without padding.

  Raises:
    ValueError: If an id is outside the vocabulary.
  """
  token_ids = []
  eos_id, size = vocabulary.eos_id, vocabulary.size
  for value in ids:
    if value == eos_id:
      break
    if value != arrays.PAD_ID:
      if not 0 < value < size:
        raise ValueError(f"id {value} is outside the vocabulary, which has {size} ids")
      token_ids.append(int(value))
  return token_ids


def small_letters(text: str) -> str:
  """Lowercases `text`, with the same result in every Python version."""
  if _NEW_CAPITALS.search(text):
    pieces = _NEW_CAPITALS.split(text)
    return "".join(piece if i % 2 else piece.lower() for i, piece in enumerate(pieces))
  return text.lower()


@dataclasses.dataclass(frozen=True)
class SentencePieceVocabulary(Vocabulary):
  """A SentencePiece model, read on first use. `encode` appends the model's EOS token, if any.

  Attributes:
    path: The `.model` file. Remote paths, such as `gs://`, are supported.
    lowercase: Whether to lowercase text before tokenizing it, as the EMS vocabulary requires.
    pretokenize: Whether to split text into words by language-specific rules
      (`vmsst.data.word_splitting`) before lowercasing it, as the EMS vocabulary requires.
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
    """Id for unknown pieces, or None."""
    return _id_or_none(self._processor.unk_id())

  @property
  def model_bytes(self) -> bytes:
    """Content of the model file."""
    return self._processor.serialized_model_proto()

  def tokenize(self, texts: Sequence[str], language: Languages = None) -> list[list[int]]:
    """Returns the ids of each text, without an EOS token.

    Raises:
      InputError: If `pretokenize` is set, but `language` is None or the package that splits the
        language is not installed.
    """
    if self.pretokenize:
      texts = word_splitting.split_words(texts, language)
    return self._processor.encode([*map(small_letters, texts)] if self.lowercase else [*texts])

  def decode(self, ids: Iterable[int]) -> str:
    """Returns the text for the ids up to the first EOS token, ignoring padding."""
    return self._processor.decode(text_ids(ids, self))

  @functools.cached_property
  def _processor(self) -> Any:
    return _parse(self.path, input_files.read_bytes(self.path))


@dataclasses.dataclass(frozen=True)
class LaserVocabulary(SentencePieceVocabulary):
  """The LASER2 or LASER3 vocabulary, from a file that `vmsst import` wrote.

  As in the LASER release, nonprinting characters become spaces, Moses normalizes punctuation by
  English rules, and the text is lowercased and split by SentencePiece. LASER then looks up the
  pieces in its own dictionary. The dictionary lacks some SentencePiece pieces, and contains some
  words that SentencePiece does not know.

  Attributes:
    path: A SentencePiece model with the pieces in the order of LASER's dictionary, except that
      padding has id 0. Dictionary words that SentencePiece lacks are stored as control symbols.
    prepend_bos: Whether to prepend the BOS token to each text.
  """

  lowercase: bool = dataclasses.field(default=True, init=False)
  pretokenize: bool = dataclasses.field(default=False, init=False)
  prepend_bos: bool = False

  @property
  def leading_ids(self) -> tuple[int, ...]:
    """Ids prepended to every text: the BOS token, if any."""
    return (self._processor.bos_id(),) if self.prepend_bos else ()

  @property
  def special_ids(self) -> tuple[int, ...]:
    """Ids of the BOS token (if any) and the EOS token."""
    return (*self.leading_ids, self._processor.eos_id())

  def tokenize(self, texts: Sequence[str], language: Languages = None) -> list[list[int]]:
    """Returns the ids of each text, without an EOS token. A blank text gets no ids, not even BOS.

    Raises:
      InputError: If sacremoses, which normalizes punctuation, is not installed.
    """
    specials = len(self.special_ids)
    return [x[:-1] if len(x) > specials else [] for x in self.encode(texts, sys.maxsize, language)]

  def encode(
    self, texts: Sequence[str], max_length: int, language: Languages = None
  ) -> list[list[int]]:
    """Returns at most `max_length` ids for each text, including special tokens."""
    del language
    processor, leading, eos_id = self._processor, self.leading_ids, self.eos_id
    small = [small_letters(text) for text in word_splitting.normalize_punctuation(texts)]
    # A piece of unknown text may contain spaces. The original implementation splits the piece at
    # the spaces.
    split = (" ".join(pieces).split() for pieces in processor.encode(small, out_type=str))
    ids = ([*leading, *processor.piece_to_id(pieces)] for pieces in split)
    return [cut_with_eos(text_ids, max_length, eos_id) for text_ids in ids]


@dataclasses.dataclass(frozen=True)
class ByteVocabulary(Vocabulary):
  """UTF-8 bytes as in ByT5: id 0 is padding, 1 is EOS, 2 is unknown, and 3 + b is byte b.

  Attributes:
    lowercase: Whether to lowercase text before tokenizing it.
  """

  lowercase: bool = False

  @property
  def size(self) -> int:
    """Number of ids: 256 bytes and 3 special ids."""
    return 259

  @property
  def eos_id(self) -> int | None:
    """Id of the EOS token."""
    return 1

  @property
  def unk_id(self) -> int | None:
    """Id that never occurs, because every text can be represented."""
    return 2

  def tokenize(self, texts: Sequence[str], language: Languages = None) -> list[list[int]]:
    """Returns the ids of each text, without an EOS token. Ignores the language."""
    small = (small_letters(t) for t in texts) if self.lowercase else texts
    return [[byte + 3 for byte in text.encode("utf-8")] for text in small]

  def decode(self, ids: Iterable[int]) -> str:
    """Returns the text for the ids up to the first EOS token. Invalid UTF-8 becomes U+FFFD."""
    data = bytes(value - 3 for value in text_ids(ids, self) if value >= 3)
    return data.decode("utf-8", errors="replace")


def _id_or_none(value: int) -> int | None:
  return None if value < 0 else value


@functools.lru_cache(maxsize=4)
def _parse(path: str, content: bytes) -> Any:
  """Loads a model file's content. Vocabularies with the same content share one processor."""
  import sentencepiece

  processor = sentencepiece.SentencePieceProcessor()
  try:
    processor.load_from_serialized_proto(content)
    pieces = processor.get_piece_size()
    processor.id_to_piece(list(range(pieces)))  # This raises ValueError if a piece is not UTF-8.
  except (RuntimeError, ValueError):
    pieces = 0
  if not pieces:
    raise errors.InputError(
      f"{path}: not a SentencePiece model ({len(content)} bytes); pass the .model file, not "
      ".vocab, and check that it was copied completely"
    )
  if processor.pad_id() != arrays.PAD_ID:
    raise errors.InputError(
      f"{path}: id 0 must be padding but is {processor.id_to_piece(0)!r}; train a model with "
      "`vmsst vocab train`, or with spm_train --pad_id=0 --eos_id=1 --unk_id=2 --bos_id=-1"
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
  """Trains a SentencePiece vocabulary (ids: 0 padding, 1 EOS, 2 unknown) and writes the model file.

  The same files and options always produce the same model. Returns the number of sentences read
  from each input.

  Args:
    patterns: Files or shell patterns. Inputs are bitexts in any training format (both sides are
      used), or plain text with one sentence per line (`.txt`, `.txt.gz`).
    output: Path of the `.model` file.
    size: Number of pieces.
    model_type: "unigram" or "bpe".
    character_coverage: Fraction of the characters in the text that the pieces must cover.
    byte_fallback: Whether to represent characters that no piece covers as bytes instead of as
      unknown pieces.
    lowercase: Whether to lowercase the text first. Use the vocabulary with the same setting.
    pretokenize: Whether to split the text into words first, by language-specific rules
      (`vmsst.data.word_splitting`). Use the vocabulary with the same setting. Names of plain text
      files must then include a language code, as in `news.de.txt`.
    max_sentences: Number of sentences to sample at random from all files (default: all).
    languages: Source and target language codes for all bitexts, if the file names do not contain
      them.

  Raises:
    InputError: If a pattern, file or option is invalid, or there is too little text for `size`
      pieces.
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
      num_threads=8,  # The number of threads affects the summation order and thus the model.
      minloglevel=2,
    )
  except (RuntimeError, ValueError, OSError) as error:
    # Remove the trainer's source location from the message.
    reason = str(error).split("] ")[-1].strip() or type(error).__name__
    raise errors.InputError(
      f"cannot train {size} pieces from {len(sentences)} sentences: {reason}"
    ) from None
  with open(output, "wb") as stream:
    stream.write(model.getvalue())
  return counts


def _texts_by_file(
  patterns: str | Sequence[str], languages: tuple[str, str] | None, plain_text_has_language: bool
) -> dict[str, Iterator[_Sentence]]:
  """Returns the sentences in each input. A file is opened when its first sentence is read."""
  from vmsst.data import formats, readers

  texts: dict[str, Iterator[_Sentence]] = {}
  for path in readers.find_files(patterns):
    if _PLAIN_TEXT.fullmatch(path):
      language = None
      if plain_text_has_language:
        code = os.path.basename(path).removesuffix(".gz").removesuffix(".txt").rpartition(".")[2]
        language = formats.language_or_none(code)
        has_language = language is not None
        errors.check(has_language, "an input", path, "a name with a language code (news.de.txt)")
      texts[path] = zip(text_files.read_lines(path), itertools.repeat(language), strict=False)
    else:
      for bitext in readers.find_bitext(path, languages):
        side_languages = itertools.cycle((bitext.source, bitext.target))
        pairs = readers.read_pairs(bitext)
        texts[str(bitext)] = zip(itertools.chain.from_iterable(pairs), side_languages, strict=False)
  return texts


def _sample(sentences: Iterator[_Sentence], limit: int | None) -> list[_Sentence]:
  """Returns a uniform random sample of at most `limit` sentences.

  SentencePiece's own sampling is not used, because it differs between processes even with a fixed
  seed.
  """
  # Reservoir sampling: sentence n replaces a random sampled sentence with probability limit / n.
  chooser = random.Random(0)
  sample = list(itertools.islice(sentences, limit))
  for count, sentence in enumerate(sentences, len(sample) + 1):
    index = chooser.randrange(count)
    if index < len(sample):
      sample[index] = sentence
  return sample
