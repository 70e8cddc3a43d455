"""Batches of token ids for inference: sorted by length, padded to few shapes."""

from collections.abc import Iterator, Sequence

import numpy as np

# Most tokens of sentences that fill a whole batch.
_FULL_WIDTH = 64


def padded_batches(
  ids: Sequence[Sequence[int]], batch_size: int, max_length: int, multiple: int = 1
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
  """Yields batches of similar lengths as (indices into `ids` [B], tokens int32 [R, T]), R >= B.

  T and, in the last batch, R are rounded up to 1 or 1.5 times a power of two, for few shapes. Rows
  after B are padding. The longest sentences come first: a batch too large for memory fails at once.

  Args:
    ids: Token ids of every sentence.
    batch_size: Most sentences of a batch. Batches of long sentences are smaller, to save memory.
    max_length: Most tokens of a sentence.
    multiple: Number that divides R.
  """
  length_N = np.fromiter((len(x) for x in ids), np.int64, len(ids))
  order_N = np.argsort(-length_N, kind="stable")
  start = 0
  while start < len(ids):
    width = min(_rounded(int(length_N[order_N[start]])), max_length)
    most = max(1, min(batch_size, batch_size * _FULL_WIDTH // width))
    index_B = order_N[start : start + most]
    start += len(index_B)
    rows = min(_rounded(len(index_B)), most)
    tokens_RT = np.zeros((rows + -rows % multiple, width), np.int32)
    for row_T, index in zip(tokens_RT, index_B, strict=False):
      row_T[: length_N[index]] = ids[index]
    yield index_B, tokens_RT


def _rounded(size: int) -> int:
  """Returns the smallest of 4, 6, 8, 12, 16, 24, 32, 48, ... that is at least `size`."""
  power = 4
  while power < size:
    if size <= power + power // 2:
      return power + power // 2
    power *= 2
  return power
