"""Accuracy and recall of nearest neighbors and of answers, in NumPy; values are 0 to 1."""

import re
import string
from collections.abc import Iterable

import numpy as np

from vmsst.search import exact_search


def translation_accuracy(source_ND: np.ndarray, target_ND: np.ndarray) -> dict[str, float]:
  """Returns the share of sentences whose nearest sentence on the other side is their translation.

  Row i of one side translates row i of the other. Nearest is by cosine; the first among equals.
  `forward` searches the targets for each source, `backward` the sources for each target; `average`
  is the mean of both.

  Raises:
    ValueError: the shapes are not equal and [N, D], the arrays are empty, or a value is not finite.

  Examples:
    >>> source_ND = np.array([[1.0, 0.0], [0.0, 1.0]])
    >>> target_ND = np.array([[1.0, 0.1], [1.0, 0.2]])  # both are nearest to the first source
    >>> translation_accuracy(source_ND, target_ND)
    {'forward': 1.0, 'backward': 0.5, 'average': 0.75}
  """
  source_ND, target_ND = np.asarray(source_ND), np.asarray(target_ND)
  if source_ND.ndim != 2 or source_ND.shape != target_ND.shape or not source_ND.size:
    raise ValueError(
      f"both arrays must have one shape [N, D], not {source_ND.shape} and {target_ND.shape}"
    )
  gold_N = np.arange(len(source_ND))
  forward, backward = (
    float(np.mean(near.index_NK[:, 0] == gold_N))
    for near in exact_search.mutual_top_k(source_ND, target_ND, 1)
  )
  return {"forward": forward, "backward": backward, "average": (forward + backward) / 2}


def recall(near: exact_search.Neighbors, gold_N: np.ndarray, k: int) -> float:
  """Returns R@k: the share of queries with their gold row among the k nearest.

  Args:
    near: At least k neighbors of each query, or all.
    gold_N: The gold row of each query.
    k: Number of neighbors to consider.

  Raises:
    ValueError: there is no query, not one gold row per query, or k is below 1.
  """
  gold_N = np.asarray(gold_N)
  if k < 1 or not len(gold_N) or gold_N.shape != (len(near.index_NK),):
    raise ValueError(
      f"R@{k} is undefined for {len(near.index_NK)} queries and gold rows of shape {gold_N.shape}"
    )
  return float(np.mean((near.index_NK[:, :k] == gold_N[:, None]).any(axis=1)))


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
