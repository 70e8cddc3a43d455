"""The sample's own SentencePiece vocabulary: its path and its training."""

import io
import pathlib

import sentencepiece

from vmsst.arrays import padding
from vmsst.data.sample import corpus, splits
from vmsst.data.sample.phrasebook import Meaning, Phrasebook

_SIZE = 3_600
_NUM_MEANINGS = 10_000
_BOUNDARY = "|"  # No piece crosses it; the trainer removes it.


def vocabulary_path() -> str:
  """Returns the path of the shipped SentencePiece model (ids: 0 padding, 1 EOS, 2 unknown)."""
  return str(pathlib.Path(__file__).with_name("vocabulary.model"))


def train_vocabulary(path: str) -> None:
  """Writes the shipped model again to `path`, from the first training meanings in every language.

  The algorithm is BPE: the unigram trainer proposes only pieces that several words share. On a
  corpus of two thousand words it cuts most words into fragments.
  """
  meanings = (splits.slots(number, "train") for number in range(_NUM_MEANINGS))
  books = [corpus.phrasebook(language) for language in corpus.LANGUAGES]
  texts = (_text(book, meaning) for meaning in meanings for book in books)
  model = io.BytesIO()
  sentencepiece.SentencePieceTrainer.train(
    sentence_iterator=texts,
    model_writer=model,
    model_type="bpe",
    vocab_size=_SIZE,
    character_coverage=1.0,
    byte_fallback=True,
    pretokenization_delimiter=_BOUNDARY,
    pad_id=padding.PAD_ID,
    eos_id=1,
    unk_id=2,
    bos_id=-1,
    shuffle_input_sentence=False,
    num_threads=1,
    minloglevel=1,
  )
  pathlib.Path(path).write_bytes(model.getvalue())


def _text(book: Phrasebook, meaning: Meaning) -> str:
  """Returns a training sentence, with boundaries between phrases if the language has no blanks."""
  if book.blank:
    return book.sentence(meaning)
  return _BOUNDARY.join([*book.words(meaning), book.stop])
