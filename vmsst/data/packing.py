"""Packs several short texts into one row, so that a transformer computes little padding.

The texts of a batch differ in length. With one text per row, every row is padded to the length of
the longest text, whereas packed rows are nearly full. Tokens attend only to tokens of the same
text, so packing does not change the vectors.
"""

import itertools
import math

import numpy as np

from vmsst.data import tables

_WIDTH = 64  # minimum row width, unless the texts are padded to fewer tokens


def pack(batch: dict[str, np.ndarray], slices: int = 1) -> dict[str, np.ndarray]:
  """Adds the feature `packing`, int32 [R * slices, W]: the tokens in each row, and -1 for padding.

  If texts are padded to T tokens, n * T + t stands for token t of text n. Texts are numbered in the
  order of `vmsst.models.base.interleave`. W is 64, or the next power of two if a text is longer,
  but at most T. R is rounded up to a multiple of about a third of sqrt(N) for N texts per slice.
  The spread of R over batches is proportional to sqrt(N), so batches have few different shapes.

  T must not change afterwards. `input_pipeline.trim_padding` cuts nothing from a packed batch,
  because the padding of `packing` is not 0.

  Args:
    batch: Texts `inputs` and `targets` [B, T] and, optionally, `negatives` [B, K, T]; 0 is padding.
    slices: Number of slices for gradient caching. Each slice has its own R rows, in the order of
      `vmsst.models.gradient_caching.map_slices`, and its own text numbers.
  """
  size, longest = batch["inputs"].shape
  names = [name for name in (*tables.SIDES, "negatives") if name in batch]
  length_BK = np.concatenate([np.count_nonzero(batch[x], -1).reshape(size, -1) for x in names], 1)
  width = min(longest, max(_WIDTH, 1 << int(length_BK.max() - 1).bit_length()))
  packed = [_rows(length_BK[s::slices].reshape(-1), longest, width) for s in range(slices)]
  rows = [row or [] for group in itertools.zip_longest(*packed) for row in group]
  multiple = slices * max(1, round(math.sqrt(length_BK.size / slices) / 3))
  rows += [[]] * (-len(rows) % multiple)
  packing = np.array([row + [-1] * (width - len(row)) for row in rows], np.int32)
  return {**batch, "packing": packing}


def _rows(length_N: np.ndarray, longest: int, width: int) -> list[list[int]]:
  """Distributes texts over rows of `width` tokens; returns the token numbers in each row."""
  rows: list[list[int]] = []
  open_rows: list[list[list[int]]] = [[] for _ in range(width)]  # by the number of free tokens
  # Best fit: from the longest to the shortest text, choose the row with the least space that fits.
  for text in np.argsort(-length_N, kind="stable").tolist():
    count = int(length_N[text])
    space = next((n for n in range(count, width) if open_rows[n]), width)
    if space == width:
      rows.append([])
    row = open_rows[space].pop() if space < width else rows[-1]
    row += range(text * longest, text * longest + count)
    open_rows[space - count].append(row)
  return rows
