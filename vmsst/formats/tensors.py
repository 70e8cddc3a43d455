"""Reads and writes tensors in files, and maps them to parameters.

`open_file` reads safetensors files and PyTorch state dicts. It never runs code from a file.

A table describes a model from another library. Each `Row` in a table contains the name and shape of
a tensor, and the names of the parameters that the tensor is converted to. `check` compares a table
with the tensors in a file, and `to_parameters` converts the tensors. For exports, `to_tensors` uses
the same table in the opposite direction.
"""

import functools
import json
import math
import mmap
import pathlib
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import safetensors

from vmsst import errors

# Types that `read` converts to float32. It rejects all other types, such as quantized int8.
_FLOATS = {"F64": np.float64, "F32": np.float32, "F16": np.float16, "BF16": ml_dtypes.bfloat16}
_TYPES = _FLOATS | {
  "I64": np.int64, "I32": np.int32, "I16": np.int16, "I8": np.int8, "U8": np.uint8,
  "BOOL": np.bool_, "F8_E4M3": ml_dtypes.float8_e4m3fn, "F8_E5M2": ml_dtypes.float8_e5m2,
}  # fmt: skip
# JAX uses memory-mapped arrays without a copy only if the arrays are aligned to 64 bytes.
_ALIGNMENT = 64
# Number of values to check at once. Checking in blocks avoids reading a whole mapped file into
# memory.
_BLOCK = 1 << 22


class StoredTensor(NamedTuple):
  """A tensor in a file.

  Attributes:
    shape: The shape.
    source: Name and file of the tensor, for messages.
    load: Reads the tensor without converting the type.
  """

  shape: tuple[int, ...]
  source: str
  load: Callable[[], np.ndarray]

  def read(self) -> np.ndarray:
    """Returns the values in float32.

    A float32 array from a safetensors file is a memory map. The operating system reads pages on
    first use, and changes to the array are not written to the file. Do not modify the file while
    the array is in use.

    Raises:
      InputError: If the values are not finite floating-point numbers.
    """
    array = self.load()
    if array.dtype not in _FLOATS.values():
      raise errors.InputError(
        f"{self.source} is of type {array.dtype}, not float32, float16, bfloat16 or float64; "
        "dequantize the checkpoint first if it is quantized"
      )
    array = np.asarray(array, np.float32)
    flat = array.reshape(-1)
    for start in range(0, flat.size, _BLOCK):
      block = flat[start : start + _BLOCK]
      # The minimum and maximum are NaN if any value is NaN.
      if not np.isfinite([block.min(), block.max()]).all():
        raise errors.InputError(f"{self.source} contains infinite or NaN values")
    return array


def open_file(path: pathlib.Path) -> dict[str, StoredTensor]:
  """Returns the tensors of a model by name.

  Args:
    path: A `.safetensors` file, or a PyTorch file with a state dict. The state dict may be stored
      under the key `state_dict`. Other pickled objects are rejected, because they could run code.

  Raises:
    InputError: If the file is missing or damaged, contains unexpected objects, or requires torch
      but torch is not installed.
  """
  if path.suffix != ".safetensors":
    record = read_torch(path)
    return of_state(path, record.get("state_dict", record) if isinstance(record, Mapping) else None)
  try:
    # safe_open checks the header and the offsets.
    with safetensors.safe_open(path, framework="np"), path.open("rb") as stream:
      size = int.from_bytes(stream.read(8), "little")
      header = json.loads(stream.read(size))
      mapped = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_COPY)
  except safetensors.SafetensorError as error:
    raise errors.InputError(f"{path} is not a valid safetensors file: {error}") from error
  return {
    name: StoredTensor(
      tuple(entry["shape"]), f"{name} in {path}", functools.partial(_load, mapped, 8 + size, entry)
    )
    for name, entry in header.items()
    if name != "__metadata__"
  }


def _load(mapped: mmap.mmap, start: int, entry: Mapping[str, Any]) -> np.ndarray:
  """Returns a tensor from a safetensors file.

  Args:
    mapped: The file.
    start: Position of the first tensor in the file.
    entry: The tensor's entry in the header.
  """
  shape, (offset, _) = entry["shape"], entry["data_offsets"]
  array = np.frombuffer(mapped, _TYPES[entry["dtype"]], math.prod(shape), start + offset)
  return array.reshape(shape)


def write_file(
  path: pathlib.Path, arrays: Mapping[str, np.ndarray], metadata: dict[str, str] | None = None
) -> None:
  """Writes float32 arrays to a new safetensors file, aligned so that JAX can map them into memory.

  This function replaces the writer in the safetensors package, which does not align tensors and
  sets the file mode to 0600.
  """
  header: dict[str, object] = {"__metadata__": metadata} if metadata else {}
  # The format allows no gaps, so tensors whose sizes would misalign the next tensor come last.
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
  """Returns the object in a PyTorch file, without running code from the file.

  Args:
    path: The file.
    *allowed: Classes that the file may contain besides tensors, containers, numbers and strings.

  Raises:
    InputError: If the file is missing or damaged, contains objects of other classes, or torch is
      not installed.
  """
  with errors.requires("sentence-transformers", f"{path}, a PyTorch file,"):
    import torch
  try:
    with torch.serialization.safe_globals([*allowed]):
      return torch.load(path, map_location="cpu", weights_only=True)
  except Exception:
    # Replace torch's message, which recommends loading the file without protection.
    raise errors.InputError(
      f"{path} is not a PyTorch file, is damaged, or contains objects that could run code; copy it "
      "again, or save only its state dict"
    ) from None


def of_state(path: pathlib.Path, state: Any) -> dict[str, StoredTensor]:
  """Returns the tensors of a PyTorch state dict by name.

  Args:
    path: File with the state dict, for messages.
    state: The state dict.

  Raises:
    InputError: If `state` is not a state dict.
  """
  import torch

  if not isinstance(state, Mapping) or not all(
    isinstance(name, str) and isinstance(value, torch.Tensor) for name, value in state.items()
  ):
    raise errors.InputError(f"{path} contains no state dict that maps names to tensors")
  return {
    # NumPy has no bfloat16; float32 represents it exactly.
    name: StoredTensor(
      tuple(tensor.shape),
      f"{name} in {path}",
      (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy,
    )
    for name, tensor in state.items()
  }


# --------------------------------------------------------------------------------------------
# Tables

TOKEN_TABLE = "token_embedder/embedding"


class Row(NamedTuple):
  """Maps a tensor from another library to parameters.

  Attributes:
    source: Name of the tensor. If empty, the other library's model has no such tensor, and the
      parameter is set to ones.
    shape: Shape of the tensor.
    targets: Names of the parameters. The tensor is split along its first axis into one equal part
      per name.
    transposed: Whether to transpose the tensor.
    plus: Constant added to the tensor.
  """

  source: str
  shape: tuple[int, ...]
  targets: tuple[str, ...]
  transposed: bool = False
  plus: float = 0.0


def dense(source: str, shape: tuple[int, int], *targets: str, bias: bool = True) -> list[Row]:
  """Returns the rows for a PyTorch dense layer. `shape` is (outputs, inputs), as in PyTorch."""
  rows = [Row(f"{source}.weight", shape, tuple(f"{x}/kernel" for x in targets), transposed=True)]
  if bias:
    rows.append(Row(f"{source}.bias", shape[:1], tuple(f"{x}/bias" for x in targets)))
  return rows


def norm(
  source: str, width: int, target: str, *, bias: bool = True, plus: float = 0.0
) -> list[Row]:
  """Returns the rows for a PyTorch normalization layer; `plus` is added to its weight."""
  rows = [Row(f"{source}.weight", (width,), (f"{target}/scale",), plus=plus)]
  return [*rows, Row(f"{source}.bias", (width,), (f"{target}/bias",))] if bias else rows


def check(rows: Iterable[Row], saved: Mapping[str, StoredTensor], source: str) -> None:
  """Checks that the tensors in a file match a model's table.

  Args:
    rows: The table.
    saved: The tensors by name.
    source: The file, for messages.

  Raises:
    InputError: If a tensor is missing, has the wrong shape or is not in the table.
  """
  expected = {row.source: row.shape for row in rows if row.source}
  for name, shape in expected.items():
    if name in saved and saved[name].shape != shape:
      raise errors.InputError(f"{saved[name].source} has shape {saved[name].shape}, not {shape}")
  problems = []
  if missing := expected.keys() - saved.keys():
    problems.append(f"lacks {errors.some(missing)}")
  if unknown := saved.keys() - expected.keys():
    problems.append(f"has the unexpected tensors {errors.some(unknown)}")
  if problems:
    raise errors.InputError(
      f"{source} {' and '.join(problems)} ({len(expected)} tensors expected, {len(saved)} found)"
    )


def to_parameters(rows: Iterable[Row], saved: Mapping[str, StoredTensor]) -> dict[str, np.ndarray]:
  """Converts tensors to float32 parameters, by name.

  Raises:
    InputError: If a tensor cannot be read, or contains values that are not finite.
  """
  params: dict[str, np.ndarray] = {}
  for row in rows:
    array = saved[row.source].read() if row.source else np.ones(row.shape, np.float32)
    for name, piece in zip(row.targets, np.split(array, len(row.targets)), strict=True):
      piece = np.ascontiguousarray(piece.T) if row.transposed else piece
      params[name] = piece + np.float32(row.plus) if row.plus else piece
  return params


def to_tensors(rows: Iterable[Row], params: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
  """Converts parameters to tensors for the other library, by name. Inverse of `to_parameters`."""
  tensors = {}
  for row in rows:
    if row.source:
      pieces = [params[name] - np.float32(row.plus) if row.plus else params[name]
               for name in row.targets]  # fmt: skip
      pieces = [np.ascontiguousarray(piece.T if row.transposed else piece) for piece in pieces]
      tensors[row.source] = np.concatenate(pieces) if len(pieces) > 1 else pieces[0]
  return tensors


# --------------------------------------------------------------------------------------------
# A network stores its layers in one of two layouts. With `scan_layers`, each parameter
# `encoder/layers/...` has a leading layer axis. Otherwise, each layer has its own parameters:
# `encoder/layers_0/...`, `encoder/layers_1/...`. Both networks compute the same function, so a
# network can read a checkpoint of either layout.

_STACK = "/layers/"
_LAYER = re.compile(r"(.*)/layers_(0|[1-9][0-9]{0,3})/(.*)")


class Source(NamedTuple):
  """Describes how to build a parameter from the arrays in a checkpoint.

  Attributes:
    names: Names of the arrays: a single array, or one array per layer.
    stacked: Whether to stack the arrays along a new layer axis.
    layer: Index of the parameter's layer, if the array contains all layers.
  """

  names: tuple[str, ...]
  stacked: bool = False
  layer: int | None = None

  def shape(self, arrays: Mapping[str, Any]) -> tuple[int, ...]:
    """Returns the shape of the parameter."""
    shape = tuple(arrays[self.names[0]].shape)
    if self.stacked:
      return (len(self.names), *shape)
    return shape if self.layer is None else shape[1:]

  def make(self, arrays: Mapping[str, jax.Array]) -> jax.Array:
    """Builds the parameter from the checkpoint's arrays by name."""
    pieces = [arrays[name] for name in self.names]
    if self.stacked:
      return jnp.stack(pieces)
    return pieces[0] if self.layer is None else pieces[0][self.layer]


def find(name: str, shape: tuple[int, ...], arrays: Mapping[str, Any]) -> Source | None:
  """Finds a parameter in a checkpoint with or without scanned layers. Returns None if missing.

  If the network has fewer layers than the checkpoint, the checkpoint's first layers are used.
  However, this is not supported if both the network and the checkpoint have scanned layers.

  Args:
    name: Name of the parameter.
    shape: Shape of the parameter in the network.
    arrays: The checkpoint's arrays by name.
  """
  if name in arrays:
    return Source((name,))
  if layer := _LAYER.fullmatch(name):
    stack, index = f"{layer[1]}{_STACK}{layer[3]}", int(layer[2])
    if stack in arrays and arrays[stack].shape and index < arrays[stack].shape[0]:
      return Source((stack,), layer=index)
    return None
  head, separator, parameter = name.partition(_STACK)
  if not separator or not shape or not 0 < shape[0] <= errors.MOST_LAYERS:
    return None
  names = tuple(f"{head}/layers_{i}/{parameter}" for i in range(shape[0]))
  layers = {tuple(arrays[layer].shape) if layer in arrays else None for layer in names}
  return Source(names, stacked=True) if len(layers) == 1 and None not in layers else None


def separate(arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
  """Splits the parameters of scanned layers into one array per layer. The arrays are views."""
  separated: dict[str, np.ndarray] = {}
  for name, array in arrays.items():
    head, separator, parameter = name.partition(_STACK)
    if separator:
      separated |= {f"{head}/layers_{i}/{parameter}": layer for i, layer in enumerate(array)}
    else:
      separated[name] = array
  return separated
