"""Reads Hugging Face folders: `config.json` and safetensors, in one file or in shards.

Nothing is unpickled: for a folder with only `pytorch_model.bin`, the error shows how to convert it.
"""

import functools
import json
import math
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import safetensors

from vmsst import errors
from vmsst.checkpoints import safetensors_files, tensors
from vmsst.files import input_files, storage

CONFIG_FILE = "config.json"
WEIGHTS_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
_BLOCK_NUMBERS = 1 << 22  # values that are read at once
_CONVERT = (
  'python -c "import torch, safetensors.torch as s; '
  "w = torch.load('pytorch_model.bin', map_location='cpu', weights_only=True); "
  "s.save_file({k: v.clone().contiguous() for k, v in w.items()}, 'model.safetensors')\""
)


def check_folder(folder: pathlib.Path, expected: str) -> None:
  """Raises InputError, with what to give instead, if a folder is missing or is a file."""
  if not folder.is_dir():
    problem = f"{folder} is a file" if folder.exists() else f"no folder {folder}"
    raise errors.InputError(f"{problem}; give {expected}")


def read_config(folder: str | os.PathLike[str]) -> dict[str, Any]:
  """Returns the object in `config.json`.

  Raises:
    InputError: the file is missing or is not a JSON object.
  """
  return read_object(pathlib.Path(folder) / CONFIG_FILE)


def read_object(path: storage.Path) -> dict[str, Any]:
  """Returns the object in a JSON file.

  Raises:
    InputError: the file cannot be read or is not a JSON object.
  """
  record = input_files.read_json(path)
  if not isinstance(record, dict):
    raise errors.InputError(f"{path} holds a JSON {type(record).__name__}, not an object")
  return record


def positive_integer(
  path: pathlib.Path, config: Mapping[str, Any], key: str, default: int | None = None
) -> int:
  """Returns a size in the config from `path`, or `default` if it is missing.

  Raises:
    InputError: it is not a positive integer.
  """
  value = config.get(key)
  value = default if value is None else value
  if isinstance(value, bool) or not isinstance(value, int) or not 0 < value < 1 << 31:
    raise errors.InputError(
      f"{path}: {key!r} is {input_files.shown(value)}, not a positive integer below 2^31"
    )
  return value


def check_choice(
  path: pathlib.Path, config: Mapping[str, Any], key: str, default: Any, known: Sequence[Any]
) -> None:
  """Raises InputError if the config from `path` has none of the known values."""
  value = config.get(key, default)
  if value not in known:
    raise errors.InputError(
      f"{path}: {key!r} is {input_files.shown(value)}; only "
      f"{' and '.join(map(repr, known))} can be imported"
    )


def open_tensors(folder: str | os.PathLike[str]) -> dict[str, tensors.StoredTensor]:
  """Returns the tensors in all safetensors files of a model by name, to be read on request.

  Raises:
    InputError: a file is missing or damaged, the index names a file outside the folder or does not
      match the files, or the weights are pickled.
  """
  folder = pathlib.Path(folder)
  if (folder / WEIGHTS_FILE).is_file():
    return open_file(folder / WEIGHTS_FILE)
  if not (folder / INDEX_FILE).is_file():
    raise errors.InputError(_no_weights(folder))
  shard_of = _read_index(folder / INDEX_FILE)
  shards = sorted(set(shard_of.values()))
  for shard in shards:
    if not (folder / shard).is_file():
      raise errors.InputError(f"{folder / shard} does not exist, but {INDEX_FILE} names it")
  found: dict[str, tensors.StoredTensor] = {}
  for shard in shards:
    for name, tensor in open_file(folder / shard).items():
      if shard_of.get(name) != shard:
        raise errors.InputError(
          f"{folder / shard} holds {name}, but {INDEX_FILE} puts it into {shard_of.get(name)}"
        )
      found[name] = tensor
  absent = sorted(set(shard_of) - set(found))
  if absent:
    raise errors.InputError(
      f"{folder / shard_of[absent[0]]} lacks {absent[0]}, which {INDEX_FILE} puts into it"
    )
  return found


def open_file(path: pathlib.Path) -> dict[str, tensors.StoredTensor]:
  """Returns the tensors in a safetensors file by name, to be read on request.

  Raises:
    InputError: the file is missing or damaged.
  """
  input_files.check(path)
  try:
    # It stays open, mapped into memory, as long as one of its tensors is referenced.
    file = safetensors.safe_open(path, framework="np")
    shapes = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
  except (safetensors.SafetensorError, OSError) as error:
    raise errors.InputError(f"{path} is not a valid safetensors file: {error}") from error

  places = _mappable(path)

  def stored(name: str, shape: tuple[int, ...]) -> tensors.StoredTensor:
    where = f"{name} in {path}"
    read = functools.partial(_read, file, name, shape)
    if name not in places:
      return tensors.StoredTensor(shape, where, read)
    mapped = functools.partial(_mapped, path, places[name], shape, where)
    return tensors.StoredTensor(shape, where, read, mapped)

  return {name: stored(name, shape) for name, shape in shapes.items()}


def _mappable(path: pathlib.Path) -> dict[str, int]:
  """Returns where in a valid safetensors file the float32 tensors that JAX can use start."""
  with path.open("rb") as stream:
    size = int.from_bytes(stream.read(8), "little")
    header = json.loads(stream.read(size))
  header.pop("__metadata__", None)
  starts = {
    name: 8 + size + entry["data_offsets"][0]
    for name, entry in header.items()
    if entry["dtype"] == "F32" and math.prod(entry["shape"])
  }
  return {name: start for name, start in starts.items() if not start % safetensors_files.ALIGNMENT}


def _mapped(path: pathlib.Path, start: int, shape: tuple[int, ...], where: str) -> np.ndarray:
  """Maps a tensor into memory after a check, which reads it in blocks and without the mapping."""
  count = math.prod(shape)
  with path.open("rb") as stream:
    stream.seek(start)
    for first in range(0, count, _BLOCK_NUMBERS):
      block = np.fromfile(stream, "<f4", min(_BLOCK_NUMBERS, count - first))
      tensors.check_finite(block, where)
  return np.asarray(np.memmap(path, "<f4", "r", start, shape))


def _read(file: Any, name: str, shape: tuple[int, ...]) -> np.ndarray:
  """Reads a tensor in blocks of rows: safetensors makes two copies of each block."""
  if not shape or not math.prod(shape):
    return file.get_tensor(name)
  rows, count = file.get_slice(name), shape[0]
  size = max(1, _BLOCK_NUMBERS * count // math.prod(shape))
  first = rows[0 : min(size, count)]
  array = tensors.aligned_empty(shape, first.dtype)
  array[:size] = first
  for start in range(size, count, size):
    array[start : start + size] = rows[start : min(start + size, count)]
  return array


def _read_index(path: pathlib.Path) -> dict[str, str]:
  """Returns the file name of each tensor."""
  shard_of = read_object(path).get("weight_map")
  if not isinstance(shard_of, dict) or not shard_of:
    raise errors.InputError(f"{path} has no object 'weight_map' of tensor names and files")
  for name, shard in shard_of.items():
    plain = isinstance(shard, str) and shard.endswith(".safetensors")
    if not plain or pathlib.PurePath(shard).name != shard or "\\" in shard or "\0" in shard:
      raise errors.InputError(
        f"{path}: the file of {name} is {shard!r}, not the name of a .safetensors file next to it"
      )
  return shard_of


def _no_weights(folder: pathlib.Path) -> str:
  pickles = sorted(path.name for path in folder.glob("pytorch_model*.bin"))
  if pickles:
    return (
      f"{folder} has its weights in {pickles[0]}, a pickle, which can run code when it is opened "
      f"and is not read; convert it in that folder, with torch installed: {_CONVERT}"
    )
  return f"{folder} has neither {WEIGHTS_FILE} nor {INDEX_FILE}"
