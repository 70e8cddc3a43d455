"""Restores the parameters of a network from a checkpoint or an export, and checks shapes."""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from etils import epath
from flax import linen as nn
from flax import traverse_util

from vmsst import errors
from vmsst.checkpoints import hugging_face, tensors
from vmsst.checkpoints import t5x as t5x_checkpoints


def restore_params(parameters: epath.Path, network: nn.Module) -> Any:
  """Reads the network's parameters, float32, onto the default device; nothing else is read.

  Args:
    parameters: A `checkpoint_<step>` folder, or a safetensors file with a tensor for each
      parameter, parts of its name joined by `/`.
    network: What they are of.

  Raises:
    InputError: they cannot be read, one lacks, or has another shape.
  """
  is_export = parameters.name.endswith(".safetensors")
  stored: Mapping[str, tensors.StoredTensor] = (
    hugging_face.open_file(parameters) if is_export else t5x_checkpoints.open_params(parameters)
  )
  wanted = _shapes(network, stored, parameters)
  flat = traverse_util.flatten_dict(wanted, sep="/")
  _check_shapes(flat, stored, parameters)
  if not is_export:
    return t5x_checkpoints.read_params(parameters, wanted)
  # One after the other: no more than one is held twice.
  put = functools.partial(jax.device_put, may_alias=True)
  arrays = {name: jax.block_until_ready(put(stored[name].read())) for name in flat}
  return traverse_util.unflatten_dict(arrays, sep="/")


def _shapes(
  network: nn.Module, stored: Mapping[str, tensors.StoredTensor], where: epath.Path
) -> Any:
  """Shapes of the parameters of a network that a file describes, in a tree."""
  config = getattr(network, "config")  # noqa: B009 - of every network here
  for owner in (network, config):
    for field in dataclasses.fields(owner):
      value = getattr(owner, field.name)
      if field.name.endswith("_layers") and type(value) is int and not _scanned(config):
        tensors.check_layers(value, stored, str(where))
  try:
    tokens_BT = jnp.zeros((1, 1), jnp.int32)
    return jax.eval_shape(network.init, jax.random.key(0), tokens_BT)["params"]
  except Exception as error:  # sizes that no array can have
    raise errors.InputError(f"{where}: encoder.json describes no network: {error}") from error


def _scanned(config: Any) -> bool:
  """Whether all layers are in one array."""
  return bool(getattr(config, "scan_layers", False))


def _check_shapes(wanted: Mapping[str, Any], saved: Mapping[str, Any], where: epath.Path) -> None:
  for name, leaf in wanted.items():
    if name not in saved:
      raise errors.InputError(
        f"{where} has no parameter {name}, which encoder.json asks for; it was trained with "
        f"another network or another config (number of layers, scan_layers)"
      )
    shape = tuple(saved[name].shape)
    if shape != leaf.shape:
      raise errors.InputError(
        f"{where}: parameter {name} has shape {shape}, but encoder.json asks for {leaf.shape}"
      )
