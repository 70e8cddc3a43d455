"""The state of a run: parameters, optimizer state, other variables of the model, and their axes.

Both states, like T5X checkpoints, store `{'target': ..., 'state': {'step': ..., ...}}`, and
`flax_mutables` if the model has variables other than parameters.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import flax.core
import jax
import jax.numpy as jnp
from flax import struct, traverse_util
from flax.core import FrozenDict
from flax.linen import partitioning as flax_partitioning
from jaxtyping import Int

from vmsst.errors import InputError
from vmsst.launch.runtime.optimizers import Optimizer, OptimizerDef, some_names

PyTree = Any
Variables = dict[str, Any] | FrozenDict
EMPTY_DICT: FrozenDict = flax.core.freeze({})
_AXES = "_axes"


def _check_axes(collection: str, variables: Variables, axes: Variables) -> None:
  """Raises an InputError that names variables without axes."""
  named = traverse_util.flatten_dict(flax_partitioning.get_axis_names(axes), sep="/")
  missing = sorted(set(traverse_util.flatten_dict(variables, sep="/")) - set(named))
  if missing:
    raise InputError(
      f"{len(missing)} variables of the model's collection {collection!r} have no logical axes: "
      f"{some_names(missing)}; create them with flax.linen.partitioning.param_with_axes or "
      "variable_with_axes"
    )


def _split(model_variables: Variables) -> tuple[Variables, dict[str, Any]]:
  """Returns the parameters and the fields of a state for their axes and all other variables."""
  collections = dict(model_variables)
  all_axes = {
    name.removesuffix(_AXES): collections.pop(name)
    for name in list(collections)
    if name.endswith(_AXES)
  }
  for name, axes in all_axes.items():
    _check_axes(name, collections.get(name, {}), axes)
  return collections.pop("params"), {
    "params_axes": all_axes.pop("params", None),
    "flax_mutables": flax.core.freeze(collections),
    "flax_mutables_axes": flax.core.freeze(all_axes) if all_axes else None,
  }


def _mutables_of(state_dict: Mapping[str, Any]) -> FrozenDict:
  return flax.core.freeze(dict(state_dict.get("flax_mutables", {})))


def _axes_of_params(params: Variables, axes: Variables | None) -> Variables:
  """Returns the axes of `params`, in the same kind of dict."""
  if axes is None:
    raise InputError(
      "the model's collection 'params' has no logical axes, which a partitioner needs; create its "
      "variables with flax.linen.partitioning.param_with_axes"
    )
  names = flax_partitioning.get_axis_names(axes)
  return names if isinstance(params, FrozenDict) else flax.core.unfreeze(names)


class FlaxOptimTrainState(struct.PyTreeNode):
  """The state of training.

  Attributes:
    params_axes: Axis metadata of the parameters.
    flax_mutables: Variables of the model that are not parameters, by collection.
    flax_mutables_axes: Axis metadata of `flax_mutables`.
  """

  _optimizer: Optimizer
  params_axes: Variables | None = None
  flax_mutables: FrozenDict = EMPTY_DICT
  flax_mutables_axes: FrozenDict | None = None

  @classmethod
  def create(cls, optimizer_def: OptimizerDef, model_variables: Variables) -> FlaxOptimTrainState:
    """Returns the state before the first step.

    Args:
      optimizer_def: The optimizer; gets the logical axes if it has `set_param_axes`.
      model_variables: Return value of the model's `get_initial_variables`.

    Raises:
      InputError: Logical axes are missing.
    """
    params, others = _split(model_variables)
    if hasattr(optimizer_def, "set_param_axes"):
      optimizer_def.set_param_axes(_axes_of_params(params, others["params_axes"]))
    return cls(_optimizer=optimizer_def.create(params), **others)

  @property
  def step(self) -> Int[jax.Array, ""]:
    """The number of training steps so far."""
    return self._optimizer.state.step

  @property
  def params(self) -> Variables:
    """The parameters of the model."""
    return self._optimizer.target

  @property
  def param_states(self) -> PyTree:
    """The optimizer state of the parameters."""
    return self._optimizer.state.param_states

  def state_dict(self) -> dict[str, Any]:
    """Returns the tree that a checkpoint stores."""
    state_dict = self._optimizer.state_dict()
    if self.flax_mutables:
      state_dict["flax_mutables"] = flax.core.unfreeze(self.flax_mutables)
    return state_dict

  def restore_state(self, state_dict: Mapping[str, Any]) -> FlaxOptimTrainState:
    """Returns the state with the arrays of `state_dict`, which may lack `flax_mutables`."""
    return self.replace(
      _optimizer=self._optimizer.restore_state(state_dict),
      flax_mutables=_mutables_of(state_dict),
    )

  def apply_gradient(
    self, grads: PyTree, learning_rate: Any, flax_mutables: FrozenDict = EMPTY_DICT
  ) -> FlaxOptimTrainState:
    """Returns the state after one more step, with new `flax_mutables`."""
    optimizer = self._optimizer.apply_gradient(grads, learning_rate=learning_rate)
    return self.replace(_optimizer=optimizer, flax_mutables=flax_mutables)

  def as_logical_axes(self) -> FlaxOptimTrainState:
    """Returns the state with logical axes, or None if replicated, in place of arrays.

    Collections of the model without axes are left out.
    """
    optimizer_def = self._optimizer.optimizer_def
    return FlaxOptimTrainState(
      _optimizer=optimizer_def.derive_logical_axes(
        self._optimizer, _axes_of_params(self.params, self.params_axes)
      ),
      flax_mutables=flax_partitioning.get_axis_names(self.flax_mutables_axes or EMPTY_DICT),
    )


class InferenceState(struct.PyTreeNode):
  """The state of evaluation and inference, without an optimizer.

  Attributes:
    step: The number of training steps so far.
    params: The parameters of the model.
    params_axes: Axis metadata of the parameters.
    flax_mutables: Variables of the model that are not parameters, by collection.
    flax_mutables_axes: Axis metadata of `flax_mutables`.
  """

  step: Int[jax.Array, ""] | None
  params: Variables
  params_axes: Variables | None = None
  flax_mutables: FrozenDict = EMPTY_DICT
  flax_mutables_axes: FrozenDict | None = None

  @classmethod
  def create(cls, model_variables: Variables) -> InferenceState:
    """Returns the state at step 0 from the return value of `get_initial_variables`."""
    params, others = _split(model_variables)
    return cls(step=jnp.zeros((), jnp.int32), params=params, **others)

  def state_dict(self) -> dict[str, Any]:
    """Returns the part of a checkpoint's tree that this state has."""
    state_dict = {"target": flax.core.unfreeze(self.params), "state": {"step": self.step}}
    if self.flax_mutables:
      state_dict["flax_mutables"] = flax.core.unfreeze(self.flax_mutables)
    return state_dict

  def restore_state(self, state_dict: Mapping[str, Any]) -> InferenceState:
    """Returns the state with the arrays of `state_dict`, which may lack `flax_mutables`."""
    return self.replace(
      params=flax.core.freeze(state_dict["target"]),
      step=state_dict["state"]["step"],
      flax_mutables=_mutables_of(state_dict),
    )

  def as_logical_axes(self) -> InferenceState:
    """Returns the state with logical axes, or None if replicated, in place of arrays.

    Collections of the model without axes are left out.
    """
    return InferenceState(
      step=None,
      params=_axes_of_params(self.params, self.params_axes),
      flax_mutables=flax_partitioning.get_axis_names(self.flax_mutables_axes or EMPTY_DICT),
    )
