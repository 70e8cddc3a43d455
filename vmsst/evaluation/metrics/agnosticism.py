"""Language dependence of an encoder's vectors of texts, in NumPy; errors are 0 to 1.

After "Are Language-Agnostic Sentence Representations actually Language-Agnostic?" (Chen and
Avgustinova, 2021), here "the paper": similarity search among texts that are translations of each
other, in many languages, in several versions of one language, and along paths of translations.
"""

import dataclasses
import itertools
from collections.abc import Hashable, Sequence

import numpy as np

from vmsst.search import exact_search


@dataclasses.dataclass(frozen=True)
class Averages:
  """Means of an error matrix, as at the margins of the paper's tables.

  Attributes:
    source_L: Error of queries in each language, over all other languages.
    target_L: Error of searches in each language, over all other languages.
    overall: Error over all ordered pairs.
  """

  source_L: np.ndarray
  target_L: np.ndarray
  overall: float


@dataclasses.dataclass(frozen=True)
class PathDistances:
  """Mean distances of S + 1 versions of texts, each a translation of the previous one.

  Attributes:
    step_S: From each version to the previous one.
    start_S: From each version to the first.
  """

  step_S: np.ndarray
  start_S: np.ndarray


@dataclasses.dataclass(frozen=True)
class Plane:
  """Vectors projected to their first two principal components.

  Attributes:
    point_V2: Coordinates, relative to the mean; distances do not exceed those of the vectors.
    share_2: Share of the variance along each axis, 0 to 1.
  """

  point_V2: np.ndarray
  share_2: np.ndarray


def usable_rows(columns: Sequence[Sequence[str]], *, max_words: int = 50) -> np.ndarray:
  """Returns the rows of aligned texts that can be scored, int64 [K].

  A row is skipped if, in any language, its text is empty, has more than `max_words` words (the
  paper's limit is 50 tokens), or repeats the text of an earlier row that is kept: repeated texts
  have no unique translation. Words are separated by white space, so that scripts without spaces
  have no limit; texts that differ only in white space are repeats.

  Raises:
    ValueError: there are no columns, or their lengths differ.
  """
  if not columns or len({len(texts) for texts in columns}) > 1:
    raise ValueError(f"columns must have one length, not {[len(x) for x in columns]}")
  seen: list[set[str]] = [set() for _ in columns]
  rows = []
  for row, texts in enumerate(zip(*columns, strict=True)):
    words = [text.split() for text in texts]
    if not all(0 < len(sentence) <= max_words for sentence in words):
      continue
    keys = [" ".join(sentence) for sentence in words]
    if any(key in known for key, known in zip(keys, seen, strict=True)):
      continue
    for key, known in zip(keys, seen, strict=True):
      known.add(key)
    rows.append(row)
  return np.array(rows, np.int64)


def error_matrix(vectors: Sequence[np.ndarray]) -> np.ndarray:
  """Returns similarity search errors of every ordered pair of languages, 0 to 1, float64 [L, L].

  Cell (i, j) is the share of texts of language i (the source) whose nearest text of language j (the
  target), by cosine, is not the translation. Among equally near ones the first counts. The diagonal
  is 0 and not part of averages. The similarities of each unordered pair are computed once.

  Args:
    vectors: Vectors of each language, [N, D]; equal rows are translations.

  Raises:
    ValueError: shapes differ, an array is empty, or a value is not finite.
  """
  _check_shapes(vectors)
  gold_N = np.arange(len(vectors[0]))
  error_LL = np.zeros((len(vectors), len(vectors)))
  for i, source_ND in enumerate(vectors):
    for j in range(i):
      forward, backward = exact_search.mutual_top_k(source_ND, vectors[j], 1)
      error_LL[i, j] = np.mean(forward.index_NK[:, 0] != gold_N)
      error_LL[j, i] = np.mean(backward.index_NK[:, 0] != gold_N)
  return error_LL


def averages(error_LL: np.ndarray) -> Averages:
  """Returns the row, column and overall means of an error matrix without its diagonal.

  Raises:
    ValueError: it is not a square matrix of at least two languages, or a value is not finite.
  """
  error_LL = square(error_LL)
  off_LL = np.where(np.eye(len(error_LL), dtype=bool), 0, error_LL)
  others = len(error_LL) - 1
  return Averages(
    off_LL.sum(axis=1) / others,
    off_LL.sum(axis=0) / others,
    float(off_LL.sum() / (others * len(error_LL))),
  )


def within_and_between(error_LL: np.ndarray, group_L: Sequence[Hashable]) -> dict[str, float]:
  """Returns mean errors over ordered pairs `within` one group and `between` two, if there are any.

  With languages as groups, this compares translations into one language with those into others
  (Tables 4 and 6 of the paper); with families, it shows the effect of relatedness.

  Raises:
    ValueError: as `averages`, or the number of groups is not that of languages.
  """
  error_LL = _grouped(error_LL, group_L)
  places = range(len(group_L))
  errors: dict[str, list[float]] = {"within": [], "between": []}
  for i, j in ((i, j) for i in places for j in places if i != j):
    errors["within" if group_L[i] == group_L[j] else "between"].append(float(error_LL[i, j]))
  return {name: float(np.mean(values)) for name, values in errors.items() if values}


def version_spreads(error_LL: np.ndarray, group_L: Sequence[Hashable]) -> list[float]:
  """Returns the highest minus the lowest error of the versions in one language with the same text.

  One number for each language with several versions, as queries, then as the texts that are
  searched, and for each text in another language (the paper's Section 3.2.2).

  Raises:
    ValueError: as `within_and_between`.
  """
  error_LL = _grouped(error_LL, group_L)
  spreads: list[float] = []
  for group in dict.fromkeys(group_L):
    of_group_L = np.array([number == group for number in group_L])
    if of_group_L.sum() > 1:
      for from_LL in (error_LL, error_LL.T):
        spreads += np.ptp(from_LL[of_group_L][:, ~of_group_L], axis=0).tolist()
  return spreads


def path_distances(vectors: Sequence[np.ndarray]) -> PathDistances:
  """Returns distances along a path of translations of translations.

  Distances are Euclidean, between vectors of length 1, 0 to 2, averaged over texts. The steps to a
  version sum to at least its distance from the first; a larger sum is a detour.

  Args:
    vectors: Vectors of each version, [N, D], in the order of translation; at least two.

  Raises:
    ValueError: shapes differ, there are fewer than two arrays, or a value is not finite.
  """
  _check_shapes(vectors)
  units = [exact_search.unit_rows(unit).astype(np.float64) for unit in vectors]
  return PathDistances(
    np.array([_mean_distance(*step) for step in itertools.pairwise(units)]),
    np.array([_mean_distance(units[0], unit) for unit in units[1:]]),
  )


def principal_plane(vectors_VD: np.ndarray) -> Plane:
  """Returns the first two principal components of V vectors of length 1 (the paper's Fig. 1).

  Signs are deterministic: along each axis the outermost point, the first among equals, is positive.
  Axes without variance are 0.

  Raises:
    ValueError: the shape is not [V, D], there are no vectors, or a value is not finite.
  """
  units_VD = exact_search.unit_rows(vectors_VD).astype(np.float64)
  if not units_VD.size:
    raise ValueError("no vectors to project")
  centered_VD = units_VD - units_VD.mean(axis=0)
  left_VK, scale_K, _ = np.linalg.svd(centered_VD, full_matrices=False)
  scale_K = np.where(scale_K > 1e-6, scale_K, 0)  # the precision of float32 unit vectors
  point_V2, share_2 = np.zeros((len(units_VD), 2)), np.zeros(2)
  kept = min(2, len(scale_K))
  point_V2[:, :kept] = left_VK[:, :kept] * scale_K[:kept]
  if scale_K[0] > 0:
    share_2[:kept] = scale_K[:kept] ** 2 / np.sum(scale_K**2)
  for axis_V in point_V2.T:
    size_V = np.abs(axis_V)
    if axis_V[np.argmax(size_V >= size_V.max() - 1e-6)] < 0:
      axis_V *= -1
  return Plane(point_V2 + 0.0, share_2)


def square(matrix_LL: np.ndarray) -> np.ndarray:
  """Returns the matrix in float64; raises ValueError unless it is square, >= 2 x 2 and finite."""
  matrix_LL = np.asarray(matrix_LL, np.float64)
  if matrix_LL.ndim != 2 or matrix_LL.shape[0] != matrix_LL.shape[1] or len(matrix_LL) < 2:
    raise ValueError(f"the matrix must have at least two languages, not shape {matrix_LL.shape}")
  if not np.isfinite(matrix_LL).all():
    row, column = np.argwhere(~np.isfinite(matrix_LL))[0]
    raise ValueError(f"the value of row {row}, column {column} is not finite")
  return matrix_LL


def _grouped(error_LL: np.ndarray, group_L: Sequence[Hashable]) -> np.ndarray:
  error_LL = square(error_LL)
  if len(group_L) != len(error_LL):
    raise ValueError(f"{len(group_L)} groups for {len(error_LL)} languages")
  return error_LL


def _check_shapes(vectors: Sequence[np.ndarray]) -> None:
  shapes = {np.shape(vector) for vector in vectors}
  if len(vectors) < 2 or len(shapes) > 1 or not np.size(vectors[0]) or np.ndim(vectors[0]) != 2:
    raise ValueError(f"at least two arrays of one shape [N, D] are needed, not {sorted(shapes)}")


def _mean_distance(first_ND: np.ndarray, second_ND: np.ndarray) -> float:
  return float(np.mean(np.linalg.norm(first_ND - second_ND, axis=1)))
