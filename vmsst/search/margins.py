"""Finds translations among the sentences of two languages by their vectors, in NumPy.

`cosine_pairs` and `margin_pairs` score candidates, `margin_scores` those that are given; `best_f1`
finds a threshold by known translations. Vectors are read in blocks, as `search` reads them. Nothing
here holds the scores of all pairs at once, and equal scores are settled by row numbers, so that
results depend on nothing but the vectors.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Literal

import numpy as np

from vmsst.search import exact_search

Margin = Literal["ratio", "distance", "absolute"]
Retrieval = Literal["max", "forward", "backward", "intersection"]

_BLOCK_ROWS = 2048


@dataclasses.dataclass(frozen=True)
class Pairs:
  """Candidate translations, the best first.

  Attributes:
    source_P: Row of the source side, int64.
    target_P: Row of the target side, int64.
    score_P: Scores, float64, never rising; of equal ones the lower source row comes first.
  """

  source_P: np.ndarray
  target_P: np.ndarray
  score_P: np.ndarray

  def __len__(self) -> int:
    return len(self.score_P)

  def at_least(self, threshold: float) -> "Pairs":
    """Those with a score of at least `threshold`."""
    return self._of(self.score_P >= threshold)

  def _of(self, places: np.ndarray | list[int]) -> "Pairs":
    return Pairs(self.source_P[places], self.target_P[places], self.score_P[places])


@dataclasses.dataclass(frozen=True)
class F1:
  """How well the pairs with a score of at least `threshold` agree with the gold pairs, 0 to 1."""

  f1: float
  precision: float
  recall: float
  threshold: float


def cosine_pairs(
  source_ND: exact_search.Rows,
  target_MD: exact_search.Rows,
  *,
  engine: exact_search.Engine = exact_search.compare,
) -> Pairs:
  """Each source with its nearest target, scored by their cosine; a target may occur repeatedly.

  Raises:
    ValueError: shapes do not fit, a side is empty, or a value is not finite.
  """
  forward, _ = exact_search.mutual_top_k(source_ND, target_MD, 1, engine=engine)
  return _best_first(
    np.arange(len(forward.index_NK)), forward.index_NK[:, 0], forward.score_NK[:, 0]
  )


def margin_pairs(
  source_ND: exact_search.Rows,
  target_MD: exact_search.Rows,
  *,
  neighbors: int = 4,
  margin: Margin = "ratio",
  retrieval: Retrieval = "max",
  min_cosine: float | None = None,
  distinct: bool = False,
  engine: exact_search.Engine = exact_search.compare,
) -> Pairs:
  """Pairs by margin (Artetxe and Schwenk, 2019): a cosine beside those of both neighborhoods.

  With mean(x, y) = (mean of cos(x, z) over the k nearest targets z of x
                     + mean of cos(z, y) over the k nearest sources z of y) / 2
  the score of x and y is, by `margin`,

  * ratio: cos(x, y) / mean(x, y), and 0 where the mean is 0 or less and the ratio says nothing;
  * distance: cos(x, y) - mean(x, y);
  * absolute: cos(x, y).

  Candidates are each sentence with the one of its k nearest that scores best. By `retrieval`,

  * forward: those of all sources, of which several may have one target;
  * backward: those of all targets;
  * intersection: those that are among both;
  * max: of both together the best pair whose two sentences are both free, again and again.

  Args:
    source_ND: Vectors of the source side, of any length.
    target_MD: Vectors of the target side.
    neighbors: k; a side with fewer sentences has them all as neighbors.
    margin: What a score is.
    retrieval: Which candidates are kept.
    min_cosine: Neighbors with a lower cosine are no candidates.
    distinct: Identical vectors count once, as that of the lowest row; else as so many neighbors.
    engine: Compares vectors; `vmsst.search.device_search.engine` returns one for this machine.

  Raises:
    ValueError: shapes do not fit, a side is empty, a value is not finite, k is below 1, or there
      is no such margin or retrieval.

  Examples:
    >>> german_ND, english_MD = np.eye(3), np.eye(4)[::-1, :3]
    >>> found = margin_pairs(german_ND, english_MD, neighbors=2)
    >>> sorted(zip(found.source_P.tolist(), found.target_P.tolist()))
    [(0, 3), (1, 2), (2, 1)]
  """
  _choice(_MARGINS, margin, "margin")  # Before the search, which may take long.
  keep = _choice(_RETRIEVALS, retrieval, "retrieval")
  if distinct:
    sides = exact_search.DistinctVectors(source_ND), exact_search.DistinctVectors(target_MD)
    forward, backward = exact_search.mutual_top_k_distinct(*sides, neighbors, engine=engine)
  else:
    forward, backward = exact_search.mutual_top_k(source_ND, target_MD, neighbors, engine=engine)
  floor = -np.inf if min_cosine is None else min_cosine
  (target_N, score_N), (source_M, score_M) = best_neighbors(forward, backward, margin, floor)
  pairs = keep(
    _candidates(np.arange(len(target_N)), target_N, score_N),
    _candidates(source_M, np.arange(len(source_M)), score_M),
  )
  if distinct:
    first_N, first_M = (side.first_F for side in sides)
    return Pairs(first_N[pairs.source_P], first_M[pairs.target_P], pairs.score_P)
  return pairs


def best_neighbors(
  forward: exact_search.Neighbors,
  backward: exact_search.Neighbors,
  margin: Margin,
  min_cosine: float = -np.inf,
) -> tuple[tuple[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]:
  """The best of the k neighbors of every source and of every target, by margin.

  Args:
    forward: Neighbors of N sources, as `exact_search.mutual_top_k` gives them.
    backward: Those of M targets.
    margin: What a score is; see `margin_pairs`.
    min_cosine: Neighbors with a lower cosine do not count.

  Returns:
    For sources and for targets: the neighbor's row, of equal scores the lowest, [N] or [M], and
    its score, -inf where no neighbor counts.

  Raises:
    ValueError: there is no such margin.
  """
  score = _choice(_MARGINS, margin, "margin")
  mean_N, mean_M = _means(forward), _means(backward)
  return (
    _best_margin(score, forward, mean_N, mean_M, min_cosine),
    _best_margin(score, backward, mean_M, mean_N, min_cosine),
  )


def margin_scores(
  source_ND: exact_search.Rows,
  target_ND: exact_search.Rows,
  *,
  neighbors: int = 4,
  margin: Margin = "ratio",
  engine: exact_search.Engine = exact_search.compare,
) -> np.ndarray:
  """The score of row i of one side with row i of the other, as `margin_pairs` has it: float64 [N].

  Raises:
    ValueError: the sides are not of one shape [N, D], empty, a value is not finite, k is below 1,
      or there is no such margin.
  """
  score = _choice(_MARGINS, margin, "margin")
  forward, backward = exact_search.mutual_top_k(source_ND, target_ND, neighbors, engine=engine)
  count = len(forward.index_NK)
  if len(backward.index_NK) != count:
    raise ValueError(f"{count} and {len(backward.index_NK)} vectors are no pairs")
  cosine_N = np.empty(count)
  for start in range(0, count, _BLOCK_ROWS):
    rows = slice(start, start + _BLOCK_ROWS)
    sides = (
      exact_search.unit_rows(side[rows])
      for side in map(exact_search.as_rows, (source_ND, target_ND))
    )
    cosine_N[rows] = np.einsum("nd,nd->n", *sides, dtype=np.float64)
  return score(cosine_N, (_means(forward) + _means(backward)) / 2)


def best_f1(pairs: Pairs, gold_G2: np.ndarray) -> F1:
  """The threshold of scores with the highest F1, and what it gives; of equal ones the highest.

  Args:
    pairs: Different candidates, the best first.
    gold_G2: Different pairs (source row, target row) that translate each other.

  Raises:
    ValueError: there is no candidate or no gold pair.
  """
  gold = {(int(source), int(target)) for source, target in gold_G2}
  if not gold or not len(pairs):
    raise ValueError(f"no best F1 of {len(pairs)} candidates and {len(gold)} gold pairs")
  candidates = zip(pairs.source_P.tolist(), pairs.target_P.tolist(), strict=True)
  hits_P = np.cumsum([pair in gold for pair in candidates])
  kept_P = np.arange(1, len(pairs) + 1)
  f1_P = 2 * hits_P / (kept_P + len(gold))
  # A threshold keeps all pairs of one score or none of them.
  f1_P[:-1][pairs.score_P[:-1] == pairs.score_P[1:]] = -1
  best = int(np.argmax(f1_P))
  return F1(
    f1=float(f1_P[best]),
    precision=float(hits_P[best] / kept_P[best]),
    recall=float(hits_P[best] / len(gold)),
    threshold=float(pairs.score_P[best]),
  )


def _ratio(cosine: np.ndarray, mean: np.ndarray) -> np.ndarray:
  return np.where(mean > 0, cosine / np.where(mean > 0, mean, 1), 0.0)


_MARGINS: Mapping[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
  "ratio": _ratio,
  "distance": lambda cosine, mean: cosine - mean,
  "absolute": lambda cosine, mean: cosine.astype(np.float64),
}


def _choice(choices: Mapping[str, Callable], name: str, what: str) -> Callable:
  if name not in choices:
    raise ValueError(f"{what} is {name!r}, not {' or '.join(choices)}")
  return choices[name]


def _means(near: exact_search.Neighbors) -> np.ndarray:
  return near.score_NK.mean(axis=1, dtype=np.float64)


def _best_margin(
  score: Callable[[np.ndarray, np.ndarray], np.ndarray],
  near: exact_search.Neighbors,
  mean_N: np.ndarray,
  mean_M: np.ndarray,
  floor: float,
) -> tuple[np.ndarray, np.ndarray]:
  """Of the K neighbors of each of N, the one of the best score, and that; -inf if none counts."""
  score_NK = score(near.score_NK, (mean_N[:, None] + mean_M[near.index_NK]) / 2)
  score_NK = np.where(near.score_NK >= floor, score_NK, -np.inf)
  # Neighbors come by cosine; of those with equal scores the one of the lowest row is wanted.
  best_N1 = score_NK.max(axis=1, keepdims=True)
  last = mean_M.size
  index_N = np.where(score_NK == best_N1, near.index_NK, last).min(axis=1)
  return index_N, best_N1[:, 0]


def _candidates(source_P: np.ndarray, target_P: np.ndarray, score_P: np.ndarray) -> Pairs:
  kept_P = score_P > -np.inf
  return _best_first(source_P[kept_P], target_P[kept_P], score_P[kept_P])


def _best_first(source_P: np.ndarray, target_P: np.ndarray, score_P: np.ndarray) -> Pairs:
  order_P = np.lexsort((target_P, source_P, -score_P))
  return Pairs(source_P[order_P], target_P[order_P], score_P[order_P].astype(np.float64))


def _intersection(forward: Pairs, backward: Pairs) -> Pairs:
  found = set(zip(backward.source_P.tolist(), backward.target_P.tolist(), strict=True))
  both = zip(forward.source_P.tolist(), forward.target_P.tolist(), strict=True)
  return forward._of([place for place, pair in enumerate(both) if pair in found])


def _one_to_one(forward: Pairs, backward: Pairs) -> Pairs:
  """The pairs both sentences of which occur in no better pair that was kept."""
  pairs = _best_first(
    np.concatenate([forward.source_P, backward.source_P]),
    np.concatenate([forward.target_P, backward.target_P]),
    np.concatenate([forward.score_P, backward.score_P]),
  )
  sources: set[int] = set()
  targets: set[int] = set()
  kept = []
  both = zip(pairs.source_P.tolist(), pairs.target_P.tolist(), strict=True)
  for place, (source, target) in enumerate(both):
    if source not in sources and target not in targets:
      sources.add(source)
      targets.add(target)
      kept.append(place)
  return pairs._of(kept)


_RETRIEVALS: Mapping[str, Callable[[Pairs, Pairs], Pairs]] = {
  "max": _one_to_one,
  "forward": lambda forward, backward: forward,
  "backward": lambda forward, backward: backward,
  "intersection": _intersection,
}
