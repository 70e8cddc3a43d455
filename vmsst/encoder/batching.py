"""Token ids for inference: texts longer than an encoder reads are cut, batches sorted by length."""

import logging
from collections.abc import Iterator, Sequence

import numpy as np

# Most tokens of sentences that fill a whole batch.
_FULL_WIDTH = 64
# Padding that a batch of its own for shorter sentences must save: each has a shape to compile.
_WORTHWHILE = 2048


def padded_batches(
  ids: Sequence[Sequence[int]], batch_size: int, max_length: int, multiple: int = 1
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
  """Yields batches of similar lengths as (indices into `ids` [B], tokens int32 [R, T]), R >= B.

  T and, in the last batch, R are rounded up to 1 or 1.5 times a power of two, for few shapes. Rows
  after B are padding. The longest sentences come first: a batch too large for memory fails at once.
  A batch ends before sentences of at most half its width if that saves much padding.

  Args:
    ids: Token ids of every sentence.
    batch_size: Most sentences of a batch. Batches of long sentences are smaller, to save memory.
    max_length: Most tokens of a sentence.
    multiple: Number that divides R.
  """
  length_N, order_N = _by_length(ids)
  start = 0
  while start < len(ids):
    width = min(_rounded(int(length_N[order_N[start]])), max_length)
    most = max(1, min(batch_size, batch_size * _FULL_WIDTH // width))
    index_B = order_N[start : start + most]
    longer = int(np.searchsorted(-length_N[index_B], -(width // 2)))  # than half the width
    if longer and (len(index_B) - longer) * width // 2 >= _WORTHWHILE:
      index_B = index_B[:longer]
    start += len(index_B)
    rows = min(_rounded(len(index_B)), most)
    yield index_B, _padded(ids, index_B, (rows + -rows % multiple, width))


def tight_batches(
  ids: Sequence[Sequence[int]], batch_size: int, max_length: int, tokens: int
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
  """Yields batches of similar lengths as (indices into `ids` [B], tokens int32 [B, T]).

  T is the length of the longest sentence of the batch, at least 1. The longest sentences come
  first.

  Args:
    ids: Token ids of every sentence.
    batch_size: Most sentences of a batch.
    max_length: Most tokens of a sentence; not used.
    tokens: Most tokens of a batch, padding included, except of a single sentence.
  """
  del max_length
  length_N, order_N = _by_length(ids)
  start = 0
  while start < len(ids):
    width = max(1, int(length_N[order_N[start]]))
    index_B = order_N[start : start + max(1, min(batch_size, tokens // width))]
    start += len(index_B)
    yield index_B, _padded(ids, index_B, (len(index_B), width))


def _by_length(ids: Sequence[Sequence[int]]) -> tuple[np.ndarray, np.ndarray]:
  """Returns the lengths of sentences, and the order from the longest to the shortest."""
  length_N = np.fromiter((len(x) for x in ids), np.int64, len(ids))
  return length_N, np.argsort(-length_N, kind="stable")


def _padded(
  ids: Sequence[Sequence[int]], index_B: np.ndarray, shape: tuple[int, int]
) -> np.ndarray:
  tokens_RT = np.zeros(shape, np.int32)
  for row_T, index in zip(tokens_RT, index_B, strict=False):
    row_T[: len(ids[index])] = ids[index]
  return tokens_RT


def _rounded(size: int) -> int:
  """Returns the smallest of 4, 6, 8, 12, 16, 24, 32, 48, ... that is at least `size`."""
  power = 4
  while power < size:
    if size <= power + power // 2:
      return power + power // 2
    power *= 2
  return power


_log = logging.getLogger(__name__)


def log_cut(count: int, total: int, max_length: int) -> None:
  """Logs a warning that `count` of `total` texts were cut to `max_length` tokens."""
  _log.warning(
    "%s of %s texts have more than the %s tokens that the encoder reads and were cut",
    *(f"{number:,}" for number in (count, total, max_length)),
  )


def log_all_cut(counts: Sequence[Sequence[int]], total: int) -> None:
  """Logs one warning for several calls of `encode`, if any has cut texts.

  Args:
    counts: What `on_cut` received in each call that cut texts: their number, the number of all
      texts of the call, and the maximum tokens.
    total: Number of texts of all calls.
  """
  if counts:
    log_cut(sum(count[0] for count in counts), total, counts[0][2])
