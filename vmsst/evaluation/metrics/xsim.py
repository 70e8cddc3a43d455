"""xSIM and xSIM++: error rates of nearest sentences by margin, in NumPy.

After Heffernan et al. (2022) and Chen et al. (2023), with the settings of the soft contrastive
paper: k = 4 neighbors and the ratio margin. Error rates are shares, 0 to 1.
"""

import collections
import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from vmsst.search import exact_search, margins

MISALIGNED = "Misaligned"
"""The type of an error that is not a changed version of the sentence's own translation."""


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


def nearest(
  source_ND: exact_search.Rows,
  target_MD: exact_search.Rows,
  *,
  margin: margins.Margin = "ratio",
  neighbors: int = 4,
) -> tuple[Nearest, Nearest]:
  """Predicts a target for every source, and a source for every target.

  Args:
    source_ND: Vectors of any length.
    target_MD: Vectors of any length.
    margin: The score; see `margins.margin_pairs`.
    neighbors: k; if a side has fewer rows, all of them.

  Raises:
    ValueError: the margin is unknown, or as in `exact_search.mutual_top_k`.
  """
  forward, backward = exact_search.mutual_top_k(source_ND, target_MD, neighbors)
  (target_N, _), (source_M, _) = margins.best_neighbors(forward, backward, margin)
  return _nearest(forward, target_N, len(backward)), _nearest(backward, source_M, len(forward))


def _nearest(near: exact_search.Neighbors, margin_N: np.ndarray, others: int) -> Nearest:
  occurrences_M = np.bincount(near.index_NK.ravel(), minlength=others)
  centered_M = occurrences_M - occurrences_M.mean()
  variance = np.mean(centered_M**2)
  hubness = np.mean(centered_M**3) / variance**1.5 if variance else 0.0
  return Nearest(near.index_NK[:, 0], margin_N, float(hubness))


def wrong(nearest_N: np.ndarray, target_texts: Sequence[str]) -> list[int]:
  """Returns the rows whose nearest target is a text other than the target of the same row.

  Args:
    nearest_N: Row of the predicted target of every source.
    target_texts: The targets: first the translations, row by row, then any others.
  """
  return [i for i, row in enumerate(nearest_N) if target_texts[row] != target_texts[i]]


def error_rate(nearest_N: np.ndarray, target_texts: Sequence[str]) -> float:
  """Returns the share of `wrong` sentences: xSIM, or xSIM++ if there are changed targets."""
  return len(wrong(nearest_N, target_texts)) / len(nearest_N)


def error_types(
  nearest_N: np.ndarray,
  target_texts: Sequence[str],
  changes: Mapping[str, tuple[str, str]],
) -> dict[str, int]:
  """Counts errors by type: that of the change, or `MISALIGNED`.

  Args:
    nearest_N: As in `wrong`.
    target_texts: As in `wrong`.
    changes: For each changed text its original and the type of the change.
  """
  counts: collections.Counter[str] = collections.Counter()
  for i in wrong(nearest_N, target_texts):
    original, kind = changes.get(target_texts[nearest_N[i]], ("", MISALIGNED))
    counts[kind if original == target_texts[i] else MISALIGNED] += 1
  return dict(counts)
