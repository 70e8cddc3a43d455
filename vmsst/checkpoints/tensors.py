"""Tensors in files: shapes first, values on request, and checks against damaged files."""

import dataclasses
import math
from collections.abc import Callable, Iterable, Sized
from typing import Any

import numpy as np
from ml_dtypes import bfloat16

from vmsst import errors

_FLOATS = (np.float64, np.float32, np.float16, bfloat16)
_ALIGNMENT = 64
# Values that a file may hold however small it is, and at most for each of its bytes.
_FEW_VALUES = 1 << 25
_VALUES_PER_BYTE = 1000


@dataclasses.dataclass(frozen=True)
class StoredTensor:
  """A tensor in a file.

  Attributes:
    shape: Its shape.
    where: File and name, for messages.
    load: Reads it as stored.
    map: Maps its float32 values into memory, aligned for JAX, read-only and after `check_finite`;
      None: the file does not allow it.
  """

  shape: tuple[int, ...]
  where: str
  load: Callable[[], np.ndarray]
  map: Callable[[], np.ndarray] | None = None

  def read(self) -> np.ndarray:
    """Returns the values in float32.

    Raises:
      InputError: the tensor cannot be read, or its values are not finite floating-point numbers.
    """
    try:
      array = np.asarray(self.load())
    except errors.InputError:
      raise
    except Exception as error:  # each format raises its own types for damaged data
      raise errors.InputError(f"{self.where} cannot be read: {error}") from error
    if array.dtype not in _FLOATS:
      raise errors.InputError(
        f"{self.where} is of type {array.dtype}, not float32, float16, bfloat16 or float64; "
        "dequantize the checkpoint first if it is quantized"
      )
    if array.shape != self.shape:
      raise errors.InputError(f"{self.where} has shape {array.shape}, its header says {self.shape}")
    array = np.asarray(array, np.float32)
    check_finite(array, self.where)
    return array

  def view(self) -> np.ndarray:
    """Returns the values in float32 as `read` does, but without reading them if the file allows it.

    The system reads the parts that are used, and can drop them at any time. The array is read-only.
    The file must not be changed in place while it is in use.
    """
    return self.read() if self.map is None else self.map()

  def computed(
    self, load: Callable[[], np.ndarray], shape: tuple[int, ...] | None = None
  ) -> "StoredTensor":
    """Returns a tensor that `load` computes from this one, of the same shape if None is given."""
    return StoredTensor(self.shape if shape is None else shape, self.where, load)


def check_finite(array: np.ndarray, where: str) -> None:
  """Raises InputError if an array contains infinite or NaN values."""
  # Minimum and maximum are NaN if any value is.
  if array.size and not np.isfinite([array.min(), array.max()]).all():
    raise errors.InputError(f"{where} contains infinite or NaN values")


def aligned_empty(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
  """Returns an uninitialized array that JAX can use on a CPU without a copy."""
  size = math.prod(shape) * np.dtype(dtype).itemsize
  memory = np.empty(size + _ALIGNMENT, np.uint8)
  start = -memory.ctypes.data % _ALIGNMENT
  return memory[start : start + size].view(dtype).reshape(shape)


def check_layers(layers: int, tensors: Sized, where: str) -> None:
  """Raises InputError if a file claims more layers than it has tensors.

  Call it before anything is made for each layer.
  """
  if layers > len(tensors):
    raise errors.InputError(
      f"{where} claims to have {layers} layers, but has {len(tensors)} tensors"
    )


def check_held(values: int, content: int, where: str) -> None:
  """Raises InputError if a file is too small for the values that it claims, however compressed.

  Formats with chunks fill in missing ones, whatever size their metadata claim.
  """
  if values > _FEW_VALUES + _VALUES_PER_BYTE * content:
    raise errors.InputError(f"{where} claims to have {values} numbers, in {content} bytes")


def some(names: Iterable[str], count: int = 3) -> str:
  """Returns the first names of many, and the number of others."""
  names = sorted(names)
  more = f" and {len(names) - count} more" if len(names) > count else ""
  return ", ".join(names[:count]) + more
