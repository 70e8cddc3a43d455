"""How often a sentence's nearest neighbour is its translation, in NumPy; accuracies are 0 to 1."""

from collections.abc import Iterator, Mapping

import numpy as np

_BLOCK_SCORES = 1 << 24  # Scores held at once: 64 MB.


def translation_accuracy(source_ND: np.ndarray, target_ND: np.ndarray) -> dict[str, float]:
  """Share of sentences whose nearest sentence of the other side, by cosine, is their translation.

  Row i of one side translates row i of the other. Where several sentences are equally near, the
  first of them counts. `forward` searches the targets for each source, `backward` the sources for
  each target; `average` is the mean of both. Vectors that are not finite make all three NaN.

  Raises:
    ValueError: the two arrays are not of one shape [N, D], or hold nothing.
  """
  source_ND, target_ND = np.asarray(source_ND), np.asarray(target_ND)
  if source_ND.ndim != 2 or source_ND.shape != target_ND.shape or not source_ND.size:
    raise ValueError(
      f"two arrays of one shape [N, D] are needed, not {source_ND.shape} and {target_ND.shape}"
    )
  if not (np.isfinite(source_ND).all() and np.isfinite(target_ND).all()):
    return {"forward": float("nan"), "backward": float("nan"), "average": float("nan")}
  forward_N, backward_N = mutual_neighbours(source_ND, target_ND)
  gold_N = np.arange(len(source_ND))
  forward = float(np.mean(forward_N == gold_N))
  backward = float(np.mean(backward_N == gold_N))
  return {"forward": forward, "backward": backward, "average": (forward + backward) / 2}


def mutual_neighbours(
  source_ND: np.ndarray, target_MD: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
  """Nearest target of every source [N], and nearest source of every target [M], by cosine.

  Of equally near ones the first is taken. Scores are float32 and never held as a whole.
  """
  source_ND, target_MD = unit_rows(source_ND), unit_rows(target_MD)
  forward_N = np.empty(len(source_ND), np.int64)
  backward_M = np.zeros(len(target_MD), np.int64)
  best_M = np.full(len(target_MD), -np.inf, np.float32)
  for start, score_BM in _score_blocks(source_ND, target_MD):
    forward_N[start : start + len(score_BM)] = score_BM.argmax(axis=1)
    row_M = score_BM.argmax(axis=0)
    score_M = score_BM[row_M, np.arange(len(target_MD))]
    better_M = score_M > best_M  # Strictly: a tie stays with the earlier block.
    best_M[better_M] = score_M[better_M]
    backward_M[better_M] = start + row_M[better_M]
  return forward_N, backward_M


def unit_rows(vectors_ND: np.ndarray) -> np.ndarray:
  """The rows at length 1, float32; rows of zeros stay zeros."""
  vectors_ND = np.asarray(vectors_ND, np.float32)
  norm_N1 = np.linalg.norm(vectors_ND, axis=1, keepdims=True)
  return vectors_ND / np.where(norm_N1 > 0, norm_N1, 1)


def average_accuracy(accuracies: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
  """Mean over languages of what `translation_accuracy` gives for each, every language alike.

  Raises:
    ValueError: there is no language.
  """
  if not accuracies:
    raise ValueError("no language to average over")
  keys = ("forward", "backward", "average")
  return {key: float(np.mean([scores[key] for scores in accuracies.values()])) for key in keys}


def _score_blocks(source_ND: np.ndarray, target_MD: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
  rows = max(1, _BLOCK_SCORES // max(1, len(target_MD)))
  for start in range(0, len(source_ND), rows):
    yield start, source_ND[start : start + rows] @ target_MD.T
