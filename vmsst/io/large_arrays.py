"""Arrays, and sorted records, that may be larger than memory: in temporary files.

The system caches the files in memory. They have no name and vanish with the arrays. Small arrays
are in memory.
"""

import mmap
import os
import tempfile
from collections.abc import Iterable, Iterator
from typing import IO

import numpy as np
import numpy.typing as npt

_IN_MEMORY = 1 << 20  # Bytes of the largest array that is in memory.
_WRITTEN = bytes(1 << 20)


def full(shape: int | tuple[int, ...], value: float, dtype: npt.DTypeLike) -> np.ndarray:
  """Returns a new array with the same value everywhere; see `numpy.full`."""
  empty = np.empty(0, dtype)
  size = int(np.prod(shape)) * empty.itemsize
  if size <= _IN_MEMORY:
    return np.full(shape, value, dtype)
  with tempfile.TemporaryFile() as file:
    # Space is taken now: a write to a map would end the process if the disk were full.
    for start in range(0, size, len(_WRITTEN)):
      file.write(_WRITTEN[: size - start])
    array = _mapped(file, empty.dtype).reshape(shape)
  if value:
    array[...] = value
  return array


def concatenate(blocks: Iterable[np.ndarray], dtype: npt.DTypeLike) -> np.ndarray:
  """Returns the concatenation of arrays of one dimension, of which one is in memory at a time."""
  with tempfile.TemporaryFile() as file:
    for block in blocks:
      file.write(np.ascontiguousarray(block, dtype).tobytes())
    return _mapped(file, np.dtype(dtype))


def _mapped(file: IO[bytes], dtype: np.dtype) -> np.ndarray:
  """Returns the content of a file as an array."""
  file.flush()
  size = os.fstat(file.fileno()).st_size
  if size <= _IN_MEMORY:
    file.seek(0)
    return np.frombuffer(bytearray(file.read()), dtype)
  return np.frombuffer(mmap.mmap(file.fileno(), size), dtype)


_RECORDS = 1 << 18  # In a block.


class Records:
  """Records of whole numbers, sorted by the first number, then by the second, and so on.

  They are in an unnamed file, which vanishes with the process. The system maps it into memory: as
  much of it as is free, so that more records than fit are sorted on disk.
  """

  def __init__(self, width: int):
    """Makes an empty collection of records of `width` numbers."""
    self._type = np.dtype(f"S{8 * width}")
    self._file = tempfile.TemporaryFile()  # noqa: SIM115
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


def descending_keys(score_N: np.ndarray) -> np.ndarray:
  """Returns numbers, uint64, that are in the opposite order of scores, float64; see `scores`."""
  bits_N = (np.asarray(score_N, np.float64) + 0.0).view(np.uint64)  # Adding 0 turns -0 into 0.
  return np.where(bits_N >> np.uint64(63), bits_N, ~(bits_N | np.uint64(1 << 63)))


def scores(number_N: np.ndarray) -> np.ndarray:
  """Returns the scores from which `descending_keys` computed numbers."""
  sign = np.uint64(1 << 63)
  return np.where(number_N >> np.uint64(63), number_N, ~(number_N | sign)).view(np.float64)
