"""Restores the parameters of a network from a checkpoint or an export."""

import dataclasses
import pathlib
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from etils import epath
from flax import linen as nn
from flax import traverse_util

from vmsst import errors
from vmsst.checkpoints import (
  layer_stacks,
  sentence_transformers_files,
  tensors,
  transformers_weights,
)
from vmsst.checkpoints import t5x as t5x_checkpoints


def restore_params(parameters: epath.Path, network: nn.Module) -> Any:
  """Reads only the network's parameters, in float32, onto the default device.

  Layers may be scanned in the network and separate in the file, or the other way around.

  Args:
    parameters: A `checkpoint_<step>` folder; or the `model.safetensors` of an export, with a tensor
      for each parameter, or with those of transformers in an export for sentence-transformers.
    network: The network.

  Returns:
    The parameters as a tree.

  Raises:
    InputError: a parameter is missing, has another shape or cannot be read.
  """
  is_export = parameters.name.endswith(".safetensors")
  stored: Mapping[str, tensors.StoredTensor]
  if not is_export:
    stored = t5x_checkpoints.open_params(parameters)
  elif (parameters.parent / sentence_transformers_files.MODULES_FILE).is_file():
    stored = transformers_weights.open_params(pathlib.Path(parameters.parent), network)
  else:
    stored = tensors.open_file(pathlib.Path(parameters))
  shapes = traverse_util.flatten_dict(_shapes(network, stored, parameters), sep="/")
  sources = {name: _source(name, leaf.shape, stored, parameters) for name, leaf in shapes.items()}
  parts = {part: stored[part] for source in sources.values() for part in source.names}
  if is_export:
    # One by one: at most one is in memory twice. A CPU uses mapped arrays where they are.
    arrays = {
      name: jax.block_until_ready(jax.device_put(part.read(), may_alias=True))
      for name, part in parts.items()
    }
  else:
    arrays = t5x_checkpoints.read_params(parameters, parts)
  return traverse_util.unflatten_dict(
    {name: source.make(arrays) for name, source in sources.items()}, sep="/"
  )


def _shapes(
  network: nn.Module, stored: Mapping[str, tensors.StoredTensor], where: epath.Path
) -> Any:
  """Returns a tree of parameter shapes of a network whose description is untrusted."""
  config = getattr(network, "config")  # noqa: B009 - all networks here have one
  for owner in (network, config):
    for field in dataclasses.fields(owner):
      value = getattr(owner, field.name)
      scanned = getattr(config, "scan_layers", False)  # one array holds all layers
      if field.name.endswith("_layers") and type(value) is int and not scanned:
        tensors.check_layers(value, range(layer_stacks.most_layers(stored)), str(where))
  try:
    tokens_BT = jnp.zeros((1, 1), jnp.int32)
    return jax.eval_shape(network.init, jax.random.key(0), tokens_BT)["params"]
  except Exception as error:  # sizes that no array can have
    raise errors.InputError(f"{where}: encoder.json describes no valid network: {error}") from error


def _source(
  name: str,
  shape: tuple[int, ...],
  stored: Mapping[str, tensors.StoredTensor],
  where: epath.Path,
) -> layer_stacks.Source:
  source = layer_stacks.find(name, shape, stored)
  if source is None:
    raise errors.InputError(
      f"{where} has no parameter {name}, which encoder.json requires; it was trained with another "
      "network or another config (number of layers)"
    )
  if source.shape(stored) != shape:
    raise errors.InputError(
      f"{where}: parameter {name} has shape {source.shape(stored)}, but encoder.json requires "
      f"{shape}"
    )
  return source
