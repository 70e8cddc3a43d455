"""Trains a SentencePiece vocabulary on the training files of a model."""

import io
import itertools
import os
import random
import re
from collections.abc import Iterator, Sequence

from vmsst import arrays, errors
from vmsst.data import vocabularies, word_splitting
from vmsst.io import text_files
from vmsst.languages import Language

MODEL_TYPES = ("unigram", "bpe")
_PLAIN_TEXT = re.compile(r".*\.txt(\.gz)?")
# SentencePiece skips sentences of more than 4,192 bytes; a character has up to 4.
_PART = re.compile(r".{1,1000}(?!\S)|.{1,1000}", re.DOTALL)
_RESERVED = "\u2585"  # SentencePiece's mark of unknown characters; it skips sentences with it

# A sentence and its language, or None if it is not needed.
_Sentence = tuple[str, Language | None]


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
    max_sentences: Maximum number of sentences, sampled at random from all files; None: all.
    languages: Codes of the two sides of every bitext, if file names do not contain them.

  Raises:
    InputError: a pattern, a file or an option is invalid, or there is too little text for `size`.
  """
  import sentencepiece

  errors.check_choice("model_type", model_type, MODEL_TYPES)
  share = character_coverage
  errors.check(0 < share <= 1, "character_coverage", share, "a number above 0, at most 1")
  files = _texts_by_file(patterns, languages, plain_text_has_language=pretokenize)
  counts = dict.fromkeys(files, 0)

  def counted() -> Iterator[_Sentence]:
    """Yields the sentences that are not blank."""
    for name, texts in files.items():
      for sentence in texts:
        if not text_files.is_blank(sentence[0]):
          counts[name] += 1
          yield sentence

  sample = _sample(counted(), max_sentences)
  sentences = [sentence for sentence, _ in sample]
  if pretokenize:
    detected = [language for _, language in sample if language is not None]
    sentences = word_splitting.split_words(sentences, detected)
  if lowercase:
    sentences = [vocabularies.lowercase(sentence) for sentence in sentences]
  parts = (part for text in sentences for part in _PART.findall(text.replace(_RESERVED, " ")))
  model = io.BytesIO()
  try:
    sentencepiece.SentencePieceTrainer.train(
      sentence_iterator=parts,
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
    # Without the location in the trainer's source.
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
        named = language is not None
        errors.check(named, "an input", path, "a name with its language, as in news.de.txt")
      texts[path] = zip(text_files.read_lines(path), itertools.repeat(language), strict=False)
    else:
      for bitext in readers.find_bitext(path, languages):
        sides = itertools.cycle((bitext.source, bitext.target))
        pairs = readers.read_pairs(bitext)
        texts[str(bitext)] = zip(itertools.chain.from_iterable(pairs), sides, strict=False)
  return texts


def _sample(sentences: Iterator[_Sentence], limit: int | None) -> list[_Sentence]:
  """Returns up to `limit` equally likely sentences.

  SentencePiece can sample too, but takes other sentences in each process, whatever the seed.
  """
  chooser = random.Random(0)
  kept = list(itertools.islice(sentences, limit))
  for count, sentence in enumerate(sentences, len(kept) + 1):
    index = chooser.randrange(count)
    if index < len(kept):
      kept[index] = sentence
  return kept
