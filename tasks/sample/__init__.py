"""A small parallel corpus in eight languages that comes with the package, written for it.

Every sentence tells who does what, where and when; the same number is the same meaning in every
language. The validation split joins subjects, predicates, places and times in ways that training
never does (see `vmsst.tasks.sample.splits`). Nothing here imports TensorFlow.
"""

from vmsst.tasks.sample.corpus import LANGUAGES, load_sample, sentence
from vmsst.tasks.sample.phrasebook import Meaning
from vmsst.tasks.sample.splits import SPLITS, num_meanings, slots
from vmsst.tasks.sample.vocabulary import train_vocabulary, vocabulary_path

__all__ = [
  "LANGUAGES",
  "SPLITS",
  "Meaning",
  "load_sample",
  "num_meanings",
  "sentence",
  "slots",
  "train_vocabulary",
  "vocabulary_path",
]
