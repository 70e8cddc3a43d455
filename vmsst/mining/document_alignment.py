"""Aligns the sentences in a document with their translations, by vectors and lengths.

Sentences are in the same order in both documents, but translators may split, join or omit
sentences. Computation time is linear in the length of the documents, as in Vecalign (Thompson and
Koehn, 2019).

Axes: `G` indexes the sizes of groups of consecutive sentences, starting with size 1; `I` and `J`
index source and target sentences. A position is a pair of sentence boundaries, one in each
document. All positions form a table. `A` indexes the table's antidiagonals, `B` the antidiagonals
in a block, `W` the positions in an antidiagonal's search window, and `S` the steps from one
position to the next.
"""

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import threadpoolctl

from vmsst import errors
from vmsst.encoder import encoding
from vmsst.io import array_files, text_files
from vmsst.search import exact_search

# Tables with at most this many positions are searched completely, without a window.
_FULL = 300 * 300
# Number of window positions on either side of the coarse alignment.
_RADIUS = 16
# Number of antidiagonals in a block. The costs in a block are computed together.
_BLOCK = 64
# Cost of a deletion in the first pass, before the typical cost of a translation is known. For
# comparison, a random pair costs 1.
_FIRST_DELETION = 0.65
# Number of texts to encode at once.
_WINDOW = 1 << 14
# Variance of the length difference per character (Gale and Church, 1993), and the weight of the
# squared difference in the cost of an alignment.
_VARIANCE, _LENGTH_COST = 6.8, 0.06


class Alignment(NamedTuple):
  """Consecutive source sentences and the consecutive target sentences that translate them.

  Attributes:
    source: Indices of the source sentences, starting at 0; empty if the target sentence has no
      translation.
    target: Indices of the target sentences; empty if the source sentence has no translation.
    score: Cosine of the two groups' vectors, after subtracting each document's mean. Random pairs
      have a mean score of 0. If a group is empty, the score is 0.
  """

  source: list[int]
  target: list[int]
  score: float


class Groups(NamedTuple):
  """Vectors of the groups of consecutive sentences in a document.

  Attributes:
    vector_FD: The distinct vectors.
    row_GN: Row in `vector_FD` for the group of g + 1 sentences that ends with sentence n.
    length_N: Number of characters of each sentence.
  """

  vector_FD: np.ndarray
  row_GN: np.ndarray
  length_N: np.ndarray


def align(
  source_sentences: Sequence[str],
  target_sentences: Sequence[str],
  encoder: Any,
  *,
  max_size: int = 8,
  deletion: float = 0.4,
  summed: bool = False,
  languages: tuple[str | None, str | None] = (None, None),
  batch_size: int = 128,
) -> list[Alignment]:
  """Aligns the sentences in two documents; returns groups that translate each other, in order.

  Every sentence is in exactly one alignment, except blank sentences, which are skipped.

  Args:
    source_sentences: Sentences of the source document.
    target_sentences: Sentences of the target document.
    encoder: An encoder, as from `vmsst.load`; see `encoding.encode`.
    max_size: Maximum number of sentences in an alignment, counting source and target sentences.
    deletion: Cost of a sentence without a translation, from 0 (the typical cost of a translation
      pair) to 1 (the mean cost of a random pair). With a lower value, more sentences remain
      unaligned.
    summed: Whether to sum the vectors of a group's sentences, instead of encoding the joined
      sentences. Summing is less accurate, but encodes each sentence only once.
    languages: Language codes of source and target, for encoders that require them.
    batch_size: Texts per batch.

  Raises:
    InputError: If an argument is invalid.
  """
  errors.as_integer("max_size", max_size, minimum=2)
  errors.check(0 <= deletion <= 1, "deletion", deletion, "a number from 0 to 1")
  documents = source_sentences, target_sentences
  numbers = [[n for n, x in enumerate(texts) if not text_files.is_blank(x)] for texts in documents]
  groups = [
    group_vectors(
      [document[n] for n in visible],
      encoder,
      max_size - 1,
      summed=summed,
      language=language,
      batch_size=batch_size,
    )
    for document, visible, language in zip(documents, numbers, languages, strict=True)
    if all(numbers)
  ]
  if not groups:
    deletions = [Alignment([n], [], 0.0) for n in numbers[0]]
    return deletions + [Alignment([], [n], 0.0) for n in numbers[1]]
  center(*groups)
  return [
    Alignment([numbers[0][n] for n in source], [numbers[1][n] for n in target], score)
    for source, target, score in align_groups(*groups, max_size=max_size, deletion=deletion)
  ]


def group_vectors(
  sentences: Sequence[str],
  encoder: Any,
  size: int,
  *,
  summed: bool = False,
  language: str | None = None,
  batch_size: int = 128,
) -> Groups:
  """Computes the vectors for all groups of up to `size` sentences. For the options, see `align`."""

  def embed(window: list[str]) -> np.ndarray:
    vectors_ND = encoding.encode(
      encoder, window, language=language, batch_size=batch_size, on_cut=None
    )
    encoding.check_finite(vectors_ND, window)
    return vectors_ND

  sentences = [sentence.strip() for sentence in sentences]
  spans = [(end - g, end) for g in range(1, size + 1) for end in range(g, len(sentences) + 1)]
  rows: dict[str, int] = {}
  texts = sentences if summed else [" ".join(sentences[start:end]) for start, end in spans]
  row_F = np.array([rows.setdefault(text, len(rows)) for text in texts])
  windows = encoding.encode_windows(embed, rows, _WINDOW, total=len(rows), title="encode")
  flat = array_files.concatenate(map(np.ravel, windows), np.float32)
  if summed:
    vector_ND = exact_search.unit_rows(flat.reshape(len(rows), -1)[row_F])
    total_ND = np.pad(vector_ND, ((1, 0), (0, 0))).cumsum(axis=0, dtype=np.float64)
    sums = (np.ravel(total_ND[g:] - total_ND[:-g]) for g in range(1, size + 1))
    flat, row_F = array_files.concatenate(sums, np.float32), np.arange(len(spans))
  start_F, end_F = np.array(spans).T
  row_GN = np.zeros((size, len(sentences)), np.int64)
  row_GN[end_F - start_F - 1, end_F - 1] = row_F
  vector_FD = flat.reshape(row_F.max() + 1, -1)
  return Groups(vector_FD, row_GN, np.array([*map(len, sentences)], np.float64))


def center(*documents: Groups) -> None:
  """Subtracts each document's mean sentence vector from its unit vectors, in place."""
  for x in documents:
    _normalize(x.vector_FD)
  sums = [x.vector_FD[x.row_GN[0]].sum(axis=0) for x in documents]
  counts = [len(x.length_N) + 1 for x in documents]
  # In a short document, the mean is so close to each sentence vector that subtracting the mean
  # would remove much of the sentence's meaning. To prevent this, compute the mean as if the mean of
  # the other document were one more sentence of this document.
  for x, count, sum_D, other_sum_D, other_count in zip(
    documents, counts, sums, sums[::-1], counts[::-1], strict=True
  ):
    x.vector_FD[:] -= (sum_D + other_sum_D / other_count) / count
    _normalize(x.vector_FD)


def _normalize(vector_FD: np.ndarray) -> None:
  vector_FD /= np.maximum(np.sqrt(np.vecdot(vector_FD, vector_FD)), 1e-30)[:, None]


# BLAS threads slow down small matrix products, especially on a busy machine.
@threadpoolctl.threadpool_limits.wrap(limits=1, user_api="blas")
def align_groups(
  source: Groups, target: Groups, *, max_size: int = 8, deletion: float = 0.4
) -> list[Alignment]:
  """Returns the alignment with the lowest total cost.

  If group x has a sentences and group y has b sentences, the cost of aligning the two groups is

      weight * (1 - cos(x, y)) / norm(x, y) + 0.06 * d²,

  where weight is a * b - (a - 1) * (b - 1) / 2, norm is the mean distance from x and y to all
  groups in the opposite document, and d is the length difference in standard deviations. Division
  by the norm makes the first term 1 on average for random pairs of sentences. The cost is based on
  Vecalign, but differs in four ways:

  * Each document's mean vector is subtracted from the document's vectors. The subtraction removes
    properties that all sentences in the document share, such as the language.
  * The second term increases the cost if the lengths differ, as in Gale and Church (1993). Vecalign
    lacks this term. A difference in length can reveal a missing or additional clause even if the
    clause hardly changes the vector.
  * The cost of a deletion, that is, of a sentence without a translation, depends on the median cost
    in a first alignment of single sentences. Vecalign instead uses a percentile of the costs of
    randomly sampled pairs, which are supposed to be unrelated. In short documents, however, many of
    the sampled pairs are translations.
  * In Vecalign, the weight is a * b. Here, the weight is lower if a and b both exceed 1. Such
    groups are often correct, because translators move content from one sentence to the next.

  Args:
    source: Groups of up to `max_size` - 1 sentences of the source document, with vectors that
      `center` has processed. The document must not be empty.
    target: Groups of the target document, with the same requirements.
    max_size: As in `align`.
    deletion: As in `align`.
  """
  window = _window(source, target)
  without_lengths = [x._replace(length_N=np.zeros_like(x.length_N)) for x in (source, target)]
  path_P2, cost_P = _search(
    *without_lengths, window=window, steps=[(1, 1)], deletion=_FIRST_DELETION
  )
  is_pair_P = np.diff(path_P2, axis=0).all(axis=1)
  i_P, j_P = path_P2[1:][is_pair_P].T - 1
  # Use the median length ratio of the aligned pairs, because sentences without a translation
  # distort the ratio of the documents' total lengths.
  ratio_P = target.length_N[j_P] / source.length_N[i_P]
  typical, ratio = (np.median(x) if len(x) else 1.0 for x in (cost_P[is_pair_P], ratio_P))
  deletion = typical + deletion * (1 - typical)
  scale = np.sqrt(ratio)
  source = source._replace(length_N=source.length_N * scale)
  target = target._replace(length_N=target.length_N / scale)
  sizes = range(1, max_size)
  steps = [(a, b) for a in sizes for b in sizes if a + b <= max_size]
  path = _search(source, target, window=window, steps=steps, deletion=deletion)[0].tolist()
  alignments = []
  for (i, j), (i_end, j_end) in itertools.pairwise(path):
    score = 0.0
    if i_end > i and j_end > j:
      row_i = source.row_GN[i_end - i - 1, i_end - 1]
      row_j = target.row_GN[j_end - j - 1, j_end - 1]
      score = float(source.vector_FD[row_i] @ target.vector_FD[row_j])
    alignments.append(Alignment([*range(i, i_end)], [*range(j, j_end)], score))
  return alignments


def _window(source: Groups, target: Groups) -> tuple[np.ndarray, int]:
  """Returns the window's first target position on each antidiagonal, [A], and the window's width.

  Antidiagonal a consists of the positions (a - j, j), before source sentence a - j and target
  sentence j. The window surrounds a coarse alignment. To find this alignment, the function adds the
  vectors of sentences 1 and 2, 3 and 4, and so on, and aligns the shortened documents recursively.
  """
  n, m = source.row_GN.shape[1], target.row_GN.shape[1]
  antidiagonal_A = np.arange(n + m + 1)
  if n * m <= _FULL:
    return (antidiagonal_A - n if n <= m else 0 * antidiagonal_A), min(n, m) + 1
  halves = []
  for x in (source, target):
    sum_ND = np.add.reduceat(x.vector_FD[x.row_GN[0]], np.arange(0, len(x.length_N), 2), axis=0)
    row_1N = np.arange(len(sum_ND))[None]
    halves.append(Groups(exact_search.unit_rows(sum_ND), row_1N, np.zeros(len(sum_ND))))
  path_P2, _ = _search(*halves, window=_window(*halves), steps=[(1, 1)], deletion=_FIRST_DELETION)
  # Consecutive deletions in the coarse alignment are in an arbitrary order, so the window crosses
  # them in a straight line.
  is_pair_P = np.diff(path_P2, axis=0).all(axis=1)
  ends_P = np.append(is_pair_P, True) | np.insert(is_pair_P, 0, True)
  path_P2 = np.minimum(2 * path_P2[ends_P], [n, m])
  center_A = np.interp(antidiagonal_A, path_P2.sum(axis=1), path_P2[:, 1])
  return np.floor(center_A).astype(np.int64) - _RADIUS, 2 * _RADIUS + 1


def _search(
  source: Groups,
  target: Groups,
  *,
  window: tuple[np.ndarray, int],
  steps: Sequence[tuple[int, int]],
  deletion: float,
) -> tuple[np.ndarray, np.ndarray]:
  """Returns the positions on the cheapest path from (0, 0) to the end, [P, 2], and its step costs.

  Args:
    source: Groups of the source document.
    target: Groups of the target document.
    window: As returned by `_window`. The window's first target position grows by 0 or 1 from one
      antidiagonal to the next.
    steps: Sizes of aligned groups.
    deletion: Cost of a sentence without a translation.
  """
  low_A, width = window
  n, m = source.row_GN.shape[1], target.row_GN.shape[1]
  # Include a zero vector in the mean, so that no norm is 0.
  means = [x.vector_FD.sum(axis=0) / (len(x.vector_FD) + 1) for x in (target, source)]
  norms = [1 - x.vector_FD @ mean_D for x, mean_D in zip((source, target), means, strict=True)]
  before = [np.append(0.0, np.cumsum(x.length_N)) for x in (source, target)]
  step_S2 = np.array([*steps, (1, 0), (0, 1)])
  size_S, pad = step_S2.sum(axis=1), int(step_S2.sum(axis=1).max())
  # Cost of the cheapest path to each position. A margin of infinite costs (before, left and right)
  # makes steps from outside the window impossible.
  total_AW = np.full((pad + n + m + 1, width + 2 * pad), np.inf)
  total_AW[pad, pad - low_A[0]] = 0
  step_AW = np.zeros((n + m + 1, width), np.int16)
  for first in range(1, n + m + 1, _BLOCK):
    antidiagonal_B = np.arange(first, min(first + _BLOCK, n + m + 1))
    j_BW = low_A[antidiagonal_B, None] + np.arange(width)
    i_BW = antidiagonal_B[:, None] - j_BW
    exists_BW = (i_BW >= 0) & (i_BW <= n) & (j_BW >= 0) & (j_BW <= m)
    cost_BSW = np.full((len(antidiagonal_B), len(step_S2), width), np.inf)
    cost_BSW[:, len(steps) :] = np.where(exists_BW, deletion, np.inf)[:, None]
    # Compare only the groups that end at positions in this block.
    rows = []
    for x, position_BW in ((source, i_BW), (target, j_BW)):
      start, end = max(int(position_BW.min()), 1) - 1, int(position_BW.max())
      row_GI = x.row_GN[:, start:end]
      rows.append((row_GI, np.clip(position_BW - 1 - start, 0, row_GI.shape[1] - 1)))
    (row_GI, index_i), (row_GJ, index_j) = rows
    vector_GID, vector_GJD = source.vector_FD[row_GI], target.vector_FD[row_GJ]
    for number, (a, b) in enumerate(steps):
      # Without a minimum distance, small groups would not be cheaper than large groups if the two
      # documents are identical.
      distance_IJ = np.maximum(1 - vector_GID[a - 1] @ vector_GJD[b - 1].T, 0.02)
      distance_IJ /= (norms[0][row_GI[a - 1], None] + norms[1][row_GJ[b - 1]]) / 2
      is_valid_BW = exists_BW & (i_BW >= a) & (j_BW >= b)
      i, j = i_BW[is_valid_BW], j_BW[is_valid_BW]
      length_i, length_j = before[0][i] - before[0][i - a], before[1][j] - before[1][j - b]
      variance = _VARIANCE * np.maximum(length_i + length_j, 1) / 2
      cost_BSW[:, number][is_valid_BW] = (a * b - (a - 1) * (b - 1) / 2) * distance_IJ[
        index_i[is_valid_BW], index_j[is_valid_BW]
      ] + _LENGTH_COST * (length_i - length_j) ** 2 / variance
    # For each antidiagonal and each kind of step, find the predecessor of the window's first
    # position. The flat index `offset_BS` is its place in `total_AW`.
    previous_BS = antidiagonal_B[:, None] - size_S
    column_BS = (
      pad + low_A[antidiagonal_B, None] - step_S2[:, 1] - low_A[np.maximum(previous_BS, 0)]
    )
    offset_BS = (pad + previous_BS) * total_AW.shape[1] + column_BS
    for antidiagonal, cost_SW, offset_S in zip(antidiagonal_B, cost_BSW, offset_BS, strict=True):
      cost_SW += total_AW.take(offset_S[:, None] + np.arange(width))
      best_W = cost_SW.argmin(axis=0)
      step_AW[antidiagonal] = best_W
      total_AW[pad + antidiagonal, pad : pad + width] = cost_SW[best_W, np.arange(width)]
  path = [(n, m)]
  while path[-1] != (0, 0):
    i, j = path[-1]
    a, b = step_S2[step_AW[i + j, j - low_A[i + j]]].tolist()
    path.append((i - a, j - b))
  i_P, j_P = np.array(path[::-1]).T
  total_P = total_AW[pad + i_P + j_P, pad + j_P - low_A[i_P + j_P]]
  return np.stack([i_P, j_P], axis=1), np.diff(total_P)
