"""A small parallel corpus in eight languages that ships with the package.

Every sentence says who does what, where and when. A number stands for the same meaning in every
language. The validation split combines subjects, predicates, places and times that training never
combines (see `vmsst.data.sample.splits`). Nothing here imports TensorFlow.
"""

from vmsst.data.sample.corpus import LANGUAGES, load_sample, other_codes, sentence
from vmsst.data.sample.phrasebook import Meaning
from vmsst.data.sample.splits import SPLITS, num_meanings, slots
from vmsst.data.sample.vocabulary import train_vocabulary, vocabulary_path

__all__ = [
  "LANGUAGES",
  "SPLITS",
  "Meaning",
  "load_sample",
  "num_meanings",
  "other_codes",
  "sentence",
  "slots",
  "train_vocabulary",
  "vocabulary_path",
]
