"""Packs several short texts into one row, so that a transformer computes little padding.

The texts of a batch differ in length. With one text per row, every row is padded to the length of
the longest text, whereas packed rows are nearly full. Tokens attend only to tokens of the same
text, so packing does not change the vectors.
"""

import numpy as np

from vmsst.data import batches, tables

_WIDTH = 64  # minimum row width, unless the texts are padded to fewer tokens


def pack(batch: batches.Batch) -> batches.Batch:
  """Adds the feature `packing`, int32 [R, W]: the tokens in each row, and -1 for padding.

  If texts are padded to T tokens, n * T + t stands for token t of text n. Texts are numbered in the
  order of `vmsst.models.base.interleave`. W is 64, or the next power of two if a text is longer,
  but at most T. R is rounded up, so that batches have few different shapes.
  """
  texts = [batch[name] for name in (*tables.SIDES, "negatives") if name in batch]
  size, longest = len(texts[0]), texts[0].shape[-1]
  texts_BKT = np.concatenate([x.reshape(size, -1, longest) for x in texts], axis=1)
  length_N = np.count_nonzero(texts_BKT, axis=-1).reshape(-1)
  width = min(longest, max(_WIDTH, 1 << int(length_N.max() - 1).bit_length()))
  rows: list[list[int]] = []
  # Long texts first. Each text goes to the first row with enough space.
  for text in np.argsort(-length_N, kind="stable").tolist():
    tokens = range(text * longest, text * longest + length_N[text])
    row = next((row for row in rows if len(row) + len(tokens) <= width), None)
    if row is None:
      rows.append(row := [])
    row += tokens
  rows += [[]] * (-len(rows) % -(-len(length_N) // 16))
  packing_RW = np.array([row + [-1] * (width - len(row)) for row in rows], np.int32)
  return {**batch, "packing": packing_RW}
