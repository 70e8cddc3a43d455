"""The two layouts of a stack of layers: an array per layer, or one array for all layers.

With `scan_layers`, a network has parameters `encoder/layers/...` with a leading axis of layers;
without, it has `encoder/layers_0/...`, `encoder/layers_1/...`. Both compute the same function, so a
network can read a checkpoint of either layout.
"""

import dataclasses
import re
from collections.abc import Mapping
from typing import Protocol

import jax
import jax.numpy as jnp
import numpy as np

from vmsst import errors

_STACK = "/layers/"
_LAYER = re.compile(r"(.*)/layers_(0|[1-9][0-9]{0,3})/(.*)")


class HasShape(Protocol):
  """An array, or a description of one."""

  @property
  def shape(self) -> tuple[int, ...]:
    """Sizes of its axes."""


@dataclasses.dataclass(frozen=True)
class Source:
  """The stored arrays that make a parameter.

  Attributes:
    names: Their names: one, or one per layer to stack.
    stacked: Whether to stack them.
    layer: Layer to take from the only array, which holds all layers; None: the whole array.
  """

  names: tuple[str, ...]
  stacked: bool = False
  layer: int | None = None

  def shape(self, stored: Mapping[str, HasShape]) -> tuple[int, ...]:
    """Returns the shape of the parameter."""
    shape = tuple(stored[self.names[0]].shape)
    if self.stacked:
      return (len(self.names), *shape)
    return shape if self.layer is None else shape[1:]

  def make(self, arrays: Mapping[str, jax.Array]) -> jax.Array:
    """Returns the parameter, from the stored arrays by name."""
    parts = [arrays[name] for name in self.names]
    if self.stacked:
      return jnp.stack(parts)
    return parts[0] if self.layer is None else parts[0][self.layer]


def find(name: str, shape: tuple[int, ...], stored: Mapping[str, HasShape]) -> Source | None:
  """Returns what makes a parameter; None if the checkpoint lacks it in both layouts.

  Args:
    name: The parameter's name.
    shape: Its shape in the network. Without scanned layers, a network may have fewer layers than
      the checkpoint; with scanned layers, it takes as many of the checkpoint's separate layers.
    stored: The checkpoint's arrays by name.
  """
  if name in stored:
    return Source((name,))
  if layer := _LAYER.fullmatch(name):
    stack, index = f"{layer[1]}{_STACK}{layer[3]}", int(layer[2])
    if stack in stored and stored[stack].shape and index < stored[stack].shape[0]:
      return Source((stack,), layer=index)
    return None
  head, separator, rest = name.partition(_STACK)
  if not separator or not shape or not 0 < shape[0] <= errors.MOST_LAYERS:
    return None
  names = tuple(f"{head}/layers_{i}/{rest}" for i in range(shape[0]))
  layers = {tuple(stored[layer].shape) if layer in stored else None for layer in names}
  return Source(names, stacked=True) if len(layers) == 1 and None not in layers else None


def separate(arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
  """Returns parameters with an array per layer, which is a view if one array holds all layers."""
  separated = {}
  for name, array in arrays.items():
    head, separator, rest = name.partition(_STACK)
    if not separator:
      separated[name] = array
      continue
    separated.update({f"{head}/layers_{i}/{rest}": layer for i, layer in enumerate(array)})
  return separated
