"""State dicts of PyTorch models, read from safetensors or pickles without running any code."""

import functools
import pathlib
import pickle
import re
import tarfile
import zipfile
from collections.abc import Mapping
from typing import Any

import numpy as np

from vmsst import errors
from vmsst.checkpoints import hugging_face, tensors
from vmsst.files import input_files

_STATE = "state_dict"
# How files of torch start: a zip archive, or before torch 1.6 a pickle of protocol 2 or higher.
_STARTS = (b"PK\x03\x04", b"\x80")


def open_state_dict(
  path: pathlib.Path, *, expected: str = "a state dict (.pt, .bin, .safetensors)"
) -> dict[str, tensors.StoredTensor]:
  """Returns the tensors of a state dict by name.

  Args:
    path: A `.safetensors` file, or a file of torch that holds the state dict itself or under the
      key `state_dict`.
    expected: What to give instead of a file that is neither, for messages.

  Raises:
    InputError: torch is needed but not installed, or the file is damaged, is not a state dict, or
      holds more than tensors and plain values.
  """
  if path.suffix == ".safetensors":
    return hugging_face.open_file(path)
  input_files.check(path)
  if tarfile.is_tarfile(path):  # torch would make a folder to unpack it, and then refuse it
    raise errors.InputError(f"{path} is a tar archive, as torch wrote before 2017; save it again")
  with path.open("rb") as stream:
    if not stream.read(max(map(len, _STARTS))).startswith(_STARTS):
      raise errors.InputError(f"{path} is not a file of torch or safetensors; give {expected}")
  try:
    import torch
  except ModuleNotFoundError:
    raise errors.InputError(
      f"{path} is a file of torch, which is not installed; run pip install torch, or convert the "
      "state dict to a .safetensors file on another machine"
    ) from None
  if _is_compressed(path):  # torch never does that, and would read it however large it gets
    raise errors.InputError(f"{path} is a compressed archive, which torch does not write")
  try:
    record = torch.load(path, map_location="cpu", weights_only=True)
  except pickle.UnpicklingError as error:
    # Not torch's own message, which recommends loading the file without protection.
    named = re.search(r"GLOBAL ([\w.]+)", str(error))
    reason = f" (it refers to {named[1]})" if named else ""
    raise errors.InputError(
      f"{path} holds more than tensors and plain values, or is damaged; other pickled objects "
      f"could run code and are not read{reason}; give {expected}"
    ) from None
  except Exception as error:  # torch raises a different type for each kind of damage
    reason = str(error).partition("\n")[0]
    reason = f": {reason}" if reason and "weights_only" not in reason else ""
    raise errors.InputError(
      f"{path} is not a valid file of torch{reason}; copy it again, or give {expected}"
    ) from None
  state = record.get(_STATE, record) if isinstance(record, Mapping) else None
  if not isinstance(state, Mapping):
    raise errors.InputError(f"{path} holds no {_STATE} of names and tensors")
  for name, value in state.items():
    if not isinstance(name, str):
      raise errors.InputError(f"{path}: a name is a {type(name).__name__}: it holds no {_STATE}")
    if not isinstance(value, torch.Tensor):
      raise errors.InputError(f"{path}: {name!r} is not a tensor: the file holds no {_STATE}")
    if not _is_stored(value):
      raise errors.InputError(f"{path}: {name!r} is sparse or repeats its stored values")

  def load(tensor: Any) -> np.ndarray:
    # NumPy has no bfloat16; float32 represents both half types exactly.
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
  except Exception:  # older files are not archives; torch reports what is wrong with a damaged one
    return False


def _is_stored(tensor: Any) -> bool:
  """Whether the file has each value of a tensor; otherwise the tensor may be larger than memory."""
  import torch

  if tensor.layout != torch.strided or tensor.is_meta:
    return False
  return bool(tensor.numel() * tensor.element_size() <= tensor.untyped_storage().nbytes())
