"""The order in which training reads the rows of a mixture, computed for any places in it.

Every epoch of a task is another pseudo-random permutation of its rows. The tasks are mixed in
periods, each a permutation of as many places per task as its rate, so that proportions are exact
after every period.

Grain has both (`MapDataset.shuffle` and `mix`), but one row at a time: 15 microseconds per row, 600
in tasks of 100 rows, and time for every task of a mixture. With its 4 rounds, every 64th place of a
mixture differs from the rates five times as much as by chance; every 64th place is what a row of 64
reads (see `lanes`).
"""

import hashlib
from collections.abc import Sequence

import numpy as np

from vmsst import errors

# Rates that are not whole numbers are rounded to multiples of 1 / this.
_PERIOD = 1 << 20
_LARGEST = 1 << 48
_ROUNDS = 8


class GlobalOrder:
  """Rows of tasks by their place in an endless order.

  Args:
    counts: Number of rows of each task.
    rates: Rate of each task. If all are whole numbers, a period has as many places; with the
      numbers of rows as rates, it is an epoch of all tasks.
    seed: Seed of the order; None: rows in the order of the files, tasks in turn.

  Raises:
    InputError: a task has no rows.
  """

  def __init__(self, counts: Sequence[int], rates: Sequence[float], seed: int | None):
    if not counts or min(counts) < 1 or sum(counts) >= _LARGEST:
      raise errors.InputError(
        f"the tasks have {', '.join(map(str, counts)) or 'no'} rows; each needs some"
      )
    self.counts = tuple(counts)
    self.quotas = _quotas(rates)
    self._ends_K = np.cumsum(self.quotas)
    self._keys: np.ndarray | None = None
    if seed is not None:
      names = ["mixture", *(f"task {task}" for task in range(len(counts)))]
      digests = [hashlib.blake2b(f"{seed} {name}".encode(), digest_size=8) for name in names]
      self._keys = np.array([int.from_bytes(each.digest()) for each in digests], np.uint64)

  def locate(self, place_N: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns task and row number, int64 [N], at places of the order."""
    period, turn_N = np.divmod(place_N, self._ends_K[-1])
    if self._keys is not None:
      turn_N = permuted(turn_N, np.full_like(turn_N, self._ends_K[-1]), self._keys[0], period)
    task_N = np.searchsorted(self._ends_K, turn_N, side="right")
    quota_N = np.asarray(self.quotas)[task_N]
    number_N = period * quota_N + turn_N - (self._ends_K[task_N] - quota_N)
    count_N = np.asarray(self.counts)[task_N]
    epoch_N, row_N = np.divmod(number_N, count_N)
    if self._keys is not None:
      row_N = permuted(row_N, count_N, self._keys[1 + task_N], epoch_N)
    return task_N, row_N


def _quotas(rates: Sequence[float]) -> tuple[int, ...]:
  """Returns the number of places of each task in a period."""
  share = np.asarray(rates, np.float64)
  if (share == np.round(share)).all() and share.min() >= 1 and share.sum() < _LARGEST:
    return tuple(share.astype(np.int64).tolist())
  return tuple(np.maximum(np.round(share / share.sum() * _PERIOD), 1).astype(np.int64).tolist())


def permuted(
  index_N: np.ndarray, count_N: np.ndarray, key_N: np.ndarray, epoch_N: np.ndarray
) -> np.ndarray:
  """Returns where pseudo-random permutations take indices, int64 [N].

  A permutation is a Feistel network of 8 rounds over the smallest square of a power of two that is
  not below `count`, repeated until the result is below it.

  Args:
    index_N: Numbers below `count_N`.
    count_N: Size of each permutation.
    key_N: uint64 key of each permutation, or one key for all.
    epoch_N: Further number that selects the permutation.
  """
  found_N = index_N.astype(np.uint64)
  # The bit length of the largest index, halved and rounded up.
  half_N = ((np.frexp((count_N - 1).astype(np.float64))[1] + 1) // 2).astype(np.uint64)
  mask_N = (np.uint64(1) << half_N) - np.uint64(1)
  seed_N = _mixed(_mixed(epoch_N.astype(np.uint64)) ^ key_N)
  open_N = np.flatnonzero(count_N > 1)
  while len(open_N):
    value, half, mask, seed = (x[open_N] for x in (found_N, half_N, mask_N, seed_N))
    left, right = value >> half, value & mask
    for number in range(_ROUNDS):
      turn = _mixed(seed + right + (np.uint64(number + 1) << np.uint64(32)))
      left, right = right, left ^ (turn & mask)
    found_N[open_N] = left << half | right
    open_N = open_N[found_N[open_N] >= count_N[open_N].astype(np.uint64)]
  return found_N.astype(np.int64)


def _mixed(value_N: np.ndarray) -> np.ndarray:
  """Returns 64 bits that all depend on all bits of a value: the output function of SplitMix64."""
  value_N = value_N + np.uint64(0x9E3779B97F4A7C15)
  value_N = (value_N ^ value_N >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
  value_N = (value_N ^ value_N >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
  return value_N ^ value_N >> np.uint64(31)
