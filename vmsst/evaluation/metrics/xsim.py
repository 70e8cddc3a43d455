"""xSIM and xSIM++: how often the nearest sentence, by margin, is not the translation; in NumPy.

After Heffernan et al. (2022) and Chen et al. (2023), with the soft contrastive paper's use in mind:
k = 4 neighbors and the ratio margin. Error rates are shares, 0 to 1.
"""

import collections
import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from vmsst.search import exact_search, margins

MISALIGNED = "Misaligned"
"""The type of an error that is no change of the sentence's own translation."""


@dataclasses.dataclass(frozen=True)
class Nearest:
  """What is taken for the translation of each of N sentences.

  Attributes:
    cosine_N: Row of the nearest one by cosine; of equally near ones the first.
    margin_N: Row of the one with the best margin among the k nearest; of equal ones the first.
  """

  cosine_N: np.ndarray
  margin_N: np.ndarray


def nearest(
  source_ND: exact_search.Rows | exact_search.DistinctVectors,
  target_MD: exact_search.Rows | exact_search.DistinctVectors,
  *,
  margin: margins.Margin = "ratio",
  neighbors: int = 4,
) -> tuple[Nearest, Nearest]:
  """For every source one of the targets, and for every target one of the sources.

  Args:
    source_ND: Vectors of any length; a `DistinctVectors` where they are compared again and again.
    target_MD: Vectors of any length.
    margin: What the best is; see `margins.margin_pairs`.
    neighbors: k; a side with fewer rows has them all as neighbors.

  Raises:
    ValueError: there is no such margin, or as in `exact_search.mutual_top_k`.
  """
  forward, backward = exact_search.mutual_top_k(source_ND, target_MD, neighbors)
  (target_N, _), (source_M, _) = margins.best_neighbors(forward, backward, margin)
  return Nearest(forward.index_NK[:, 0], target_N), Nearest(backward.index_NK[:, 0], source_M)


def wrong(nearest_N: np.ndarray, target_texts: Sequence[str]) -> list[int]:
  """Rows of the sentences whose nearest target reads otherwise than the target of the same row.

  Args:
    nearest_N: Row of a target for every source.
    target_texts: Of the targets: first the translations, row by row, then any others.
  """
  return [i for i, row in enumerate(nearest_N) if target_texts[row] != target_texts[i]]


def error_rate(nearest_N: np.ndarray, target_texts: Sequence[str]) -> float:
  """Share of sentences that are `wrong`: xSIM, or xSIM++ where there are changed targets too."""
  return len(wrong(nearest_N, target_texts)) / len(nearest_N)


def error_types(
  nearest_N: np.ndarray,
  target_texts: Sequence[str],
  changes: Mapping[str, tuple[str, str]],
) -> dict[str, int]:
  """Numbers of errors by type: that of the change, or `MISALIGNED`.

  Args:
    nearest_N: As in `wrong`.
    target_texts: As in `wrong`.
    changes: For a changed text the one that it was made of, and the type of the change.
  """
  counts: collections.Counter[str] = collections.Counter()
  for i in wrong(nearest_N, target_texts):
    original, kind = changes.get(target_texts[nearest_N[i]], ("", MISALIGNED))
    counts[kind if original == target_texts[i] else MISALIGNED] += 1
  return dict(counts)
