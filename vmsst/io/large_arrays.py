"""Arrays that may be larger than memory: in temporary files.

The system caches the files in memory. They have no name and vanish with the arrays. Small arrays
are in memory.
"""

import mmap
import os
import tempfile
from collections.abc import Iterable
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


def descending_keys(score_N: np.ndarray) -> np.ndarray:
  """Returns numbers, uint64, that are in the opposite order of scores, float64; see `scores`."""
  bits_N = (np.asarray(score_N, np.float64) + 0.0).view(np.uint64)  # Adding 0 turns -0 into 0.
  return np.where(bits_N >> np.uint64(63), bits_N, ~(bits_N | np.uint64(1 << 63)))


def scores(number_N: np.ndarray) -> np.ndarray:
  """Returns the scores from which `descending_keys` computed numbers."""
  sign = np.uint64(1 << 63)
  return np.where(number_N >> np.uint64(63), number_N, ~(number_N | sign)).view(np.float64)
