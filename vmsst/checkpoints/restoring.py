"""Restores the parameters of a network from a checkpoint or an export."""

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
  """Reads only the network's parameters, in float32, onto the default device.

  Args:
    parameters: A `checkpoint_<step>` folder, or a safetensors file with a tensor for each
      parameter; `/` joins the parts of its name.
    network: The network.

  Returns:
    The parameters as a tree.

  Raises:
    InputError: a parameter is missing, has another shape or cannot be read.
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
  # One by one: at most one is in memory twice.
  put = functools.partial(jax.device_put, may_alias=True)
  arrays = {name: jax.block_until_ready(put(stored[name].read())) for name in flat}
  return traverse_util.unflatten_dict(arrays, sep="/")


def _shapes(
  network: nn.Module, stored: Mapping[str, tensors.StoredTensor], where: epath.Path
) -> Any:
  """Returns a tree of parameter shapes of a network whose description is untrusted."""
  config = getattr(network, "config")  # noqa: B009 - all networks here have one
  for owner in (network, config):
    for field in dataclasses.fields(owner):
      value = getattr(owner, field.name)
      if field.name.endswith("_layers") and type(value) is int and not _scanned(config):
        tensors.check_layers(value, stored, str(where))
  try:
    tokens_BT = jnp.zeros((1, 1), jnp.int32)
    return jax.eval_shape(network.init, jax.random.key(0), tokens_BT)["params"]
  except Exception as error:  # sizes that no array can have
    raise errors.InputError(f"{where}: encoder.json describes no valid network: {error}") from error


def _scanned(config: Any) -> bool:
  """Whether one array holds all layers."""
  return bool(getattr(config, "scan_layers", False))


def _check_shapes(wanted: Mapping[str, Any], saved: Mapping[str, Any], where: epath.Path) -> None:
  for name, leaf in wanted.items():
    if name not in saved:
      raise errors.InputError(
        f"{where} has no parameter {name}, which encoder.json requires; it was trained with "
        f"another network or another config (number of layers, scan_layers)"
      )
    shape = tuple(saved[name].shape)
    if shape != leaf.shape:
      raise errors.InputError(
        f"{where}: parameter {name} has shape {shape}, but encoder.json requires {leaf.shape}"
      )
