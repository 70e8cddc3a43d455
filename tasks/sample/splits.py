"""Which meanings are trained on, and which only validated with.

Each predicate keeps a quarter of the subjects, a fifth of the places and a quarter of the times
away from the training split. A validation meaning takes all three from those: it joins its
predicate to a subject, a place and a time that training never joins to it, although training has
every one of them with other predicates.
"""

import functools
from collections.abc import Sequence

import numpy as np

from vmsst import errors
from vmsst.tasks.sample import phrasebook
from vmsst.tasks.sample.phrasebook import Meaning

SPLITS = ("train", "validation")

# One of so many is held out, of each slot.
_SUBJECT_FOLDS = 4
_PLACE_FOLDS = 5
_TIME_FOLDS = 4
_SEED = 20


def num_meanings(split: str) -> int:
  """Number of distinct meanings in a split."""
  return len(phrasebook.FRAMES) * len(phrasebook.PREDICATES) * int(np.prod(_choices(split)))


def slots(meaning: int, split: str = "train") -> Meaning:
  """What the meaning of that number says; the numbers' order looks random and never changes.

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
  """How many subjects, places and times a predicate has; the same number for each of them."""
  return (
    len(_allowed(len(phrasebook.SUBJECTS), _SUBJECT_FOLDS, 0, split)),
    len(_allowed(len(phrasebook.PLACES), _PLACE_FOLDS, 0, split)),
    len(_allowed(len(phrasebook.TIMES["present"]), _TIME_FOLDS, 0, split)),
  )


@functools.cache
def _allowed(count: int, folds: int, predicate: int, split: str) -> tuple[int, ...]:
  """Those of `count` fillers that a predicate takes in a split."""
  if split not in SPLITS:
    raise errors.InputError(f"the sample has no split {split!r}; it has {', '.join(SPLITS)}")
  held_out = split == "validation"
  return tuple(i for i in range(count) if ((i + predicate) % folds == 0) == held_out)


@functools.cache
def _order(total: int) -> np.ndarray:
  """A fixed permutation, [total]; NumPy promises that RandomState never changes its stream."""
  return np.random.RandomState(_SEED).permutation(total)
