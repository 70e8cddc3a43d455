"""Reads and writes safetensors; reads state dicts of PyTorch without running code."""

import dataclasses
import json
import math
import mmap
import pathlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import ml_dtypes
import numpy as np
import safetensors

from vmsst import errors
from vmsst.io import input_files

# Numbers that become float32. Other types are those of quantized weights and of positions.
_FLOATS = {"F64": np.float64, "F32": np.float32, "F16": np.float16, "BF16": ml_dtypes.bfloat16}
_TYPES = _FLOATS | {
  "I64": np.int64, "I32": np.int32, "I16": np.int16, "I8": np.int8, "U8": np.uint8,
  "BOOL": np.bool_, "F8_E4M3": ml_dtypes.float8_e4m3fn, "F8_E5M2": ml_dtypes.float8_e5m2,
}  # fmt: skip
# JAX maps arrays without a copy only if they are aligned to 64 bytes.
_ALIGNMENT = 64
# Values that are checked at once.
_BLOCK = 1 << 22


@dataclasses.dataclass(frozen=True)
class StoredTensor:
  """A tensor in a file.

  Attributes:
    shape: Its shape.
    where: File and name, for messages.
    load: Reads it as stored.
  """

  shape: tuple[int, ...]
  where: str
  load: Callable[[], np.ndarray]

  def read(self) -> np.ndarray:
    """Returns the values in float32.

    If the file is mapped into memory, the system reads the parts that are used. Changes of the
    array stay in memory. The file must not be changed in place while the array is in use.

    Raises:
      InputError: the values are not finite floating-point numbers.
    """
    array = self.load()
    if array.dtype not in _FLOATS.values():
      raise errors.InputError(
        f"{self.where} is of type {array.dtype}, not float32, float16, bfloat16 or float64; "
        "dequantize the checkpoint first if it is quantized"
      )
    array = np.asarray(array, np.float32)
    flat = array.reshape(-1)
    for start in range(0, flat.size, _BLOCK):
      block = flat[start : start + _BLOCK]
      # Minimum and maximum are NaN if any value is.
      if not np.isfinite([block.min(), block.max()]).all():
        raise errors.InputError(f"{self.where} contains infinite or NaN values")
    return array

  def computed(
    self, load: Callable[[], np.ndarray], shape: tuple[int, ...] | None = None
  ) -> "StoredTensor":
    """Returns a tensor that `load` computes from this one; default: of the same shape."""
    return StoredTensor(self.shape if shape is None else shape, self.where, load)


def open_file(path: pathlib.Path) -> dict[str, StoredTensor]:
  """Returns the tensors of a model by name.

  Args:
    path: A `.safetensors` file, or a file of torch that holds a state dict, itself or under the key
      `state_dict`. Other pickled objects are rejected: they could run code.

  Raises:
    InputError: the file is missing or damaged, holds other objects, or torch is required but not
      installed.
  """
  if path.suffix != ".safetensors":
    record = read_torch(path)
    return of_state(path, record.get("state_dict", record) if isinstance(record, Mapping) else None)
  input_files.check(path)
  try:
    with safetensors.safe_open(path, framework="np"), path.open("rb") as stream:  # checks offsets
      size = int.from_bytes(stream.read(8), "little")
      header = json.loads(stream.read(size))
      mapped = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_COPY)
  except safetensors.SafetensorError as error:
    raise errors.InputError(f"{path} is not a valid safetensors file: {error}") from error

  def stored(name: str, entry: Mapping[str, Any]) -> StoredTensor:
    shape, start = tuple(entry["shape"]), 8 + size + entry["data_offsets"][0]

    def load() -> np.ndarray:
      kind = _TYPES[entry["dtype"]]
      return np.frombuffer(mapped, kind, math.prod(shape), start).reshape(shape)

    return StoredTensor(shape, f"{name} in {path}", load)

  return {name: stored(name, x) for name, x in header.items() if name != "__metadata__"}


def write_file(
  path: pathlib.Path, arrays: Mapping[str, np.ndarray], metadata: dict[str, str] | None = None
) -> None:
  """Writes float32 arrays to a new safetensors file, aligned so that JAX can map them into memory.

  The library's own writer does not align tensors, and gives the file the mode 0600.
  """
  header: dict[str, object] = {"__metadata__": metadata} if metadata else {}
  # Tensors follow each other without gaps: those that would misalign the next come last.
  names = sorted(arrays, key=lambda name: (arrays[name].nbytes % _ALIGNMENT != 0, name))
  end = 0
  for name in names:
    start, end = end, end + arrays[name].nbytes
    header[name] = {"dtype": "F32", "shape": arrays[name].shape, "data_offsets": (start, end)}
  text = json.dumps(header, separators=(",", ":")).encode()
  text += b" " * (-(8 + len(text)) % _ALIGNMENT)
  with path.open("wb") as stream:
    stream.write(len(text).to_bytes(8, "little") + text)
    for name in names:
      stream.write(np.ascontiguousarray(arrays[name], "<f4").data)


def read_torch(path: pathlib.Path, *allowed: type) -> Any:
  """Returns the object in a file of torch, without running any code in it.

  Args:
    path: The file.
    *allowed: Classes that it may hold besides tensors and plain values.

  Raises:
    InputError: the file is missing, damaged or holds other objects, or torch is not installed.
  """
  input_files.check(path)
  with errors.requires("sentence-transformers", f"{path}, a file of torch,"):
    import torch
  try:
    with torch.serialization.safe_globals([*allowed]):
      return torch.load(path, map_location="cpu", weights_only=True)
  except Exception:
    # Not torch's own message, which recommends loading the file without protection.
    raise errors.InputError(
      f"{path} is not a file of torch, is damaged, or holds more than tensors and plain values, "
      "which could run code and are not read; copy it again, or save only its state dict"
    ) from None


def of_state(path: pathlib.Path, state: Any) -> dict[str, StoredTensor]:
  """Returns the tensors of a state dict that was read from a file, by name.

  Raises:
    InputError: it is not a state dict.
  """
  import torch

  if not isinstance(state, Mapping) or not all(
    isinstance(name, str) and isinstance(value, torch.Tensor) for name, value in state.items()
  ):
    raise errors.InputError(f"{path} holds no state_dict of names and tensors")

  def stored(name: str, tensor: Any) -> StoredTensor:
    # NumPy has no bfloat16; float32 represents it exactly.
    plain = tensor.float() if tensor.dtype == torch.bfloat16 else tensor
    return StoredTensor(tuple(tensor.shape), f"{name} in {path}", plain.numpy)

  return {name: stored(name, tensor) for name, tensor in state.items()}


def some(names: Iterable[str], count: int = 3) -> str:
  """Returns the first names of many, and the number of others."""
  names = sorted(names)
  more = f" and {len(names) - count} more" if len(names) > count else ""
  return ", ".join(names[:count]) + more
