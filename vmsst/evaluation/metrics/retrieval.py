"""Accuracy and recall of nearest neighbors and of answers, xSIM and xSIM++, in NumPy.

All values are shares, 0 to 1. xSIM is after Heffernan et al. (2022), xSIM++ after Chen et al.
(2023).
"""

import dataclasses
import re
import string
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from vmsst.search import exact_search, margins


def translation_accuracy(
  source_ND: np.ndarray,
  target_ND: np.ndarray,
  *,
  texts: Sequence[Sequence[str]] | None = None,
) -> dict[str, float]:
  """Returns the share of sentences whose nearest sentence on the other side is their translation.

  Row i of one side translates row i of the other. Nearest is by cosine; the first among equals.
  `forward` searches the targets for each source, `backward` the sources for each target; `average`
  is the mean of both.

  Args:
    source_ND: Vectors of one side.
    target_ND: Vectors of the other side.
    texts: Sources and targets: then several targets can be right; see `pair_accuracy`.

  Raises:
    ValueError: a value is not finite.

  Examples:
    >>> source_ND = np.array([[1.0, 0.0], [0.0, 1.0]])
    >>> target_ND = np.array([[1.0, 0.1], [1.0, 0.2]])  # both are nearest to the first source
    >>> translation_accuracy(source_ND, target_ND)
    {'forward': 1.0, 'backward': 0.5, 'average': 0.75}
  """
  sides = texts or (range(len(source_ND)),) * 2
  forward, backward = (
    pair_accuracy(near.index_NK[:, 0], *both)
    for near, both in zip(
      exact_search.mutual_top_k(source_ND, target_ND, 1), (sides, sides[::-1]), strict=True
    )
  )
  return {"forward": forward, "backward": backward, "average": (forward + backward) / 2}


def pair_accuracy(
  nearest_N: Sequence[int] | np.ndarray, sources: Sequence[Any], targets: Sequence[Any]
) -> float:
  """Returns the share of sources whose nearest target is right.

  Unlike `translation_accuracy`, allows several right targets: those of all rows with the same
  source, such as the answers to a question.

  Args:
    nearest_N: Row of the nearest target of each source.
    sources: Texts; row i belongs to row i of the targets.
    targets: Texts.
  """
  right = {*zip(sources, targets, strict=True)}
  found = zip(sources, (targets[row] for row in nearest_N), strict=True)
  return float(np.mean([pair in right for pair in found]))


def rank_metrics(
  near: exact_search.Neighbors, gold: Sequence[Mapping[int, float]], k: int
) -> dict[str, float]:
  """Returns `accuracy`, `MRR@k`, `R@k` and `nDCG@k`, means over queries with several gold rows.

  `accuracy` is the share of queries whose nearest row is gold. MRR@k is the mean of 1 / rank of the
  first gold row, R@k the share of a query's gold rows among the k nearest, nDCG@k the sum of their
  grades, discounted by log2(1 + rank), over the sum in the best order.

  Args:
    near: At least k neighbors of each query, or all.
    gold: Grade of each query's gold rows; rows with a grade of 0 are not gold.
    k: Number of neighbors to consider.

  Examples:
    >>> near = exact_search.Neighbors(np.array([[2, 0, 1]]), np.zeros([1, 3]))
    >>> rank_metrics(near, [{0: 1}], 2)
    {'accuracy': 0.0, 'MRR@2': 0.5, 'R@2': 1.0, 'nDCG@2': 0.6309297535714575}
  """
  index_QK = near.index_NK[:, :k]
  gain_QK = np.array(
    [
      [grades.get(index, 0) for index in index_K]
      for index_K, grades in zip(index_QK.tolist(), gold, strict=True)
    ]
  )
  hit_QK = gain_QK > 0
  count_Q = np.array([sum(grade > 0 for grade in grades.values()) for grades in gold])
  rank_K = np.arange(1, gain_QK.shape[1] + 1)
  discount_K = 1 / np.log2(1 + rank_K)
  size = len(rank_K)
  best_Q = [np.dot(sorted(x.values())[::-1][:size], discount_K[: len(x)]) for x in gold]
  values_Q = {
    "accuracy": hit_QK[:, 0],
    f"MRR@{k}": (hit_QK / rank_K).max(axis=1),
    f"R@{k}": hit_QK.sum(axis=1) / count_Q,
    f"nDCG@{k}": gain_QK @ discount_K / best_Q,
  }
  return {name: float(value_Q.mean()) for name, value_Q in values_Q.items()}


_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(?:a|an|the)\b")


def normalize_answer(answer: str) -> str:
  """Returns an answer in lower case, without ASCII punctuation, English articles and extra spaces.

  Examples:
    >>> normalize_answer("The  Beatles!")
    'beatles'
  """
  return " ".join(_ARTICLES.sub(" ", answer.lower().translate(_NO_PUNCTUATION)).split())


def normalize_answers(answers: Iterable[str]) -> frozenset[str]:
  """Returns the `normalize_answer` answers."""
  return frozenset(map(normalize_answer, answers))


@dataclasses.dataclass(frozen=True)
class Nearest:
  """The predicted translation of each of N sentences.

  Attributes:
    cosine_N: Row of the nearest sentence by cosine; the first among equals.
    margin_N: Row of the k nearest with the best margin; the first among equals.
    hubness: Skewness of the number of the N sentences that have each sentence of the other side
      among their k nearest (Radovanovic et al., 2010); 0 if all are near equally often.
  """

  cosine_N: np.ndarray
  margin_N: np.ndarray
  hubness: float


def nearest(source_ND: exact_search.Rows, target_MD: exact_search.Rows) -> tuple[Nearest, Nearest]:
  """Predicts a target for every source, and a source for every target, by vectors of any length.

  The margin is the ratio margin among k = 4 neighbors, as in the soft contrastive paper.

  Raises:
    ValueError: a value is not finite.
  """
  forward, backward = exact_search.mutual_top_k(source_ND, target_MD, 4)
  (target_N, _), (source_M, _) = margins.best_neighbors(forward, backward, "ratio")
  counts = len(target_N), len(source_M)
  return _nearest(forward, target_N, counts[1]), _nearest(backward, source_M, counts[0])


def _nearest(near: exact_search.Neighbors, margin_N: np.ndarray, others: int) -> Nearest:
  occurrences_M = np.bincount(near.index_NK.ravel(), minlength=others)
  centered_M = occurrences_M - occurrences_M.mean()
  variance = np.mean(centered_M**2)
  hubness = np.mean(centered_M**3) / variance**1.5 if variance else 0.0
  return Nearest(near.index_NK[:, 0], margin_N, float(hubness))


def error_rate(nearest_N: np.ndarray, target_texts: Sequence[str]) -> float:
  """Returns the share of sources whose nearest target is another text than their translation.

  This is xSIM, or xSIM++ if there are changed targets.

  Args:
    nearest_N: Row of the predicted target of every source.
    target_texts: The targets: first the translations, row by row, then any others.
  """
  return float(np.mean([target_texts[row] != target_texts[i] for i, row in enumerate(nearest_N)]))
