"""Retrieval metrics in NumPy: accuracy, MRR, recall, nDCG, xSIM, xSIM++ and hubness.

All metrics except hubness are between 0 and 1. xSIM follows Heffernan et al. (2022), and xSIM++
follows Chen et al. (2023).
"""

import dataclasses
import re
import string
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from vmsst.search import exact_search, margins


def translation_accuracy(
  source_ND: np.ndarray, target_ND: np.ndarray, *, texts: Sequence[Sequence[str]] | None = None
) -> dict[str, float]:
  """Returns the accuracy of translation retrieval by nearest-neighbor search (cosine).

  Row i of the targets is the translation of row i of the sources. `forward` is the share of sources
  for which the nearest target is the translation. `backward` is the share of targets for which the
  nearest source is the translation. `average` is the mean of both shares. If several rows are
  equally near, the first one counts.

  Args:
    source_ND: Source vectors.
    target_ND: Target vectors.
    texts: The source texts and the target texts, if one text can have several correct translations;
      see `pair_accuracy`.

  Raises:
    ValueError: If a vector is not finite.

  Examples:
    >>> source_ND = np.array([[1.0, 0.0], [0.0, 1.0]])
    >>> target_ND = np.array([[1.0, 0.1], [1.0, 0.2]])  # both are nearest to the first source
    >>> translation_accuracy(source_ND, target_ND)
    {'forward': 1.0, 'backward': 0.5, 'average': 0.75}
  """
  sources, targets = texts or (range(len(source_ND)),) * 2
  to_target, to_source = exact_search.mutual_top_k(source_ND, target_ND, 1)
  forward = pair_accuracy(to_target.index_NK[:, 0], sources, targets)
  backward = pair_accuracy(to_source.index_NK[:, 0], targets, sources)
  return {"forward": forward, "backward": backward, "average": (forward + backward) / 2}


def pair_accuracy(
  nearest_N: Sequence[int] | np.ndarray, sources: Sequence[Any], targets: Sequence[Any]
) -> float:
  """Returns the retrieval accuracy if a source can have several correct targets.

  A retrieved target is correct if any row pairs it with the source. For example, a question on
  several rows has several correct answers.

  Args:
    nearest_N: Row of the target retrieved for each source.
    sources: Source texts.
    targets: Target texts; row i is correct for source i.
  """
  right = {*zip(sources, targets, strict=True)}
  predicted = zip(sources, (targets[row] for row in nearest_N), strict=True)
  return float(np.mean([pair in right for pair in predicted]))


def rank_metrics(
  neighbors: exact_search.Neighbors, gold: Sequence[Mapping[int, float]], k: int
) -> dict[str, float]:
  """Returns the means over queries of `accuracy`, `MRR@k`, `R@k` and `nDCG@k`.

  * `accuracy`: whether the nearest row is relevant
  * `MRR@k`: 1 / rank of the first relevant row
  * `R@k`: share of the relevant rows that are among the k nearest
  * `nDCG@k`: sum of the relevance grades of the k nearest rows, discounted by log2(1 + rank) and
    divided by the same sum for the best possible order

  Args:
    neighbors: At least k neighbors of each query, or all rows.
    gold: Relevance grades by row for each query. Rows with grade 0 are not relevant.
    k: Number of neighbors to consider.

  Examples:
    >>> neighbors = exact_search.Neighbors(np.array([[2, 0, 1]]), np.zeros([1, 3]))
    >>> rank_metrics(neighbors, [{0: 1}], 2)
    {'accuracy': 0.0, 'MRR@2': 0.5, 'R@2': 1.0, 'nDCG@2': 0.6309297535714575}
  """
  index_QK = neighbors.index_NK[:, :k]
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
  """Lowercases an answer, and removes ASCII punctuation, English articles and extra spaces.

  Examples:
    >>> normalize_answer("The  Beatles!")
    'beatles'
  """
  return " ".join(_ARTICLES.sub(" ", answer.lower().translate(_NO_PUNCTUATION)).split())


def normalize_answers(answers: Iterable[str]) -> frozenset[str]:
  """Returns the set of normalized answers; see `normalize_answer`."""
  return frozenset(map(normalize_answer, answers))


@dataclasses.dataclass(frozen=True)
class Nearest:
  """Predicted translations of N sentences among M candidates.

  Attributes:
    cosine_N: Row of the nearest candidate by cosine; ties go to the first row.
    margin_N: Row with the highest margin among the k nearest candidates; ties go to the first row.
    hubness: Skewness, over all candidates, of the number of sentences that have the candidate among
      their k nearest (Radovanovic et al., 2010); 0 if this number is the same for all candidates.
  """

  cosine_N: np.ndarray
  margin_N: np.ndarray
  hubness: float


def nearest(source_ND: exact_search.Rows, target_MD: exact_search.Rows) -> tuple[Nearest, Nearest]:
  """Predicts a target for every source, and a source for every target.

  Two predictions are made for each text: the nearest candidate by cosine, and the candidate with
  the highest ratio margin with k = 4 neighbors, as in the soft contrastive paper. The vectors need
  not be normalized.

  Raises:
    ValueError: If a vector is not finite.
  """
  both = exact_search.mutual_top_k(source_ND, target_MD, 4)
  results = []
  for neighbors, (margin_N, _), candidates in zip(
    both, margins.best_neighbors(*both, "ratio"), (target_MD, source_ND), strict=True
  ):
    occurrences_M = np.bincount(neighbors.index_NK.ravel(), minlength=candidates.shape[0])
    centered_M = occurrences_M - occurrences_M.mean()
    variance = np.mean(centered_M**2)
    hubness = np.mean(centered_M**3) / variance**1.5 if variance else 0.0
    results.append(Nearest(neighbors.index_NK[:, 0], margin_N, float(hubness)))
  return results[0], results[1]


def error_rate(nearest_N: np.ndarray, target_texts: Sequence[str]) -> float:
  """Returns the share of predicted targets with a text that differs from the translation.

  This share is called xSIM, or xSIM++ if the targets include altered translations.

  Args:
    nearest_N: Row of the target predicted for each source.
    target_texts: The translation of each source, followed by any distractors.
  """
  return float(np.mean([target_texts[row] != target_texts[i] for i, row in enumerate(nearest_N)]))
