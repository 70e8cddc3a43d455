"""Trains a SentencePiece vocabulary on the files that a model is to be trained on."""

import dataclasses
import io
import itertools
import os
import random
import re
from collections.abc import Iterator, Sequence

from vmsst import errors, padding
from vmsst import languages as languages_lib
from vmsst.files import atomic_files, text_files
from vmsst.languages import Language
from vmsst.text import vocabularies, word_splitting

MODEL_TYPES = ("unigram", "bpe")
_PLAIN_TEXT = re.compile(r".*\.txt(\.gz)?")

# A sentence and its language; None where nothing needs it.
_Sentence = tuple[str, Language | None]


@dataclasses.dataclass(frozen=True)
class VocabularyReport:
  """What a vocabulary was trained on.

  Attributes:
    path: The model file.
    size: Its number of pieces.
    sentences_by_file: For each input, how many sentences were used of how many.
  """

  path: str
  size: int
  sentences_by_file: dict[str, tuple[int, int]]


def train_vocabulary(
  patterns: str | Sequence[str],
  output: str,
  *,
  size: int,
  model_type: str = "unigram",
  character_coverage: float = 0.9995,
  byte_fallback: bool = False,
  lowercase: bool = False,
  pretokenize: bool = False,
  max_sentences: int | None = None,
  languages: tuple[str, str] | None = None,
) -> VocabularyReport:
  """Trains a vocabulary with ids pad 0, eos 1, unk 2 and no bos, and writes its `.model` file.

  The same files and options give the same model. The file appears only when it is complete.

  Args:
    patterns: Files or shell patterns of bitext (as in training; both sides are used) or of plain
      text, one sentence a line (`.txt`, `.txt.gz`).
    output: Path of the model file.
    size: Number of pieces.
    model_type: "unigram" or "bpe".
    character_coverage: Share of all characters that get pieces of their own.
    byte_fallback: Whether other characters are written as bytes rather than as unknown.
    lowercase: Whether the text is lower-cased first; the vocabulary must then be used so too.
    pretokenize: Whether the text is split into words first, by the rules of its language
      (`vmsst.text.word_splitting`); the vocabulary must then be used so too. Names of plain text
      then say what language it is in: `news.de.txt`.
    max_sentences: Sentences used at most, drawn at random and as evenly over the files as their
      sizes allow; None is all.
    languages: Codes of the two sides of every bitext, where file names do not tell.

  Raises:
    InputError: a pattern, a file or an option is wrong, or the text is too little for `size`.
  """
  import sentencepiece

  if model_type not in MODEL_TYPES:
    raise errors.InputError(f"model type {model_type!r} is not one of {', '.join(MODEL_TYPES)}")
  folder = os.path.dirname(os.path.abspath(output))
  if not os.path.isdir(folder):
    raise errors.InputError(f"{output}: its folder {folder} does not exist")
  files = _texts_by_file(patterns, languages, plain_text_has_language=pretokenize)
  used, sample = _sample(files, max_sentences)
  sentences = [sentence for sentence, _ in sample]
  if pretokenize:
    found = [language for _, language in sample if language is not None]
    sentences = word_splitting.split_words(sentences, found)
  if lowercase:
    sentences = [vocabularies.lowercase(sentence) for sentence in sentences]
  model = io.BytesIO()
  try:
    sentencepiece.SentencePieceTrainer.train(
      sentence_iterator=iter(sentences),
      model_writer=model,
      vocab_size=size,
      model_type=model_type,
      character_coverage=character_coverage,
      byte_fallback=byte_fallback,
      pad_id=padding.PAD_ID,
      eos_id=1,
      unk_id=2,
      bos_id=-1,
      num_threads=8,  # Fixed: the order of sums, hence the model, depends on it.
      minloglevel=2,
    )
  except (RuntimeError, ValueError, OSError) as error:
    raise errors.InputError(
      f"no vocabulary of {size} pieces from {len(sentences)} sentences: {_reason(error)}"
    ) from None
  atomic_files.write_bytes(output, model.getvalue())
  return VocabularyReport(output, vocabularies.SentencePieceVocabulary(output).size, used)


def _texts_by_file(
  patterns: str | Sequence[str], languages: tuple[str, str] | None, plain_text_has_language: bool
) -> dict[str, Iterator[_Sentence]]:
  """The sentences of every input; a file is opened when its first is asked for."""
  from vmsst.bitext import readers

  texts: dict[str, Iterator[_Sentence]] = {}
  for path in readers.find_files(patterns):
    if _PLAIN_TEXT.fullmatch(path):
      language = _language_of(path) if plain_text_has_language else None
      texts[path] = zip(text_files.read_lines(path), itertools.repeat(language), strict=False)
    else:
      for bitext in readers.find_bitext(path, languages):
        sides = itertools.cycle((bitext.source, bitext.target))
        pairs = readers.read_pairs(bitext)
        texts[str(bitext)] = zip(itertools.chain.from_iterable(pairs), sides, strict=False)
  return texts


def _language_of(path: str) -> Language:
  """The language that the name of a file of plain text tells: `news.de.txt.gz`."""
  stem = os.path.basename(path).removesuffix(".gz").removesuffix(".txt")
  try:
    return languages_lib.language(stem.rpartition(".")[2])
  except errors.InputError:
    raise errors.InputError(
      f"{path}: to split it into words, its language has to stand in its name, as in news.de.txt: "
      "rename it"
    ) from None


def _sample(
  texts: dict[str, Iterator[_Sentence]], limit: int | None
) -> tuple[dict[str, tuple[int, int]], list[_Sentence]]:
  """How many sentences of how many each file gives, and those sentences.

  Small files give all they have, the others equal shares of what is left.
  """
  kept: dict[str, list[_Sentence]] = {}
  counts: dict[str, int] = {}
  for name, sentences in texts.items():
    kept[name], counts[name] = _reservoir(sentences, limit, seed=len(kept))
  left = limit
  for position, name in enumerate(sorted(kept, key=lambda name: len(kept[name]))):
    share = len(kept[name]) if left is None else left // (len(kept) - position)
    kept[name] = kept[name][:share]
    if left is not None:
      left -= len(kept[name])
  used = {name: (len(kept[name]), counts[name]) for name in texts}
  return used, [sentence for name in texts for sentence in kept[name]]


def _reservoir(
  sentences: Iterator[_Sentence], limit: int | None, *, seed: int
) -> tuple[list[_Sentence], int]:
  """At most `limit` sentences, each equally likely, in random order if limited; and the total."""
  chooser = random.Random(seed)
  kept: list[_Sentence] = []
  count = 0
  for sentence in sentences:
    if not sentence[0].strip():
      continue
    count += 1
    if limit is None or len(kept) < limit:
      kept.append(sentence)
    else:
      place = chooser.randrange(count)
      if place < limit:
        kept[place] = sentence
  if limit is not None:
    chooser.shuffle(kept)
  return kept, count


def _reason(error: Exception) -> str:
  """The trainer's message without its place in the source code."""
  return str(error).split("] ")[-1].strip() or type(error).__name__
