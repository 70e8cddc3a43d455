"""Correlation of similarities with human judgments, by scipy; values are -1 to 1."""

import numpy as np

from vmsst.search import exact_search


def cosines(first_ND: np.ndarray, second_ND: np.ndarray) -> np.ndarray:
  """Returns the cosine of row i of one array with row i of the other, float64 [N]; 0 for zeros.

  Raises:
    ValueError: the shapes are not equal and [N, D], or a value is not finite.
  """
  first_ND, second_ND = np.asarray(first_ND), np.asarray(second_ND)
  if first_ND.ndim != 2 or first_ND.shape != second_ND.shape:
    raise ValueError(
      f"both arrays must have one shape [N, D], not {first_ND.shape} and {second_ND.shape}"
    )
  first_ND, second_ND = exact_search.unit_rows(first_ND), exact_search.unit_rows(second_ND)
  return np.einsum("nd,nd->n", first_ND, second_ND, dtype=np.float64)


def pearson(x_N: np.ndarray, y_N: np.ndarray) -> float:
  """Returns Pearson's correlation of two lists of numbers.

  Raises:
    ValueError: lengths differ, a value is not finite, or all values of a list are equal.
  """
  x_N, y_N = _checked(x_N), _checked(y_N)
  if x_N.shape != y_N.shape:
    raise ValueError(f"both lists must have one length, not {len(x_N)} and {len(y_N)}")
  from scipy import stats  # Here: it takes a second.

  return float(stats.pearsonr(x_N, y_N).statistic)


def spearman(x_N: np.ndarray, y_N: np.ndarray) -> float:
  """Returns Spearman's correlation, Pearson's of the ranks; arguments and errors as in `pearson`.

  Examples:
    >>> round(spearman(np.array([1, 2, 3]), np.array([1, 10, 100])), 6)
    1.0
  """
  from scipy import stats

  return pearson(stats.rankdata(_checked(x_N)), stats.rankdata(_checked(y_N)))


def _checked(x_N: np.ndarray) -> np.ndarray:
  x_N = np.asarray(x_N, np.float64)
  if x_N.ndim != 1 or not x_N.size:
    raise ValueError(f"numbers must be a list, not an array of shape {x_N.shape}")
  if not np.isfinite(x_N).all():
    raise ValueError(f"value {int(np.argmin(np.isfinite(x_N)))} is not finite")
  if (x_N == x_N[0]).all():
    raise ValueError(f"all {len(x_N)} values are {x_N[0]}: no correlation is defined")
  return x_N
