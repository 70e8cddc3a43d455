"""Clusters languages by search errors and compares the clusters with language families.

The paper of `agnosticism` derives groups of languages from its error matrix (Section 3.2.1); here
average linkage does so.
"""

from collections.abc import Hashable, Sequence

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


def all_same(distance_LL: np.ndarray) -> bool:
  """Whether all pairs have the same distance, so that a tree of them has no information."""
  return bool(np.ptp(distance.squareform(distance_LL, checks=False)) == 0)


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


def clusters(tree_M4: np.ndarray, count: int) -> np.ndarray:
  """Cuts a tree into `count` clusters; returns that of each language, int64 [L], the first being 0.

  Raises:
    ValueError: `count` is not 1 to L.
  """
  if not 1 <= count <= len(tree_M4) + 1:
    raise ValueError(f"{len(tree_M4) + 1} languages cannot form {count} clusters")
  return numbered([int(label) for label in hierarchy.cut_tree(tree_M4, n_clusters=count)[:, 0]])


def numbered(labels: Sequence[Hashable]) -> np.ndarray:
  """Numbers labels from 0 by first occurrence, int64 [L]."""
  first = {label: number for number, label in enumerate(dict.fromkeys(labels))}
  return np.array([first[label] for label in labels], np.int64)


def cophenetic_correlation(tree_M4: np.ndarray, distance_LL: np.ndarray) -> float:
  """Returns Pearson's correlation of distances with those at which the tree joins the pairs.

  Raises:
    ValueError: all distances are equal, so that the correlation is undefined.
  """
  pair_P = distance.squareform(distance_LL, checks=False)
  if all_same(distance_LL):
    raise ValueError(f"all {len(pair_P)} distances are {pair_P[0]}: no correlation is defined")
  return float(hierarchy.cophenet(tree_M4, pair_P)[0])


def adjusted_rand_index(first: Sequence[Hashable], second: Sequence[Hashable]) -> float:
  """Returns the adjusted Rand index of two groupings (Hubert and Arabie, 1985).

  It is 1 for equal groupings, 0 on average for random ones, and can be negative. Two groupings of a
  single group, or of singletons only, are equal.

  Raises:
    ValueError: the groupings differ in length, or are empty.
  """
  table_CC = _contingency(first, second)
  together = _pairs(table_CC)
  row, column = _pairs(table_CC.sum(axis=1)), _pairs(table_CC.sum(axis=0))
  chance = row * column / _pairs(table_CC.sum()) if len(first) > 1 else 0.0
  most = (row + column) / 2
  return 1.0 if most == chance else float((together - chance) / (most - chance))


def purity(cluster: Sequence[Hashable], label: Sequence[Hashable]) -> float:
  """Returns the share of languages with the most frequent label of their cluster.

  It rises with the number of clusters, to 1 for singletons.

  Raises:
    ValueError: the groupings differ in length, or are empty.
  """
  table_CC = _contingency(cluster, label)
  return float(table_CC.max(axis=1).sum() / table_CC.sum())


def _contingency(first: Sequence[Hashable], second: Sequence[Hashable]) -> np.ndarray:
  if len(first) != len(second) or not len(first):
    raise ValueError(f"groupings must have one length, not {len(first)} and {len(second)}")
  first_L, second_L = numbered(first), numbered(second)
  table_CC = np.zeros((first_L.max() + 1, second_L.max() + 1), np.int64)
  np.add.at(table_CC, (first_L, second_L), 1)
  return table_CC


def _pairs(count: np.ndarray) -> float:
  return float(np.sum(count * (count - 1)) / 2)
