"""A small parallel corpus in eight languages that ships with the package.

Every sentence says who does what, where and when. A number stands for the same meaning in every
language. The validation split combines subjects, predicates, places and times that training never
combines (see `vmsst.tasks.sample.splits`). Nothing here imports TensorFlow.
"""

from vmsst.tasks.sample.corpus import LANGUAGES, sentence
from vmsst.tasks.sample.phrasebook import Meaning
from vmsst.tasks.sample.splits import SPLITS, num_meanings, slots
from vmsst.tasks.sample.vocabulary import train_vocabulary, vocabulary_path

__all__ = [
  "LANGUAGES",
  "SPLITS",
  "Meaning",
  "num_meanings",
  "sentence",
  "slots",
  "train_vocabulary",
  "vocabulary_path",
]
