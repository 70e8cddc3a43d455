"""Files of vectors: .npy, safetensors (one tensor, `vectors`) or Parquet (one column, `vector`).

Vectors are stored as float32 or float16, or with a byte or a bit per dimension.
"""

import dataclasses
import functools
import hashlib
import io
import json
import os
from typing import IO, Any

import numpy as np

from vmsst import errors
from vmsst.files import atomic_files, checksums, input_files, storage
from vmsst.search import quantization
from vmsst.vectors import npy_files

FORMATS = ("npy", "safetensors", "parquet")
DTYPES = ("float32", "float16", "int8", "binary")
_PARQUET_ROWS = 1 << 12  # Per row group.
_SAFETENSORS = {"float32": "F32", "float16": "F16", "int8": "I8", "uint8": "U8"}
_AGAIN = "delete the folder and embed again"


@dataclasses.dataclass(frozen=True)
class Kind:
  """How vectors are stored.

  Attributes:
    dimension: Width of the vectors.
    dtype: float32, or float16 for half the space, int8 for a quarter, binary (a bit per dimension)
      for a 32nd.
    file_format: npy and safetensors are memory-mapped by readers; parquet is not, and needs
      pyarrow.
    ranges: For int8: the lowest and the highest value of each dimension, see `quantization`.

  Raises:
    InputError: the dtype or format is unknown, or pyarrow is not installed.
  """

  dimension: int
  dtype: str = "float32"
  file_format: str = "npy"
  ranges: tuple[tuple[float, ...], ...] | None = None

  def __post_init__(self) -> None:
    if self.dtype not in DTYPES:
      raise errors.InputError(f"dtype is {self.dtype}; choose {', '.join(DTYPES)}")
    if self.file_format not in FORMATS:
      raise errors.InputError(f"format is {self.file_format}; choose {', '.join(FORMATS)}")
    if self.file_format == "parquet":
      _import_pyarrow()

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
  with atomic_files.atomic_path(path, shared=True) as partial:
    with open(partial, "wb") as stream:
      if kind.file_format == "parquet":
        _write_parquet(stream, array_NC)
      else:
        stream.write(header(kind, len(array_NC)))
        stream.write(array_NC.data)
    return checksums.of_file(partial)


def check(path: str, kind: Kind, rows: int) -> None:
  """Raises InputError unless a file has a number of vectors, by its header and size."""
  if kind.file_format == "parquet":
    if (found := _parquet_shape(path)) != (rows, kind.columns):
      raise errors.InputError(f"{path}: broken: it has {found}, not {rows} vectors: {_AGAIN}")
    return
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
  if kind.file_format == "parquet":
    changed = None if storage.is_url(path) else os.stat(path).st_mtime_ns
    return _parquet_of(path, changed, sha256)
  dtype, shape = _dtype(kind), (rows, kind.columns)
  offset = len(header(kind, rows))
  if storage.is_url(path):
    content = _downloaded(path, sha256)
    return np.frombuffer(content, dtype, rows * kind.columns, offset).reshape(shape)
  return np.memmap(path, dtype, "r", offset, shape).view(np.ndarray)


def read_rows(url: str, kind: Kind, rows: int, row_P: np.ndarray) -> np.ndarray:
  """Returns some rows of a file of npy or safetensors in an object store, as they are stored."""
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
  """Returns the start of a file of npy or safetensors, before its rows."""
  make: Any = safetensors_header if kind.file_format == "safetensors" else npy_files.header
  return make((rows, kind.columns), kind.stored_dtype)


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


def safetensors_header(shape: tuple[int, ...], dtype: str) -> bytes:
  """Returns the header of a safetensors file of vectors; it has one size for any number of rows."""
  size = shape[0] * shape[1] * np.dtype(dtype).itemsize
  tensor = {"dtype": _SAFETENSORS[dtype], "shape": list(shape), "data_offsets": [0, size]}
  return (120).to_bytes(8, "little") + f"{json.dumps({'vectors': tensor}):<120}".encode("ascii")


# --------------------------------------------------------------------------------------------
# Parquet


def _import_pyarrow() -> tuple[Any, Any]:
  with errors.requires("parquet", "Parquet"):
    import pyarrow
    from pyarrow import parquet
  return pyarrow, parquet


def _write_parquet(stream: IO[bytes], vectors_ND: np.ndarray) -> None:
  pyarrow, parquet = _import_pyarrow()
  width = vectors_ND.shape[1]
  item = pyarrow.from_numpy_dtype(vectors_ND.dtype)
  schema = pyarrow.schema([("vector", pyarrow.list_(item, width))])
  with parquet.ParquetWriter(stream, schema) as writer:
    for start in range(0, len(vectors_ND), _PARQUET_ROWS):
      flat = np.ascontiguousarray(vectors_ND[start : start + _PARQUET_ROWS]).reshape(-1)
      column = pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(flat), width)
      writer.write_table(pyarrow.Table.from_arrays([column], schema=schema))


@functools.lru_cache(maxsize=1)
def _parquet_of(path: str, changed: int | None, sha256: str | None) -> np.ndarray:
  """Returns the rows of a file; the last file stays in memory."""
  _, parquet = _import_pyarrow()
  # `changed` is a part of the cache's key.
  source = io.BytesIO(_downloaded(path, sha256)) if changed is None else path
  column = parquet.read_table(source).column("vector").combine_chunks()
  width = column.type.list_size
  array_ND = column.flatten().to_numpy(zero_copy_only=False).reshape(-1, width)
  array_ND.flags.writeable = False
  return array_ND


def _parquet_shape(path: str) -> Any:
  """Returns rows and width of a file, or what is wrong with it."""
  pyarrow, parquet = _import_pyarrow()
  try:
    with storage.open_binary(path) as stream:
      file = parquet.ParquetFile(stream)
      return file.metadata.num_rows, file.schema_arrow.field("vector").type.list_size
  except (pyarrow.ArrowException, OSError, KeyError, AttributeError) as error:
    return f"no vectors ({error})"
