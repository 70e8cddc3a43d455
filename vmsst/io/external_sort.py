"""Sorts any number of records in bounded memory, with temporary files."""

import os
import tempfile
from collections.abc import Iterator

import numpy as np

_RECORDS = 1 << 18  # In a block.


class Records:
  """Records of whole numbers, sorted by the first number, then by the second, and so on.

  They are in an unnamed file, which vanishes with the process. The system maps it into memory: as
  much of it as is free, so that more records than fit are sorted on disk.
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

  def __enter__(self) -> "Records":
    return self

  def __exit__(self, *_: object) -> None:
    self._file.close()

  def add(self, record_NW: np.ndarray) -> None:
    """Adds records, uint64."""
    # Big-endian bytes are in the order of the numbers.
    self._file.write(np.ascontiguousarray(record_NW, ">u8").data)

  def sorted(self) -> Iterator[np.ndarray]:
    """Yields all records, uint64 [B, width], ascending, in blocks of at most about 260,000."""
    self._file.flush()
    count = self._file.tell() // self._type.itemsize
    if not count:
      return
    bytes_N = np.memmap(self._file, self._type, "r+", shape=(count,))
    bytes_N.sort()
    for start in range(0, count, _RECORDS):
      block_B = np.array(bytes_N[start : start + _RECORDS])
      yield block_B.view(">u8").reshape(-1, self._width).astype(np.uint64)


def descending(score_N: np.ndarray) -> np.ndarray:
  """Returns numbers, uint64, that are in the opposite order of scores, float64; see `scores`."""
  bits_N = (np.asarray(score_N, np.float64) + 0.0).view(np.uint64)  # Adding 0 turns -0 into 0.
  return np.where(bits_N >> np.uint64(63), bits_N, ~(bits_N | np.uint64(1 << 63)))


def scores(number_N: np.ndarray) -> np.ndarray:
  """Returns the scores from which `descending` computed numbers."""
  sign = np.uint64(1 << 63)
  return np.where(number_N >> np.uint64(63), number_N, ~(number_N | sign)).view(np.float64)
