"""Reads and writes .npy and .npz files, and keeps arrays larger than memory in temporary files.

A temporary file has no name and is deleted when its array is no longer used. The operating system
caches temporary files in memory. Small arrays stay in memory and need no file.
"""

import functools
import hashlib
import io
import mmap
import os
import tempfile
from collections.abc import Iterable, Sequence
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from vmsst import errors, storage
from vmsst.io import input_files

_AGAIN = "delete the folder and embed again"


def header(shape: tuple[int, ...], dtype: str) -> bytes:
  """Returns the header for a .npy file. The header size does not depend on the number of rows.

  Args:
    shape: Shape of the array, rows first.
    dtype: float32 or float16, stored as little-endian.
  """
  stream = io.BytesIO()
  descr = np.dtype(dtype).newbyteorder("<").str
  content = {"descr": descr, "fortran_order": False, "shape": shape}
  np.lib.format.write_array_header_1_0(stream, content)
  return stream.getvalue()


def checked_rows(vectors_ND: Any, dimension: int, dtype: str, first: int = 0) -> np.ndarray:
  """Checks vectors, and converts them to the storage format (little-endian rows).

  Args:
    vectors_ND: The vectors.
    dimension: Required width.
    dtype: float32 or float16.
    first: Row number of the first vector, for error messages.

  Raises:
    InputError: If the shape is not [N, dimension], or a value is not finite in this dtype.
  """
  with np.errstate(over="ignore"):
    array_ND = np.ascontiguousarray(vectors_ND, np.dtype(dtype).newbyteorder("<"))
  if array_ND.ndim != 2 or array_ND.shape[1] != dimension:
    raise errors.InputError(f"the shape must be [N, {dimension}], not {array_ND.shape}")
  finite_N = np.isfinite(array_ND).all(axis=1)
  if not finite_N.all():
    row = first + int(np.argmin(finite_N))
    raise errors.InputError(f"vector {row} contains a value that is not finite as {dtype}")
  return array_ND


def write(
  path: str | os.PathLike[str],
  shape: tuple[int, ...],
  windows: Iterable[Any],
  dtype: str = "float32",
) -> None:
  """Writes a new .npy file window by window.

  Args:
    path: The file.
    shape: Shape of the array.
    windows: Arrays of consecutive rows, each [B, D], where D is the last size in `shape`.
    dtype: float32 or float16.

  Raises:
    InputError: If a window has an unexpected width, or a value is not finite.
  """
  row = 0
  with open(path, "wb") as file:
    file.write(header(shape, dtype))
    for vectors_BD in windows:
      file.write(checked_rows(vectors_BD, shape[-1], dtype, row).data)
      row += len(vectors_BD)


def map_file(path: str | os.PathLike[str]) -> np.memmap:
  """Opens a .npy file as a read-only memory map; raises InputError if it is not a .npy file."""
  input_files.check(path)
  try:
    return np.lib.format.open_memmap(path, mode="r")
  except Exception as error:  # Damaged files raise various exceptions.
    raise errors.InputError(f"{path}: not a NumPy file with vectors: {error}") from None


def open_mapped(path: str | os.PathLike[str], shape: Sequence[int | str]) -> np.memmap:
  """Opens a .npy file with float32 vectors as a read-only memory map.

  Args:
    path: The file.
    shape: Required shape, such as ("lines", 2, "D"). A named axis can have any size.

  Raises:
    InputError: If the file cannot be read, is not a NumPy file, or contains an array with an
      unexpected shape or dtype.
  """
  array = map_file(path)
  fits = array.ndim == len(shape) and all(
    isinstance(required, str) or required == size
    for required, size in zip(shape, array.shape, strict=True)
  )
  if not fits or array.dtype != np.dtype("<f4") or not array.flags.c_contiguous:
    raise errors.InputError(
      f"{path}: vectors must be float32 [{', '.join(map(str, shape))}] in C order, not "
      f"{array.dtype} {array.shape}"
    )
  return array


def read_shard(path: str, sha256: str) -> np.ndarray:
  """Reads vectors from a file. Local files are memory-mapped; files in a store are downloaded.

  Args:
    path: The file.
    sha256: Required checksum. It is verified only if the file is in an object store.

  Raises:
    InputError: If the file cannot be read, or its checksum does not match.
  """
  if storage.is_url(path):
    return np.load(io.BytesIO(_download(path, sha256)), allow_pickle=False)
  return map_file(path).view(np.ndarray)


def read_rows(url: str, shape: tuple[int, int], dtype: str, row_P: np.ndarray) -> np.ndarray:
  """Reads the rows with the indices `row_P` from a .npy file in an object store."""
  little_endian = np.dtype(dtype).newbyteorder("<")
  size = shape[1] * little_endian.itemsize
  starts = len(header(shape, dtype)) + row_P * size
  content = b"".join(storage.read_ranges(url, starts.tolist(), size))
  return np.frombuffer(content, little_endian).reshape(-1, shape[1])


@functools.lru_cache(maxsize=2)
def _download(url: str, sha256: str) -> bytes:
  content = input_files.read_bytes(url)
  if hashlib.sha256(content).hexdigest() != sha256:
    raise errors.InputError(f"{url} is damaged: it has changed since it was written; {_AGAIN}")
  return content


def read(path: str | os.PathLike[str]) -> Any:
  """Returns the array in a .npy file, or all arrays in a .npz file by name."""
  with storage.open_binary(path) as stream:  # np.load cannot open files in object stores
    return np.load(io.BytesIO(stream.read()), allow_pickle=False)


# --------------------------------------------------------------------------------------------
# Arrays larger than memory

_IN_MEMORY = 1 << 20  # Arrays of up to this many bytes stay in memory.
_WRITTEN = bytes(1 << 20)


def full(shape: int | tuple[int, ...], value: float, dtype: npt.DTypeLike) -> np.ndarray:
  """Returns a new array filled with one value, like `numpy.full`."""
  empty = np.empty(0, dtype)
  size = int(np.prod(shape)) * empty.itemsize
  if size <= _IN_MEMORY:
    return np.full(shape, value, dtype)
  with tempfile.TemporaryFile() as file:
    # Allocate disk space now. On a full disk, writing to a memory map would kill the process.
    for start in range(0, size, len(_WRITTEN)):
      file.write(_WRITTEN[: size - start])
    array = _map(file, empty.dtype).reshape(shape)
  if value:
    array[...] = value
  return array


def concatenate(blocks: Iterable[np.ndarray], dtype: npt.DTypeLike) -> np.ndarray:
  """Concatenates 1-D arrays. Only one of the input arrays is in memory at a time."""
  with tempfile.TemporaryFile() as file:
    for block in blocks:
      file.write(np.ascontiguousarray(block, dtype).tobytes())
    return _map(file, np.dtype(dtype))


def _map(file: IO[bytes], dtype: np.dtype) -> np.ndarray:
  """Returns a file's content as an array: a copy if the file is small, otherwise a memory map."""
  file.flush()
  size = os.fstat(file.fileno()).st_size
  if size <= _IN_MEMORY:
    file.seek(0)
    return np.frombuffer(bytearray(file.read()), dtype)
  return np.frombuffer(mmap.mmap(file.fileno(), size), dtype)


def descending_keys(score_N: np.ndarray) -> np.ndarray:
  """Maps float64 scores to uint64 keys that sort in the opposite order. Inverse of `scores`."""
  bits_N = (np.asarray(score_N, np.float64) + 0.0).view(np.uint64)  # Adding 0 turns -0 into 0.
  return np.where(bits_N >> np.uint64(63), bits_N, ~(bits_N | np.uint64(1 << 63)))


def scores(number_N: np.ndarray) -> np.ndarray:
  """Maps uint64 keys back to float64 scores. Inverse of `descending_keys`."""
  sign = np.uint64(1 << 63)
  return np.where(number_N >> np.uint64(63), number_N, ~(number_N | sign)).view(np.float64)
