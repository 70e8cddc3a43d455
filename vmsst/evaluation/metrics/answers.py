"""Whether an answer is right, as SQuAD, NQ-open and PAQ have it: exact match when normalized."""

import re
import string
from collections.abc import Iterable

_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(?:a|an|the)\b")


def normalized(answer: str) -> str:
  """An answer in lower case, without ASCII punctuation, English articles and spare white space.

  Examples:
    >>> normalized("The  Beatles!")
    'beatles'
  """
  return " ".join(_ARTICLES.sub(" ", answer.lower().translate(_NO_PUNCTUATION)).split())


def normalized_set(answers: Iterable[str]) -> frozenset[str]:
  """Every one of several answers, `normalized`."""
  return frozenset(map(normalized, answers))


def is_right(answers: Iterable[str], gold: frozenset[str]) -> bool:
  """Whether one of the answers, normalized, is one of the gold answers, a `normalized_set`."""
  return not gold.isdisjoint(map(normalized, answers))
