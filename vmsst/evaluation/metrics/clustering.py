"""Trees of languages by search errors.

The paper of `agnosticism` derives groups of languages from its error matrix (Section 3.2.1); here
average linkage does so.
"""

import numpy as np
from scipy.cluster import hierarchy
from scipy.spatial import distance

from vmsst.evaluation.metrics import agnosticism


def distances(error_LL: np.ndarray) -> np.ndarray:
  """Returns the mean error of both directions of each pair, float64 [L, L], with diagonal 0.

  Raises:
    ValueError: the matrix is not square or below 2 x 2, or a value is not finite or negative.
  """
  error_LL = agnosticism.square(error_LL)
  if (error_LL < 0).any():
    raise ValueError("an error is negative")
  distance_LL = (error_LL + error_LL.T) / 2
  np.fill_diagonal(distance_LL, 0)
  return distance_LL


def tree(distance_LL: np.ndarray) -> np.ndarray:
  """Returns the tree of average linkage in scipy's format, [L - 1, 4].

  Row k joins two clusters, columns 0 and 1, at a distance, column 2: the mean of the distances
  between their languages. Cluster i < L is language i, cluster L + k is the result of row k.
  Branches are ordered so that neighboring languages are near.
  """
  return hierarchy.linkage(
    distance.squareform(distance_LL, checks=False), method="average", optimal_ordering=True
  )


def leaf_order(tree_M4: np.ndarray) -> list[int]:
  """Returns the languages of a tree from its first branch to its last."""
  return [int(leaf) for leaf in hierarchy.leaves_list(tree_M4)]
