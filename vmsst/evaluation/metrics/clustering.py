"""Languages grouped by how badly their texts find each other, and held against their families.

The paper of `agnosticism` reads groups of languages off its error matrix (Section 3.2.1); average
linkage does it here. scipy is there wherever jax is.
"""

from collections.abc import Hashable, Sequence

import numpy as np
from scipy.cluster import hierarchy
from scipy.spatial import distance

from vmsst.evaluation.metrics import agnosticism


def distances(error_LL: np.ndarray) -> np.ndarray:
  """The mean error of both directions of each pair, float64 [L, L], with a diagonal of 0.

  Raises:
    ValueError: the matrix is not square or below 2 x 2, or a value is not finite or below 0.
  """
  error_LL = agnosticism.square(error_LL)
  if (error_LL < 0).any():
    raise ValueError("an error is below 0")
  distance_LL = (error_LL + error_LL.T) / 2
  np.fill_diagonal(distance_LL, 0)
  return distance_LL


def all_same(distance_LL: np.ndarray) -> bool:
  """Whether all pairs are equally far apart, so that a tree of them says nothing."""
  return bool(np.ptp(distance.squareform(distance_LL, checks=False)) == 0)


def tree(distance_LL: np.ndarray) -> np.ndarray:
  """The tree of average linkage, as scipy writes it, [L - 1, 4].

  Row k joins two clusters, columns 0 and 1, at a distance, column 2: the mean of the distances
  between their languages. Cluster i < L is language i, cluster L + k is what row k made. Branches
  are turned so that neighboring languages are near.
  """
  return hierarchy.linkage(
    distance.squareform(distance_LL, checks=False), method="average", optimal_ordering=True
  )


def leaf_order(tree_M4: np.ndarray) -> list[int]:
  """The languages of a tree from its first branch to its last."""
  return [int(leaf) for leaf in hierarchy.leaves_list(tree_M4)]


def clusters(tree_M4: np.ndarray, count: int) -> np.ndarray:
  """The cluster of each language, int64 [L], when a tree is cut into `count`; 0 is the first's.

  Raises:
    ValueError: `count` is not 1 to L.
  """
  if not 1 <= count <= len(tree_M4) + 1:
    raise ValueError(f"{len(tree_M4) + 1} languages make no {count} clusters")
  return numbered([int(each) for each in hierarchy.cut_tree(tree_M4, n_clusters=count)[:, 0]])


def numbered(labels: Sequence[Hashable]) -> np.ndarray:
  """Labels as numbers from 0 in the order in which they first occur, int64 [L]."""
  first = {label: place for place, label in enumerate(dict.fromkeys(labels))}
  return np.array([first[label] for label in labels], np.int64)


def cophenetic_correlation(tree_M4: np.ndarray, distance_LL: np.ndarray) -> float:
  """How well a tree keeps distances: Pearson's correlation of them with those at which it joins.

  Raises:
    ValueError: all distances are the same: they correlate with nothing.
  """
  pair_P = distance.squareform(distance_LL, checks=False)
  if all_same(distance_LL):
    raise ValueError(f"all {len(pair_P)} distances are {pair_P[0]}: they correlate with nothing")
  return float(hierarchy.cophenet(tree_M4, pair_P)[0])


def adjusted_rand_index(first: Sequence[Hashable], second: Sequence[Hashable]) -> float:
  """Agreement of two groupings on which pairs belong together (Hubert and Arabie, 1985).

  1 is the same grouping, 0 what chance gives, and it can be below. Two groupings that both put all
  into one, or each alone, are the same.

  Raises:
    ValueError: they differ in length, or are empty.
  """
  table_CC = _contingency(first, second)
  together = _pairs(table_CC)
  row, column = _pairs(table_CC.sum(axis=1)), _pairs(table_CC.sum(axis=0))
  chance = row * column / _pairs(table_CC.sum()) if len(first) > 1 else 0.0
  most = (row + column) / 2
  return 1.0 if most == chance else float((together - chance) / (most - chance))


def purity(cluster: Sequence[Hashable], label: Sequence[Hashable]) -> float:
  """Share of languages that bear the commonest label of their cluster.

  It rises with the number of clusters, to 1 where each language is alone.

  Raises:
    ValueError: the two differ in length, or are empty.
  """
  table_CC = _contingency(cluster, label)
  return float(table_CC.max(axis=1).sum() / table_CC.sum())


def _contingency(first: Sequence[Hashable], second: Sequence[Hashable]) -> np.ndarray:
  if len(first) != len(second) or not len(first):
    raise ValueError(f"two groupings of one length are needed, not {len(first)} and {len(second)}")
  first_L, second_L = numbered(first), numbered(second)
  table_CC = np.zeros((first_L.max() + 1, second_L.max() + 1), np.int64)
  np.add.at(table_CC, (first_L, second_L), 1)
  return table_CC


def _pairs(count: np.ndarray) -> float:
  return float(np.sum(count * (count - 1)) / 2)
