"""Finds and scores translations between sentences in two languages by their vectors, in NumPy.

`margin_pairs` finds candidates, `margin_scores` scores existing pairs, and `best_f1` chooses a
threshold from known translations. Vectors are read in blocks, as in `exact_search`. Large results
are stored in temporary files. Ties go to the lowest row.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from vmsst import errors
from vmsst.io import array_files
from vmsst.search import exact_search

Margin = Literal["ratio", "distance", "absolute"]
Retrieval = Literal["max", "forward", "backward", "intersection"]

Best = tuple[np.ndarray, np.ndarray]
"""The best neighbor of each source (or target), int64 [N], and its score, float64 [N]."""

PAIR = np.dtype([("source_P", np.int64), ("target_P", np.int64), ("score_P", np.float64)])
"""A candidate translation: row of the source, row of the target, score."""
Pairs = np.recarray
"""Records of `PAIR`, best first; among equal scores, the lower source row comes first."""


class F1(NamedTuple):
  """Agreement, from 0 to 1, between gold pairs and the pairs that score at least `threshold`."""

  f1: float
  precision: float
  recall: float
  threshold: float


def margin_pairs(
  source_ND: exact_search.Rows | exact_search.Selection,
  target_MD: exact_search.Rows | exact_search.Selection,
  *,
  neighbors: int = 4,
  margin: Margin = "ratio",
  retrieval: Retrieval = "max",
  search: exact_search.Search = exact_search.search,
) -> Pairs:
  """Returns the pairs with the best margins (Artetxe and Schwenk, 2019).

  A margin compares a pair's cosine with the cosines between each sentence and its neighbors.
  With mean(x, y) = (mean of cos(x, z) over the k nearest targets z of x
                     + mean of cos(z, y) over the k nearest sources z of y) / 2
  the score of x and y depends on `margin`:

  * ratio: cos(x, y) / mean(x, y), and 0 if the mean is not positive;
  * distance: cos(x, y) - mean(x, y);
  * absolute: cos(x, y).

  The candidate for a sentence is the neighbor with the best score among its k nearest neighbors.
  `retrieval` selects the pairs to keep:

  * forward: the candidates for all sources; several sources may share a target;
  * backward: the candidates for all targets;
  * intersection: pairs that are candidates in both directions;
  * max: the best pair from both directions, then the best remaining pair that shares no sentence
    with a selected pair, and so on.

  Args:
    source_ND: Source vectors of any length, without duplicates. Use an `exact_search.Selection` to
      leave out rows.
    target_MD: Target vectors, with the same requirements.
    neighbors: Number of neighbors, k. If a language has fewer than k sentences, all of them are
      neighbors.
    margin: Kind of score.
    retrieval: Rule that selects the pairs to keep.
    search: Nearest-neighbor search; `vmsst.search.device_search.search` uses accelerators.

  Raises:
    ValueError: If the shapes do not match, there are no sources or no targets, a value is not
      finite, k is not a positive integer, or the margin or retrieval is unknown.

  Examples:
    >>> german_ND, english_MD = np.eye(3), np.eye(4)[::-1, :3]
    >>> pairs = margin_pairs(german_ND, english_MD, neighbors=2)
    >>> sorted(zip(pairs.source_P.tolist(), pairs.target_P.tolist()))
    [(0, 3), (1, 2), (2, 1)]
  """
  errors.check_choice("margin", margin, _MARGINS)  # Check before the long search.
  errors.check_choice("retrieval", retrieval, _AXES)
  nearest = exact_search.mutual_top_k(source_ND, target_MD, neighbors, search=search)
  best = best_neighbors(*nearest, margin)
  pairs = _sorted_pairs(best, _AXES[retrieval])
  if retrieval == "max":
    pairs = _one_to_one(pairs, [len(index_N) for index_N, _ in best])
  elif retrieval == "intersection":
    source_M, _ = best[1]
    pairs = (x[source_M[x.target_P] == x.source_P] for x in pairs)
  return array_files.concatenate(pairs, PAIR).view(np.recarray)


def best_neighbors(
  forward: exact_search.Neighbors, backward: exact_search.Neighbors, margin: Margin
) -> tuple[Best, Best]:
  """Returns the neighbor with the best margin for every source and every target.

  Args:
    forward: Neighbors of N sources, as `exact_search.mutual_top_k` returns them.
    backward: Neighbors of M targets.
    margin: Kind of score; see `margin_pairs`.

  Returns:
    One pair of arrays for sources, [N], and one for targets, [M]: the row of each best neighbor,
    and its score. Ties go to the lowest row.
  """
  means = [_means(nearest) for nearest in (forward, backward)]
  best = []
  for nearest, mean_N, mean_M in zip((forward, backward), means, means[::-1], strict=True):
    index_N = array_files.full(len(mean_N), 0, np.int64)
    score_N = array_files.full(len(mean_N), 0, np.float64)
    for rows in exact_search.blocks(len(mean_N)):
      cosine_BK, index_BK = nearest.score_NK[rows], nearest.index_NK[rows]
      score_BK = _MARGINS[margin](cosine_BK, (mean_N[rows, None] + mean_M[index_BK]) / 2)
      score_N[rows] = score_BK.max(axis=1)
      # Neighbors are sorted by cosine, not by row, so look for the lowest row among equal scores.
      best_BK = score_BK == score_N[rows, None]
      index_N[rows] = np.where(best_BK, index_BK, len(mean_M)).min(axis=1)
    best.append((index_N, score_N))
  return best[0], best[1]


def margin_scores(
  source_ND: exact_search.Rows,
  target_ND: exact_search.Rows,
  *,
  neighbors: int = 4,
  margin: Margin = "ratio",
  sentences: Sequence[np.ndarray] | None = None,
  search: exact_search.Search = exact_search.search,
) -> np.ndarray:
  """Returns the margin score for source i and target i, float64 [N].

  Args:
    source_ND: Source vectors.
    target_ND: Target vectors.
    neighbors: As in `margin_pairs`.
    margin: As in `margin_pairs`.
    sentences: Sentence ids for the source rows and for the target rows. Rows with the same id
      contain the same sentence and count as one neighbor (default: every row is a different
      sentence).
    search: As in `margin_pairs`.

  Raises:
    ValueError: If the shapes differ or are not [N, D], there are no pairs, a value is not finite, k
      is not a positive integer, or the margin is unknown.
  """
  errors.check_choice("margin", margin, _MARGINS)
  vectors: list[Any] = [source_ND, target_ND]
  inverse: list[Any] = [slice(None), slice(None)]
  for i, sentence_N in enumerate(sentences or ()):
    _, first_K, number_N = np.unique(sentence_N, return_index=True, return_inverse=True)
    row_K, inverse[i] = np.unique(first_K[number_N], return_inverse=True)
    vectors[i] = exact_search.Selection(vectors[i], row_K)
  nearest = exact_search.mutual_top_k(vectors[0], vectors[1], neighbors, search=search)
  source_N, target_N = (_means(x)[index] for x, index in zip(nearest, inverse, strict=True))
  if len(source_N) != len(target_N):
    raise ValueError(f"{len(source_N)} sources, {len(target_N)} targets; pass equally many")
  return _MARGINS[margin](cosines(source_ND, target_ND), (source_N + target_N) / 2)


def cosines(source_ND: exact_search.Rows, target_ND: exact_search.Rows) -> np.ndarray:
  """Returns the cosine between source i and target i, float64 [N]."""
  cosine_N = np.empty(len(source_ND))  # type: ignore[arg-type]
  for rows in exact_search.blocks(len(cosine_N)):
    units = (exact_search.unit_rows(np.asarray(x[rows])) for x in (source_ND, target_ND))
    cosine_N[rows] = np.einsum("nd,nd->n", *units, dtype=np.float64)
  return cosine_N


def best_f1(pairs: Pairs, gold_G2: np.ndarray) -> F1:
  """Returns the threshold with the highest F1. Ties go to the highest threshold.

  Args:
    pairs: Distinct candidates, best first.
    gold_G2: Distinct gold translations, as pairs (source row, target row).

  Raises:
    ValueError: If there are no candidates or no gold pairs.
  """
  gold = {(int(source), int(target)) for source, target in gold_G2}
  if not gold or not len(pairs):
    raise ValueError(f"cannot compute F1 from {len(pairs)} candidates and {len(gold)} gold pairs")
  candidates = zip(pairs.source_P.tolist(), pairs.target_P.tolist(), strict=True)
  hits_P = np.cumsum(np.fromiter((pair in gold for pair in candidates), bool, len(pairs)))
  count_P = np.arange(1, len(pairs) + 1)
  f1_P = 2 * hits_P / (count_P + len(gold))
  # A threshold cannot separate pairs with equal scores, so consider only the last of these pairs.
  f1_P[:-1][pairs.score_P[:-1] == pairs.score_P[1:]] = -1
  best = int(np.argmax(f1_P))
  return F1(
    f1=float(f1_P[best]),
    precision=float(hits_P[best] / count_P[best]),
    recall=float(hits_P[best] / len(gold)),
    threshold=float(pairs.score_P[best]),
  )


_MARGINS: Mapping[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
  "ratio": lambda cosine, mean: np.where(mean > 0, cosine / np.where(mean > 0, mean, 1), 0.0),
  "distance": lambda cosine, mean: cosine - mean,
  "absolute": lambda cosine, mean: np.minimum(cosine.astype(np.float64), 1),
}


def _means(nearest: exact_search.Neighbors) -> np.ndarray:
  mean_N = array_files.full(len(nearest.score_NK), 0, np.float64)
  for rows in exact_search.blocks(len(mean_N)):
    nearest.score_NK[rows].mean(axis=1, dtype=np.float64, out=mean_N[rows])
  return mean_N


def _sorted_pairs(best: Sequence[Best], axes: Sequence[int]) -> Iterator[Pairs]:
  """Yields candidate pairs for sources (axis 0) and targets (axis 1), best first, in blocks.

  Large numbers of candidates are sorted in a temporary file.
  """
  # Pairs are sorted by descending score, then by source, then by target. The keys are big-endian,
  # so that sorting the bytes sorts the numbers.
  key_P3 = array_files.full((sum(len(best[axis][0]) for axis in axes), 3), 0, ">u8")
  first = 0
  for axis in axes:
    index_N, score_N = best[axis]
    for rows in exact_search.blocks(len(index_N)):
      key_B3 = key_P3[first + rows.start : first + rows.stop]
      key_B3[:, 0] = array_files.descending_keys(score_N[rows])
      key_B3[:, 1 + axis] = np.arange(rows.start, rows.stop)
      key_B3[:, 2 - axis] = index_N[rows]
    first += len(index_N)
  key_P3.view("S24")[:, 0].sort()
  for rows in exact_search.blocks(len(key_P3)):
    key_B, source_B, target_B = key_P3[rows].T.astype(np.uint64)
    yield np.rec.fromarrays([source_B, target_B, array_files.scores(key_B)], dtype=PAIR)


def _one_to_one(blocks: Iterable[Pairs], counts: Sequence[int]) -> Iterator[Pairs]:
  """Keeps each pair unless one of its sentences is in a better pair that was kept.

  Args:
    blocks: Pairs, best first.
    counts: Number of sources and number of targets.
  """
  used_N, used_M = (array_files.full(count, 0, np.uint8).data for count in counts)
  for pairs in blocks:
    rows = []
    both = zip(pairs.source_P.tolist(), pairs.target_P.tolist(), strict=True)
    for row, (source, target) in enumerate(both):
      if not used_N[source] and not used_M[target]:
        used_N[source] = used_M[target] = 1
        rows.append(row)
    yield pairs[rows].view(np.recarray)


# Axes of the candidates that each retrieval rule considers: sources (0), targets (1), or both.
_AXES: Mapping[str, tuple[int, ...]] = {
  "max": (0, 1),
  "forward": (0,),
  "backward": (1,),
  "intersection": (0,),
}
