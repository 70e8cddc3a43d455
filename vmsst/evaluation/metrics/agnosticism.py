"""Language dependence of an encoder's vectors of texts, in NumPy; errors are 0 to 1.

After "Are Language-Agnostic Sentence Representations actually Language-Agnostic?" (Chen and
Avgustinova, 2021), here "the paper": similarity search among texts that are translations of each
other, in many languages, in several versions of one language, and along paths of translations.
"""

from collections.abc import Collection, Hashable, Sequence

import numpy as np

from vmsst.search import exact_search


def usable_rows(columns: Collection[Sequence[str]], *, max_words: int = 50) -> np.ndarray:
  """Returns the rows of aligned texts that can be scored, int64 [K].

  A row is skipped if, in any language, its text is empty, has more than `max_words` words (the
  paper's limit is 50 tokens), or repeats the text of an earlier row that is kept: repeated texts
  have no unique translation. Words are separated by white space, so that scripts without spaces
  have no limit; texts that differ only in white space are repeats.
  """
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
  is 0. The similarities of each unordered pair are computed once.

  Args:
    vectors: Vectors of each language, [N, D]; equal rows are translations.

  Raises:
    ValueError: a value is not finite.
  """
  gold_N = np.arange(len(vectors[0]))
  error_LL = np.zeros((len(vectors), len(vectors)))
  for i, source_ND in enumerate(vectors):
    for j in range(i):
      forward, backward = exact_search.mutual_top_k(source_ND, vectors[j], 1)
      error_LL[i, j] = np.mean(forward.index_NK[:, 0] != gold_N)
      error_LL[j, i] = np.mean(backward.index_NK[:, 0] != gold_N)
  return error_LL


def mean_errors(error_LL: np.ndarray) -> np.ndarray:
  """Returns the error of queries in each language, over all other languages, [L].

  These are the margins of the paper's tables. Transpose the matrix for the error of searches in
  each language.
  """
  return error_LL.sum(axis=1) / (len(error_LL) - 1)


def within_and_between(error_LL: np.ndarray, group_L: Sequence[Hashable]) -> dict[str, float]:
  """Returns mean errors over ordered pairs `within` one group and `between` two, if there are any.

  With languages as groups, this compares translations into one language with those into others
  (Tables 4 and 6 of the paper); with families, it shows the effect of relatedness.
  """
  same_LL = np.array([[x == y for y in group_L] for x in group_L])
  ways = {"within": same_LL & ~np.eye(len(group_L), dtype=bool), "between": ~same_LL}
  return {name: float(error_LL[way_LL].mean()) for name, way_LL in ways.items() if way_LL.any()}


def version_spreads(error_LL: np.ndarray, group_L: Sequence[Hashable]) -> list[float]:
  """Returns the highest minus the lowest error of the versions in one language with the same text.

  One number for each language with several versions, as queries, then as the texts that are
  searched, and for each text in another language (the paper's Section 3.2.2).
  """
  spreads: list[float] = []
  for group in dict.fromkeys(group_L):
    of_group_L = np.array([number == group for number in group_L])
    if of_group_L.sum() > 1:
      for from_LL in (error_LL, error_LL.T):
        spreads += np.ptp(from_LL[of_group_L][:, ~of_group_L], axis=0).tolist()
  return spreads


def language_tree(error_LL: np.ndarray) -> np.ndarray:
  """Returns a tree of languages in scipy's format, [L - 1, 4]: average linkage of their errors.

  Row k joins two clusters, columns 0 and 1, at a distance, column 2: the mean error over both
  directions of all pairs of their languages. Cluster i < L is language i, cluster L + k is the
  result of row k. Branches are ordered so that neighboring languages are near. The paper groups
  languages by this matrix in Section 3.2.1.
  """
  from scipy.cluster import hierarchy  # Here: it takes a second.
  from scipy.spatial import distance

  distance_P = distance.squareform((error_LL + error_LL.T) / 2)
  return hierarchy.linkage(distance_P, method="average", optimal_ordering=True)


def mean_distance(first_ND: np.ndarray, second_ND: np.ndarray) -> float:
  """Returns the mean Euclidean distance, 0 to 2, of equal rows, scaled to length 1."""
  first_ND, second_ND = (
    exact_search.unit_rows(side).astype(np.float64) for side in (first_ND, second_ND)
  )
  return float(np.mean(np.linalg.norm(first_ND - second_ND, axis=1)))
