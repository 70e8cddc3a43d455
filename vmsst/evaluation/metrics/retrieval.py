"""How often nearest neighbors are translations, in NumPy; accuracies are 0 to 1."""

import numpy as np

from vmsst.search import exact_search


def translation_accuracy(source_ND: np.ndarray, target_ND: np.ndarray) -> dict[str, float]:
  """Share of sentences whose nearest sentence of the other side, by cosine, is their translation.

  Row i of one side translates row i of the other. Where several sentences are equally near, the
  first of them counts. `forward` searches the targets for each source, `backward` the sources for
  each target; `average` is the mean of both.

  Raises:
    ValueError: the two arrays are not of one shape [N, D], hold nothing, or hold a value that is
      not finite.

  Examples:
    >>> source_ND = np.array([[1.0, 0.0], [0.0, 1.0]])
    >>> target_ND = np.array([[1.0, 0.1], [1.0, 0.2]])  # both are nearest to the first source
    >>> translation_accuracy(source_ND, target_ND)
    {'forward': 1.0, 'backward': 0.5, 'average': 0.75}
  """
  source_ND, target_ND = np.asarray(source_ND), np.asarray(target_ND)
  if source_ND.ndim != 2 or source_ND.shape != target_ND.shape or not source_ND.size:
    raise ValueError(
      f"two arrays of one shape [N, D] are needed, not {source_ND.shape} and {target_ND.shape}"
    )
  forward_N, backward_N = exact_search.mutual_neighbors(source_ND, target_ND)
  gold_N = np.arange(len(source_ND))
  forward = float(np.mean(forward_N == gold_N))
  backward = float(np.mean(backward_N == gold_N))
  return {"forward": forward, "backward": backward, "average": (forward + backward) / 2}


def recall(near: exact_search.Neighbors, gold_N: np.ndarray, k: int) -> float:
  """R@k: share of queries with their gold row among the k nearest.

  Args:
    near: At least k neighbors of each query, or all there are.
    gold_N: The one row that each query should find.
    k: How many may be looked at.

  Raises:
    ValueError: there is no query, not one gold row for each, or k is below 1.
  """
  gold_N = np.asarray(gold_N)
  if k < 1 or not len(gold_N) or gold_N.shape != (len(near.index_NK),):
    raise ValueError(f"no R@{k} of {len(near.index_NK)} queries with {gold_N.shape} gold rows")
  return float(np.mean((near.index_NK[:, :k] == gold_N[:, None]).any(axis=1)))
