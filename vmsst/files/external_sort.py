"""Sorts any number of records in bounded memory, with temporary files."""

import os
import tempfile
from collections.abc import Iterator

import numpy as np

_RECORDS = 1 << 18  # In memory at once.


class Records:
  """Records of whole numbers, sorted by the first number, then by the second, and so on.

  They are in unnamed files, which vanish with the process. Memory holds about 260,000 records,
  and twice as many while it sorts them.
  """

  def __init__(self, width: int, folder: str | os.PathLike[str] | None = None):
    """Makes an empty collection.

    Args:
      width: Numbers per record.
      folder: Folder of the file; None: that of temporary files.
    """
    self._type = np.dtype(f"S{8 * width}")
    self._file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115
    self._width = width
    self._waiting: list[np.ndarray] = []
    self._count = 0  # of those waiting
    self._ends = [0]

  def __enter__(self) -> "Records":
    return self

  def __exit__(self, *_: object) -> None:
    self._file.close()

  def add(self, record_NW: np.ndarray) -> None:
    """Adds records, uint64."""
    # Big-endian bytes are in the order of the numbers.
    bytes_N = np.ascontiguousarray(record_NW, ">u8").view(self._type)[:, 0]
    for start in range(0, len(bytes_N), _RECORDS):
      self._waiting.append(bytes_N[start : start + _RECORDS])
      self._count += len(self._waiting[-1])
      if self._count >= _RECORDS:
        self._write()

  def sorted(self) -> Iterator[np.ndarray]:
    """Yields all records, uint64 [B, width], ascending, in blocks of at most about 260,000."""
    if self._waiting:
      self._write()
    place, ends = self._ends[:-1], self._ends[1:]
    size = max(1, _RECORDS // max(1, len(place)))
    held = [np.empty(0, self._type)] * len(place)
    while True:
      for run, end in enumerate(ends):
        count = min(size - len(held[run]), end - place[run])
        if count > 0:
          held[run] = np.concatenate([held[run], self._read(place[run], count)])
          place[run] += count
      if not any(map(len, held)):
        return
      # Up to the first of the last records in memory, of runs with more in the file, all are here.
      last = [own[-1] for own, at, end in zip(held, place, ends, strict=True) if at < end]
      taken = []
      for run, own in enumerate(held):
        count = int(np.searchsorted(own, min(last), side="right")) if last else len(own)
        taken.append(own[:count])
        held[run] = own[count:]
      block_B = np.sort(np.concatenate(taken))
      yield block_B.view(">u8").reshape(-1, self._width).astype(np.uint64)

  def _write(self) -> None:
    """Writes those waiting as a sorted run."""
    run_N = np.sort(np.concatenate(self._waiting))
    self._file.seek(self._ends[-1] * self._type.itemsize)
    self._file.write(run_N.data)
    self._ends.append(self._ends[-1] + len(run_N))
    self._waiting, self._count = [], 0

  def _read(self, start: int, count: int) -> np.ndarray:
    self._file.seek(start * self._type.itemsize)
    return np.frombuffer(self._file.read(count * self._type.itemsize), self._type)


def descending(score_N: np.ndarray) -> np.ndarray:
  """Returns numbers, uint64, that are in the opposite order of scores, float64; see `scores`."""
  bits_N = (np.asarray(score_N, np.float64) + 0.0).view(np.uint64)  # Adding 0 turns -0 into 0.
  return np.where(bits_N >> np.uint64(63), bits_N, ~(bits_N | np.uint64(1 << 63)))


def scores(number_N: np.ndarray) -> np.ndarray:
  """Returns the scores from which `descending` computed numbers."""
  sign = np.uint64(1 << 63)
  return np.where(number_N >> np.uint64(63), number_N, ~(number_N | sign)).view(np.float64)
