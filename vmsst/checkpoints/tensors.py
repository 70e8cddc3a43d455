"""Arrays in files, described before they are read."""

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
from ml_dtypes import bfloat16

from vmsst import errors

_FLOATS = (np.float64, np.float32, np.float16, bfloat16)
_ALIGNMENT = 64
_SMALL = 1 << 25
_MOST_A_BYTE = 1000


@dataclasses.dataclass(frozen=True)
class StoredTensor:
  """An array in a file.

  Attributes:
    shape: Its shape.
    where: File and name, for messages.
    load: Reads it as it is stored.
  """

  shape: tuple[int, ...]
  where: str
  load: Callable[[], np.ndarray]

  def read(self) -> np.ndarray:
    """Returns the array in float32.

    Raises:
      InputError: it cannot be read, or is not made of finite real numbers of floating point.
    """
    try:
      array = np.asarray(self.load())
    except errors.InputError:
      raise
    except Exception as error:  # each format has exceptions of its own for damaged data
      raise errors.InputError(f"{self.where} cannot be read: {error}") from error
    if array.dtype not in _FLOATS:
      raise errors.InputError(
        f"{self.where} is of type {array.dtype}; parameters are float32, float16, bfloat16 or "
        "float64 (a quantized checkpoint has to be dequantized first)"
      )
    if array.shape != self.shape:
      raise errors.InputError(f"{self.where} has shape {array.shape}, its header says {self.shape}")
    array = np.asarray(array, np.float32)
    # The least or the largest is NaN where any number is.
    if array.size and not np.isfinite([array.min(), array.max()]).all():
      raise errors.InputError(f"{self.where} contains infinite or NaN values")
    return array


def aligned_empty(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
  """An array with nothing in it yet, of which a JAX array on a CPU need not be a copy."""
  size = math.prod(shape) * np.dtype(dtype).itemsize
  memory = np.empty(size + _ALIGNMENT, np.uint8)
  start = -memory.ctypes.data % _ALIGNMENT
  return memory[start : start + size].view(dtype).reshape(shape)


def check_names_and_shapes(
  tensors: Mapping[str, StoredTensor], expected: Mapping[str, tuple[int, ...]], where: str
) -> None:
  """Compares what is stored with what there should be.

  Raises:
    InputError: tensors are missing, have another shape or are not known; the message names what was
      expected and what is there.
  """
  for name, shape in expected.items():
    if name in tensors and tensors[name].shape != shape:
      raise errors.InputError(f"{tensors[name].where} has shape {tensors[name].shape}, not {shape}")
  missing = [name for name in expected if name not in tensors]
  unknown = [name for name in tensors if name not in expected]
  faults = []
  if missing:
    faults.append(f"lacks {some(missing)}")
  if unknown:
    faults.append(f"holds {some(unknown)}, which this kind of model has not")
  if faults:
    raise errors.InputError(
      f"{where} {' and '.join(faults)} ({len(expected)} tensors expected, {len(tensors)} found)"
    )


def check_layers(layers: int, tensors: Mapping[str, StoredTensor], where: str) -> None:
  """Raises InputError where a file says that there are more layers than there are tensors.

  So it is told before anything is made for each layer.
  """
  if layers > len(tensors):
    raise errors.InputError(f"{where} is said to have {layers} layers, of {len(tensors)} tensors")


def check_held(numbers: int, content: int, where: str) -> None:
  """Raises InputError where so many bytes cannot hold so many numbers, however compressed.

  Formats with chunks fill in those that are not there, whatever size their metadata say.
  """
  if numbers > _SMALL + _MOST_A_BYTE * content:
    raise errors.InputError(f"{where} is said to have {numbers} numbers, in {content} bytes")


def some(names: Iterable[str], count: int = 3) -> str:
  """The first names of many, and how many more there are."""
  names = sorted(names)
  more = f" and {len(names) - count} more" if len(names) > count else ""
  return ", ".join(names[:count]) + more
