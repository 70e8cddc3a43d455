"""How much an encoder's vectors of a text depend on its language, in NumPy; errors are 0 to 1.

After "Are Language-Agnostic Sentence Representations actually Language-Agnostic?" (Chen and
Augustinova, 2021), here "the paper": similarity search among texts that are translations of each
other in many languages, in several versions of one language, and along paths of translations.
"""

import dataclasses
import functools
import itertools
from collections.abc import Hashable, Sequence

import numpy as np

from vmsst.search import exact_search


@dataclasses.dataclass(frozen=True)
class Averages:
  """Means of an error matrix, as the paper's tables have them at their edges.

  Attributes:
    source_L: Error of searching with each language's texts, over all other languages.
    target_L: Error of searching for each language's texts, over all other languages.
    overall: Error over all ordered pairs.
  """

  source_L: np.ndarray
  target_L: np.ndarray
  overall: float


@dataclasses.dataclass(frozen=True)
class PathDistances:
  """Mean distances of S + 1 versions of texts, each a translation of the one before.

  Attributes:
    step_S: From each version to the one before.
    start_S: From each version to the first.
  """

  step_S: np.ndarray
  start_S: np.ndarray


@dataclasses.dataclass(frozen=True)
class Plane:
  """Vectors drawn on the plane in which they differ most.

  Attributes:
    point_V2: Where they lie, around their mean; distances are at most those of the vectors.
    share_2: Share of the variance along each axis, 0 to 1.
  """

  point_V2: np.ndarray
  share_2: np.ndarray


def usable_rows(columns: Sequence[Sequence[str]], *, max_words: int = 50) -> np.ndarray:
  """Rows of line-aligned texts that an error rate can be taken on, int64 [K].

  Left out is a row where, in any of the languages, there is no text, or more than `max_words` words
  (the paper's limit is 50 tokens), or a text of a row before that is not left out itself:
  what is the translation of a text that occurs twice cannot be told. Words are what white space
  parts, so that scripts without spaces set no limit; texts count as the same whatever their spaces.

  Raises:
    ValueError: there are no columns, or they differ in length.
  """
  if not columns or len({len(texts) for texts in columns}) > 1:
    raise ValueError(f"columns of one length are needed, not of {[len(x) for x in columns]}")
  seen: list[set[str]] = [set() for _ in columns]
  rows = []
  for row, texts in enumerate(zip(*columns, strict=True)):
    words = [text.split() for text in texts]
    if not all(0 < len(each) <= max_words for each in words):
      continue
    keys = [" ".join(each) for each in words]
    if any(key in known for key, known in zip(keys, seen, strict=True)):
      continue
    for key, known in zip(keys, seen, strict=True):
      known.add(key)
    rows.append(row)
  return np.array(rows, np.int64)


def error_matrix(vectors: Sequence[np.ndarray]) -> np.ndarray:
  """Error of similarity search for every ordered pair of languages, 0 to 1, float64 [L, L].

  Cell (i, j) is the share of texts of language i (the source) whose nearest text of language j (the
  target), by cosine, is not the translation. Of equally near ones the first counts. The diagonal is
  0; no average counts it. Each unordered pair's similarities are computed once.

  Args:
    vectors: Of each language, [N, D]; rows of one number are translations.

  Raises:
    ValueError: shapes differ, there is nothing, or a value is not finite.
  """
  _check_shapes(vectors)
  gold_N = np.arange(len(vectors[0]))
  error_LL = np.zeros((len(vectors), len(vectors)))
  sides = [exact_search.DistinctVectors(each) for each in vectors]
  for i, source in enumerate(sides):
    for j in range(i):
      forward_N, backward_N = exact_search.mutual_neighbors(source, sides[j])
      error_LL[i, j] = np.mean(forward_N != gold_N)
      error_LL[j, i] = np.mean(backward_N != gold_N)
  return error_LL


def averages(error_LL: np.ndarray) -> Averages:
  """The row, column and overall means of an error matrix without its diagonal.

  Raises:
    ValueError: it is no square matrix of at least two languages, or a value is not finite.
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
  """Mean error over ordered pairs `within` one group and `between` two, each only if there are any.

  With languages as groups it tells how far several translations into one language are apart, beside
  those into others (Tables 4 and 6 of the paper); with families, what relatedness does.

  Raises:
    ValueError: as `averages`, or there is not one group a language.
  """
  error_LL = square(error_LL)
  if len(group_L) != len(error_LL):
    raise ValueError(f"{len(group_L)} groups for {len(error_LL)} languages")
  places = range(len(group_L))
  errors: dict[str, list[float]] = {"within": [], "between": []}
  for i, j in ((i, j) for i in places for j in places if i != j):
    errors["within" if group_L[i] == group_L[j] else "between"].append(float(error_LL[i, j]))
  return {name: float(np.mean(values)) for name, values in errors.items() if values}


def path_distances(vectors: Sequence[np.ndarray]) -> PathDistances:
  """Distances along a path: texts, their translations, the translations of those, and so on.

  A distance is Euclid's between vectors of length 1, 0 to 2; means are over texts. The steps to a
  version sum to at least its distance from the first; a higher sum is a detour.

  Args:
    vectors: Of each version, [N, D], in the order of translation; at least two.

  Raises:
    ValueError: shapes differ, there are fewer than two, or a value is not finite.
  """
  _check_shapes(vectors)
  units = [exact_search.unit_rows(each).astype(np.float64) for each in vectors]
  return PathDistances(
    np.array([_mean_distance(*step) for step in itertools.pairwise(units)]),
    np.array([_mean_distance(units[0], each) for each in units[1:]]),
  )


def typical_row(vectors: Sequence[np.ndarray]) -> int:
  """The row whose versions lie as far apart as those of the median row: one fit for a picture.

  Raises:
    ValueError: shapes differ, there is nothing, or a value is not finite.
  """
  _check_shapes(vectors)
  center_ND = functools.reduce(np.add, map(exact_search.unit_rows, vectors)) / len(vectors)
  # The mean squared distance of vectors of length 1 from their mean.
  spread_N = 1 - np.sum(np.square(center_ND, dtype=np.float64), axis=1)
  return int(np.argsort(spread_N, kind="stable")[(len(spread_N) - 1) // 2])


def principal_plane(vectors_VD: np.ndarray) -> Plane:
  """The first two principal components of V vectors of length 1, to draw as in the paper's Fig. 1.

  The same vectors give the same picture: along each axis the point that is farthest out, the first
  of equal ones, lies on the positive side. Axes along which nothing varies are 0.

  Raises:
    ValueError: the array is not [V, D] or holds nothing, or a value is not finite.
  """
  units_VD = exact_search.unit_rows(vectors_VD).astype(np.float64)
  if not units_VD.size:
    raise ValueError("no vectors to draw")
  centered_VD = units_VD - units_VD.mean(axis=0)
  left_VK, scale_K, _ = np.linalg.svd(centered_VD, full_matrices=False)
  scale_K = np.where(scale_K > 1e-6, scale_K, 0)  # float32 vectors of length 1 know no more
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
  """The matrix in float64; raises ValueError if it is not square, below 2 x 2, or not finite."""
  matrix_LL = np.asarray(matrix_LL, np.float64)
  if matrix_LL.ndim != 2 or matrix_LL.shape[0] != matrix_LL.shape[1] or len(matrix_LL) < 2:
    raise ValueError(f"a matrix of at least two languages is needed, not {matrix_LL.shape}")
  if not np.isfinite(matrix_LL).all():
    row, column = np.argwhere(~np.isfinite(matrix_LL))[0]
    raise ValueError(f"the value of row {row}, column {column} is not finite")
  return matrix_LL


def _check_shapes(vectors: Sequence[np.ndarray]) -> None:
  shapes = {np.shape(each) for each in vectors}
  if len(vectors) < 2 or len(shapes) > 1 or not np.size(vectors[0]) or np.ndim(vectors[0]) != 2:
    raise ValueError(f"at least two arrays of one shape [N, D] are needed, not {sorted(shapes)}")


def _mean_distance(first_ND: np.ndarray, second_ND: np.ndarray) -> float:
  return float(np.mean(np.linalg.norm(first_ND - second_ND, axis=1)))
