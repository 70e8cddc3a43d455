"""Reads Hugging Face folders: `config.json` and weights, in one file or in shards."""

import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from vmsst import errors, storage
from vmsst.formats import tensors
from vmsst.io import input_files

CONFIG_FILE = "config.json"
WEIGHTS_FILE, TORCH_FILE = "model.safetensors", "pytorch_model.bin"


def read_object(path: storage.Path) -> dict[str, Any]:
  """Returns the object in a JSON file.

  Raises:
    InputError: the file cannot be read or is not a JSON object.
  """
  record = input_files.read_json(path)
  if not isinstance(record, dict):
    raise errors.InputError(f"{path} holds a JSON {type(record).__name__}, not an object")
  return record


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
  """Returns the tensors in all files of weights by name, to be read on request.

  They are those of `model.safetensors` or, without it, `pytorch_model.bin`, which requires torch;
  each may be an index of shards instead (`model.safetensors.index.json`).

  Raises:
    InputError: a file is missing or damaged, or the index names a file outside the folder or does
      not match the files.
  """
  folder = pathlib.Path(folder)
  for path in (folder / WEIGHTS_FILE, folder / TORCH_FILE):
    index = path.with_name(f"{path.name}.index.json")
    if path.is_file():
      return tensors.open_file(path)
    if index.is_file():
      return _open_shards(index, path.suffix)
  raise errors.InputError(
    f"{folder} has no weights: neither {WEIGHTS_FILE} nor {TORCH_FILE}, nor the index of one"
  )


def _open_shards(index: pathlib.Path, suffix: str) -> dict[str, tensors.StoredTensor]:
  """Returns the tensors in the shards that an index lists."""
  shard_by_name = read_object(index).get("weight_map")
  if not isinstance(shard_by_name, dict) or not shard_by_name:
    raise errors.InputError(f"{index} has no object 'weight_map' of tensor names and files")
  for name, shard in shard_by_name.items():
    plain = isinstance(shard, str) and shard.endswith(suffix)
    if not plain or pathlib.PurePath(shard).name != shard or "\\" in shard or "\0" in shard:
      raise errors.InputError(
        f"{index}: the file of {name} is {shard!r}, not the name of a {suffix} file next to it"
      )
  tensors_by_name: dict[str, tensors.StoredTensor] = {}
  for shard in sorted(set(shard_by_name.values())):
    for name, tensor in tensors.open_file(index.with_name(shard)).items():
      if shard_by_name.get(name) != shard:
        raise errors.InputError(f"{index} puts {name} into {shard_by_name.get(name)}, not {shard}")
      tensors_by_name[name] = tensor
  if absent := sorted(shard_by_name.keys() - tensors_by_name.keys()):
    raise errors.InputError(
      f"{index} puts {absent[0]} into {shard_by_name[absent[0]]}, which lacks it"
    )
  return tensors_by_name
