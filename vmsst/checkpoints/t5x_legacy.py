"""Reads T5X checkpoints in the layout before Orbax, as the public mT5 checkpoints are.

`checkpoint_<step>/checkpoint` is a msgpack tree `{"version", "optimizer": {"target", "state"}}`.
It holds an array itself, or a description of a Zarr array in the folder `target.<name with dots>`
next to the file. Only the folder's name in a description is used: its path may be where the
checkpoint was written, on another machine or in a bucket.
"""

import pathlib
from typing import Any

import flax.serialization
import numpy as np
import tensorstore
from flax import traverse_util

from vmsst import errors
from vmsst.checkpoints import tensors
from vmsst.files import input_files

INDEX_FILE = "checkpoint"
_DESCRIPTION = {"driver", "kvstore", "metadata"}
_VERSIONS = (2, 3)


def open_params(folder: pathlib.Path) -> dict[str, tensors.StoredTensor]:
  """Returns the parameters of a checkpoint by name, to be read on request.

  Args:
    folder: A `checkpoint_<step>` folder.

  Raises:
    InputError: the index is damaged or of another version, or names an array outside the folder.
  """
  path = folder / INDEX_FILE
  content = input_files.read_bytes(path)
  try:
    index = flax.serialization.msgpack_restore(content)
  except Exception as error:  # msgpack raises many types for damaged data
    raise errors.InputError(f"{path} is not a T5X checkpoint: {error}") from error
  version = index.get("version") if isinstance(index, dict) else None
  if version not in _VERSIONS:
    known = " and ".join(map(str, _VERSIONS))
    raise errors.InputError(f"{path} is of version {version}; only versions {known} can be read")
  optimizer = index.get("optimizer")
  target = optimizer.get("target") if isinstance(optimizer, dict) else None
  if not isinstance(target, dict):
    raise errors.InputError(f"{path} has no tree optimizer/target of parameters")
  try:
    flat = traverse_util.flatten_dict(
      target, is_leaf=lambda _, value: set(value) >= _DESCRIPTION, sep="/"
    )
  except (TypeError, RecursionError) as error:
    raise errors.InputError(f"{path}: parameter names are not strings: {error}") from None
  return {name: _open(folder, name, value) for name, value in flat.items()}


def _open(folder: pathlib.Path, name: str, value: Any) -> tensors.StoredTensor:
  where = f"{name} in {folder / INDEX_FILE}"
  if isinstance(value, np.ndarray):
    return tensors.StoredTensor(value.shape, where, lambda: value)
  if not isinstance(value, dict):
    raise errors.InputError(f"{where} is a {type(value).__name__}, not an array")
  array_folder = folder / f"target.{name.replace('/', '.')}"
  if _named_folder(value) != array_folder.name or array_folder.parent != folder:
    raise errors.InputError(
      f"{where} names the folder {_named_folder(value)!r}, which is not next to this file"
    )
  spec = {"driver": value["driver"], "kvstore": {"driver": "file", "path": f"{array_folder}/"}}
  if value["driver"] != "zarr":
    raise errors.InputError(f"{where} is stored by {value['driver']!r}; only 'zarr' can be read")
  input_files.check_below(array_folder)
  try:
    array = tensorstore.open(spec, open=True, read=True).result()
  except Exception as error:  # tensorstore raises many types for damaged data
    raise errors.InputError(f"{array_folder} is not a readable Zarr array: {error}") from error
  tensors.check_held(array.size, input_files.size_below(array_folder), str(array_folder))
  return tensors.StoredTensor(tuple(array.shape), str(array_folder), lambda: array.read().result())


def _named_folder(description: dict[str, Any]) -> str:
  """Returns the folder in a description: newer versions have it inside `kvstore`."""
  store = description["kvstore"]
  path = store.get("path", description.get("path")) if isinstance(store, dict) else None
  return str(path).rstrip("/")
