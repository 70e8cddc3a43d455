"""The sample's own SentencePiece vocabulary: where it is, and how it was made."""

import io
import pathlib

import sentencepiece

from vmsst import padding
from vmsst.tasks.sample import corpus, splits
from vmsst.tasks.sample.phrasebook import Meaning, Phrasebook

_SIZE = 3_600
_NUM_MEANINGS = 10_000
_BOUNDARY = "|"  # no piece may cross it; the trainer takes it out


def vocabulary_path() -> str:
  """Path of the SentencePiece model that comes with the sample (0 pad, 1 end, 2 unknown)."""
  return str(pathlib.Path(__file__).with_name("vocabulary.model"))


def train_vocabulary(path: str) -> None:
  """Writes that model again to `path`, from the first training meanings in every language.

  The algorithm is BPE: the unigram trainer proposes only pieces that several words share, so on
  a corpus of two thousand words it leaves most of them in scraps.
  """
  meanings = (splits.slots(number, "train") for number in range(_NUM_MEANINGS))
  texts = (_text(book, meaning) for meaning in meanings for book in corpus.PHRASEBOOKS.values())
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
  """A sentence to train on, its phrases kept apart where no blank does it."""
  if book.blank:
    return book.sentence(meaning)
  return _BOUNDARY.join([*book.words(meaning), book.stop])
