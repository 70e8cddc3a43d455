"""State dicts in files of torch, unpickled without anything but data: no code in them is run."""

import functools
import pathlib
import pickle
import tarfile
import zipfile
from collections.abc import Mapping
from typing import Any

import numpy as np

from vmsst import errors
from vmsst.checkpoints import tensors
from vmsst.files import input_files

_STATE = "state_dict"


def open_file(path: pathlib.Path) -> dict[str, tensors.StoredTensor]:
  """Returns the tensors of a state dict by name, be it the file's content or its `state_dict`.

  Raises:
    InputError: torch is not installed, or the file is damaged, holds no state dict, or more than
      tensors and plain values.
  """
  try:
    import torch
  except ModuleNotFoundError:
    raise errors.InputError(
      f"{path} is a file of torch, which is not installed: pip install torch, or convert the state "
      "dict to a .safetensors file where it is"
    ) from None
  input_files.check(path)
  if tarfile.is_tarfile(path):  # torch would make a folder to unpack it, and then refuse it
    raise errors.InputError(f"{path} is a tar archive, as torch wrote before 2017: save it again")
  if _is_compressed(path):  # torch never does that, and would read it however large it gets
    raise errors.InputError(f"{path} is a compressed archive, which torch does not write")
  try:
    record = torch.load(path, map_location="cpu", weights_only=True)
  except pickle.UnpicklingError as error:
    reason = str(error).partition("\n")[0]
    raise errors.InputError(
      f"{path} holds more than tensors and plain values, or is damaged; what else is pickled could "
      f"run code and is not read ({reason})"
    ) from None
  except Exception as error:  # torch has an exception of another kind for each damage
    raise errors.InputError(f"{path} is no complete file of torch: {error}") from None
  state = record.get(_STATE, record) if isinstance(record, Mapping) else None
  if not isinstance(state, Mapping):
    raise errors.InputError(f"{path} holds no {_STATE} of names and tensors")
  for name, value in state.items():
    if not isinstance(name, str):
      raise errors.InputError(f"{path}: a name is a {type(name).__name__}: it holds no {_STATE}")
    if not isinstance(value, torch.Tensor):
      raise errors.InputError(f"{path}: {name!r} is no tensor: the file holds no {_STATE}")
    if not _is_held(value):
      raise errors.InputError(f"{path}: {name!r} is sparse or repeats the numbers that it holds")

  def load(tensor: Any) -> np.ndarray:
    # NumPy has no bfloat16; every half is a float32 too.
    halves = (torch.bfloat16, torch.float16)
    array = tensor.float() if tensor.dtype in halves else tensor
    return np.asarray(array.numpy())

  return {
    name: tensors.StoredTensor(
      tuple(tensor.shape), f"{name} in {path}", functools.partial(load, tensor)
    )
    for name, tensor in state.items()
  }


def _is_compressed(path: pathlib.Path) -> bool:
  try:
    with zipfile.ZipFile(path) as archive:
      return any(member.compress_type != zipfile.ZIP_STORED for member in archive.infolist())
  except Exception:  # Older files are no archives; of a damaged one torch says what is wrong.
    return False


def _is_held(tensor: Any) -> bool:
  """Whether a tensor has its numbers in the file, each once: else it may be larger than memory."""
  import torch

  if tensor.layout != torch.strided or tensor.is_meta:
    return False
  return bool(tensor.numel() * tensor.element_size() <= tensor.untyped_storage().nbytes())
