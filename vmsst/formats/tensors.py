"""Tensors in files: shapes first, values on request, and checks against damaged files.

`open_file` reads safetensors, and state dicts of PyTorch without running any code in them.
"""

import dataclasses
import functools
import json
import math
import mmap
import pathlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import safetensors
from ml_dtypes import bfloat16

from vmsst import errors
from vmsst.io import input_files

_FLOATS = {"F64": np.float64, "F32": np.float32, "F16": np.float16, "BF16": bfloat16}
# JAX uses mapped arrays only if they start at a multiple.
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
    release: Returns the memory of a mapped file to the system, which reads it again when needed.
    private: Reads it from a mapping of its file that can be changed, where only changed pages take
      memory; each time the same array. None: the file is not mapped.
  """

  shape: tuple[int, ...]
  where: str
  load: Callable[[], np.ndarray]
  release: Callable[[], None] = lambda: None
  private: Callable[[], np.ndarray] | None = None

  def read(self) -> np.ndarray:
    """Returns the values in float32.

    The array is read-only if the file is mapped into memory: the system reads the parts that are
    used, and can drop them at any time. The file must not be changed in place while it is in use.

    Raises:
      InputError: the tensor cannot be read, or its values are not finite floating-point numbers.
    """
    try:
      array = np.asarray(self.load())
    except errors.InputError:
      raise
    except Exception as error:  # each format raises its own types for damaged data
      raise errors.InputError(f"{self.where} cannot be read: {error}") from error
    if array.dtype not in _FLOATS.values():
      raise _unknown_type(self.where, array.dtype)
    if array.shape != self.shape:
      raise errors.InputError(f"{self.where} has shape {array.shape}, its header says {self.shape}")
    array = np.asarray(array, np.float32)
    flat = array.reshape(-1)
    for start in range(0, flat.size, _BLOCK):
      block = flat[start : start + _BLOCK]
      # Minimum and maximum are NaN if any value is.
      if not np.isfinite([block.min(), block.max()]).all():
        raise errors.InputError(f"{self.where} contains infinite or NaN values")
      self.release()
    return array

  def changeable(self) -> np.ndarray:
    """Returns the values in float32, not checked, in an array that the caller changes, once."""
    array = self.load().copy() if self.private is None else self.private()
    return np.asarray(array, np.float32)

  def computed(
    self, load: Callable[[], np.ndarray], shape: tuple[int, ...] | None = None
  ) -> "StoredTensor":
    """Returns a tensor that `load` computes from this one, of the same shape if None is given."""
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
  return _open_safetensors(path)


def write_file(
  path: pathlib.Path, arrays: Mapping[str, np.ndarray], metadata: dict[str, str] | None = None
) -> None:
  """Writes float32 arrays to a new safetensors file, aligned so that JAX can map them into memory.

  The library's own writer does not align tensors, and gives the file the mode 0600.

  Raises:
    OSError: the file cannot be written; the message names it.
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
  try:
    with path.open("wb") as stream:
      stream.write(len(text).to_bytes(8, "little") + text)
      for name in names:
        stream.write(np.ascontiguousarray(arrays[name], "<f4").data)
  except OSError as error:
    raise OSError(error.errno, error.strerror, path.name) from error


def _open_safetensors(path: pathlib.Path) -> dict[str, StoredTensor]:
  try:
    with safetensors.safe_open(path, framework="np"), path.open("rb") as stream:  # checks offsets
      size = int.from_bytes(stream.read(8), "little")
      header = json.loads(stream.read(size))
      mapped = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
      private = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_COPY)
  except (safetensors.SafetensorError, OSError) as error:
    raise errors.InputError(f"{path} is not a valid safetensors file: {error}") from error

  def stored(name: str, entry: Mapping[str, Any]) -> StoredTensor:
    where, shape, kind = f"{name} in {path}", tuple(entry["shape"]), entry["dtype"]

    def load(source: mmap.mmap) -> np.ndarray:
      if kind not in _FLOATS:
        raise _unknown_type(where, kind)
      start = 8 + size + entry["data_offsets"][0]
      return np.frombuffer(source, _FLOATS[kind], math.prod(shape), start).reshape(shape)

    return StoredTensor(
      shape,
      where,
      functools.partial(load, mapped),
      functools.partial(mapped.madvise, mmap.MADV_DONTNEED),
      functools.partial(load, private),
    )

  return {name: stored(name, x) for name, x in header.items() if name != "__metadata__"}


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
    with path.open("rb") as stream:
      if stream.read(1) not in (b"P", b"\x80"):  # torch would unpack a tar file on disk
        raise ValueError("not a zip archive or pickle")
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
    InputError: it is not a state dict, or the file is smaller than its tensors.
  """
  import torch

  if not isinstance(state, Mapping):
    raise errors.InputError(f"{path} holds no state_dict of names and tensors")
  for name, value in state.items():
    if not isinstance(name, str):
      raise errors.InputError(f"{path} holds no state_dict of names and tensors")
    if not isinstance(value, torch.Tensor):
      raise errors.InputError(f"{path}: {name!r} is not a tensor: the file holds no state_dict")

  def stored(name: str, tensor: Any) -> StoredTensor:
    def load() -> np.ndarray:
      # NumPy has no bfloat16; float32 represents it exactly.
      plain = tensor.float() if tensor.dtype == torch.bfloat16 else tensor
      return np.asarray(plain.numpy())

    return StoredTensor(tuple(tensor.shape), f"{name} in {path}", load)

  return {name: stored(name, tensor) for name, tensor in state.items()}


def _unknown_type(where: str, kind: object) -> errors.InputError:
  return errors.InputError(
    f"{where} is of type {kind}, not float32, float16, bfloat16 or float64; dequantize the "
    "checkpoint first if it is quantized"
  )


def some(names: Iterable[str], count: int = 3) -> str:
  """Returns the first names of many, and the number of others."""
  names = sorted(names)
  more = f" and {len(names) - count} more" if len(names) > count else ""
  return ", ".join(names[:count]) + more
