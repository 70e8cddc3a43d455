"""Files of vectors in NumPy's format, .npy.

Vectors are stored as float32 or float16, or with a byte or a bit per dimension.
"""

import dataclasses
import functools
import hashlib
from typing import Any

import numpy as np

from vmsst import errors
from vmsst.files import atomic_files, checksums, input_files, storage
from vmsst.search import quantization
from vmsst.vectors import npy_files

DTYPES = ("float32", "float16", "int8", "binary")
_AGAIN = "delete the folder and embed again"


@dataclasses.dataclass(frozen=True)
class Kind:
  """How vectors are stored.

  Attributes:
    dimension: Width of the vectors.
    dtype: float32, or float16 for half the space, int8 for a quarter, binary (a bit per dimension)
      for a 32nd.
    ranges: For int8: the lowest and the highest value of each dimension, see `quantization`.

  Raises:
    InputError: the dtype is unknown.
  """

  dimension: int
  dtype: str = "float32"
  ranges: tuple[tuple[float, ...], ...] | None = None

  def __post_init__(self) -> None:
    if self.dtype not in DTYPES:
      raise errors.InputError(f"dtype is {self.dtype}; choose {', '.join(DTYPES)}")

  @property
  def columns(self) -> int:
    """Numbers of a row of a file."""
    return -(-self.dimension // 8) if self.dtype == "binary" else self.dimension

  @property
  def stored_dtype(self) -> str:
    """Their dtype."""
    return "uint8" if self.dtype == "binary" else self.dtype

  @property
  def read_dtype(self) -> str:
    """The dtype of the vectors that `decoded` returns."""
    return "float16" if self.dtype == "float16" else "float32"


def write(path: str, vectors_ND: Any, kind: Kind, first: int = 0) -> str:
  """Writes a file atomically; several processes may write the same one.

  Args:
    path: The file.
    vectors_ND: Its vectors.
    kind: How to store them; int8 needs `ranges`.
    first: Number of the first vector, for error messages.

  Returns:
    The SHA-256 of the file.

  Raises:
    ValueError: the shape is not [N, dimension], or a value is not finite in this dtype.
    OSError: the file cannot be written.
  """
  array_NC = encoded(vectors_ND, kind, first)
  with atomic_files.atomic_path(path) as partial:
    with open(partial, "wb") as stream:
      stream.write(header(kind, len(array_NC)))
      stream.write(array_NC.data)
    return checksums.of_file(partial)


def check(path: str, kind: Kind, rows: int) -> None:
  """Raises InputError unless a file has a number of vectors, by its header and size."""
  wanted = header(kind, rows)
  try:
    found = input_files.read_bytes(path, len(wanted))
    length = storage.size(path)
  except errors.InputError as error:
    raise errors.InputError(f"{error}: {_AGAIN}") from None
  if found != wanted:
    raise errors.InputError(
      f"{path}: broken: its header is not that of {rows} {kind.dtype} vectors of width "
      f"{kind.dimension}: {_AGAIN}"
    )
  row_bytes = kind.columns * np.dtype(kind.stored_dtype).itemsize
  if length < len(wanted) + rows * row_bytes:
    raise errors.InputError(f"{path}: truncated: it has fewer than {rows} vectors: {_AGAIN}")


def read(path: str, kind: Kind, rows: int, sha256: str | None = None) -> np.ndarray:
  """Returns the rows of a file as they are stored, read-only: a memory map if possible.

  Files in object stores are read as a whole; the last two stay in memory.

  Args:
    path: The file.
    kind: How its vectors are stored.
    rows: How many there are.
    sha256: Checksum to verify if the file is in an object store; None: none.

  Raises:
    InputError: the file has another checksum or cannot be read.
  """
  dtype, shape = _dtype(kind), (rows, kind.columns)
  offset = len(header(kind, rows))
  if storage.is_url(path):
    content = _downloaded(path, sha256)
    return np.frombuffer(content, dtype, rows * kind.columns, offset).reshape(shape)
  return np.memmap(path, dtype, "r", offset, shape).view(np.ndarray)


def read_rows(url: str, kind: Kind, rows: int, row_P: np.ndarray) -> np.ndarray:
  """Returns some rows of a file in an object store, as they are stored."""
  row_U, place_P = np.unique(row_P, return_inverse=True)
  size = kind.columns * _dtype(kind).itemsize
  starts = len(header(kind, rows)) + row_U * size
  parts = storage.read_ranges(url, starts.tolist(), size)
  stored_UC = np.frombuffer(b"".join(parts), _dtype(kind)).reshape(-1, kind.columns)
  return stored_UC[place_P]


def _dtype(kind: Kind) -> np.dtype:
  return np.dtype(kind.stored_dtype).newbyteorder("<")


@functools.lru_cache(maxsize=2)
def _downloaded(url: str, sha256: str | None) -> bytes:
  content = input_files.read_bytes(url)
  if sha256 is not None and hashlib.sha256(content).hexdigest() != sha256:
    raise errors.InputError(f"{url}: damaged: it has changed since it was written: {_AGAIN}")
  return content


def header(kind: Kind, rows: int) -> bytes:
  """Returns the start of a file, before its rows."""
  return npy_files.header((rows, kind.columns), kind.stored_dtype)


def encoded(vectors_ND: Any, kind: Kind, first: int = 0) -> np.ndarray:
  """Returns vectors as files store them, in C order; see `write` for arguments and errors."""
  checked_ND = npy_files.checked_rows(vectors_ND, kind.dimension, kind.read_dtype, first)
  if kind.dtype == "binary":
    return quantization.to_bits(checked_ND)
  if kind.dtype == "int8":
    return quantization.to_bytes(checked_ND, np.asarray(kind.ranges, np.float32))
  return checked_ND


def decoded(array_NC: np.ndarray, kind: Kind) -> np.ndarray:
  """Returns the vectors [N, D] of stored rows; float32 and float16 are returned as they are."""
  if kind.dtype == "binary":
    return quantization.from_bits(array_NC, kind.dimension)
  if kind.dtype == "int8":
    return quantization.from_bytes(array_NC, np.asarray(kind.ranges, np.float32))
  return array_NC
