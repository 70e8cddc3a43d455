"""Exact match of answers after normalization, as in SQuAD, NQ-open and PAQ."""

import re
import string
from collections.abc import Iterable

_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(?:a|an|the)\b")


def normalized(answer: str) -> str:
  """Returns an answer in lower case, without ASCII punctuation, English articles and extra spaces.

  Examples:
    >>> normalized("The  Beatles!")
    'beatles'
  """
  return " ".join(_ARTICLES.sub(" ", answer.lower().translate(_NO_PUNCTUATION)).split())


def normalized_set(answers: Iterable[str]) -> frozenset[str]:
  """Returns the `normalized` answers."""
  return frozenset(map(normalized, answers))
