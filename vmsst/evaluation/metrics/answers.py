"""Whether an answer is right, as SQuAD, NQ-open and PAQ have it: exact match when normalised."""

import re
import string
from collections.abc import Iterable

_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(?:a|an|the)\b")


def normalised(answer: str) -> str:
  """An answer in lower case, without ASCII punctuation, English articles and spare white space.

  Examples:
    >>> normalised("The  Beatles!")
    'beatles'
  """
  return " ".join(_ARTICLES.sub(" ", answer.lower().translate(_NO_PUNCTUATION)).split())


def normalised_set(answers: Iterable[str]) -> frozenset[str]:
  """Every one of several answers, `normalised`."""
  return frozenset(map(normalised, answers))


def is_right(answers: Iterable[str], gold: frozenset[str]) -> bool:
  """Whether one of the answers, normalised, is one of the gold answers, a `normalised_set`."""
  return not gold.isdisjoint(map(normalised, answers))
