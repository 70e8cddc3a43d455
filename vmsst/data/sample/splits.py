"""Assigns meanings to the training and the validation split.

Each predicate holds a quarter of the subjects, a fifth of the places and a quarter of the times out
of the training split. A validation meaning takes all three from those: training never combines them
with this predicate, although it contains each of them with other predicates.
"""

import functools
from collections.abc import Sequence

import numpy as np

from vmsst import errors
from vmsst.data.sample import phrasebook
from vmsst.data.sample.phrasebook import Meaning

SPLITS = ("train", "validation")

# One in this many fillers of each slot is held out.
_SUBJECT_FOLDS = 4
_PLACE_FOLDS = 5
_TIME_FOLDS = 4
_SEED = 20


def num_meanings(split: str) -> int:
  """Returns the number of distinct meanings in a split."""
  return len(phrasebook.FRAMES) * len(phrasebook.PREDICATES) * int(np.prod(_choices(split)))


def slots(meaning: int, split: str = "train") -> Meaning:
  """Returns the meaning of that number; the order of meanings is pseudo-random and fixed.

  Raises:
    IndexError: the split has no meaning of that number.
  """
  total = num_meanings(split)
  if not 0 <= meaning < total:
    raise IndexError(f"meaning {meaning} is not in 0..{total - 1}, the {split} split of the sample")
  num_subjects, num_places, num_times = _choices(split)
  rest = int(_order(total)[meaning])
  rest, frame = divmod(rest, len(phrasebook.FRAMES))
  rest, time = divmod(rest, num_times)
  rest, place = divmod(rest, num_places)
  predicate, subject = divmod(rest, num_subjects)

  def pick(names: Sequence[str], folds: int, rank: int) -> str:
    return names[_allowed(len(names), folds, predicate, split)[rank]]

  frame_name = phrasebook.FRAMES[frame]
  return Meaning(
    frame=frame_name,
    subject=pick(phrasebook.SUBJECTS, _SUBJECT_FOLDS, subject),
    predicate=phrasebook.PREDICATES[predicate],
    place=pick(phrasebook.PLACES, _PLACE_FOLDS, place),
    time=pick(phrasebook.TIMES[frame_name], _TIME_FOLDS, time),
  )


def _choices(split: str) -> tuple[int, int, int]:
  """Returns the counts of subjects, places and times per predicate, equal for all predicates."""
  return (
    len(_allowed(len(phrasebook.SUBJECTS), _SUBJECT_FOLDS, 0, split)),
    len(_allowed(len(phrasebook.PLACES), _PLACE_FOLDS, 0, split)),
    len(_allowed(len(phrasebook.TIMES["present"]), _TIME_FOLDS, 0, split)),
  )


@functools.cache
def _allowed(count: int, folds: int, predicate: int, split: str) -> tuple[int, ...]:
  """Returns the indices of the fillers that a predicate takes in a split, out of `count`."""
  if split not in SPLITS:
    raise errors.InputError(f"the sample has no split {split!r}; it has {', '.join(SPLITS)}")
  held_out = split == "validation"
  return tuple(i for i in range(count) if ((i + predicate) % folds == 0) == held_out)


@functools.cache
def _order(total: int) -> np.ndarray:
  """Returns a fixed permutation, [total]; NumPy guarantees that RandomState keeps its stream."""
  return np.random.RandomState(_SEED).permutation(total)
