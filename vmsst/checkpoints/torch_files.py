"""State dicts in files of torch, unpickled without anything but data: no code in them is run."""

import functools
import pathlib
import pickle
from collections.abc import Mapping
from typing import Any

import numpy as np

from vmsst import errors
from vmsst.checkpoints import tensors

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
    if not isinstance(name, str) or not isinstance(value, torch.Tensor):
      raise errors.InputError(f"{path}: {name!r} is no tensor: the file holds no {_STATE}")

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
