"""The state of a run: parameters, optimizer, other variables of the model, and their axes.

Both states store `{'target': ..., 'state': {'step': ..., ...}}`, with `flax_mutables` where a model
has other variables than parameters, and so does a T5X checkpoint.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import flax.core
import jax
import jax.numpy as jnp
from flax import struct, traverse_util
from flax.core import FrozenDict
from flax.linen import partitioning as flax_partitioning
from jaxtyping import Int

from vmsst.errors import InputError
from vmsst.launch.runtime.optimizers import Optimizer, OptimizerDef

PyTree = Any
Variables = dict[str, Any] | FrozenDict
EMPTY_DICT: FrozenDict = flax.core.freeze({})
_AXES = "_axes"


class TrainState(Protocol):
  """What trainers, checkpoints and evaluation ask of a state."""

  @property
  def step(self) -> Int[jax.Array, ""]:
    """The number of training steps that were done."""

  @property
  def params(self) -> Variables:
    """The parameters of the model."""

  @property
  def param_states(self) -> PyTree:
    """What the optimizer remembers of the parameters."""

  @property
  def flax_mutables(self) -> FrozenDict:
    """The variables of the model that are not parameters, by collection."""

  def state_dict(self) -> dict[str, Any]:
    """Returns the tree that a checkpoint stores."""

  def restore_state(self, state_dict: Mapping[str, Any]) -> TrainState:
    """Returns the state with the arrays of `state_dict`."""

  def replace_params(self, params: Variables) -> TrainState:
    """Returns the state with other parameters."""

  def replace_flax_mutables(self, flax_mutables: FrozenDict) -> TrainState:
    """Returns the state with other variables."""

  def replace_step(self, step: Int[jax.Array, ""]) -> TrainState:
    """Returns the state at another step."""

  def apply_gradient(
    self, grads: PyTree, learning_rate: Any, flax_mutables: FrozenDict = EMPTY_DICT
  ) -> TrainState:
    """Returns the state after one more step."""

  def as_logical_axes(self) -> TrainState:
    """Returns the state with logical axes, or None where replicated, in place of arrays."""


def _check_axes(collection: str, variables: Variables, axes: Variables) -> None:
  """Raises an InputError that names the variables without axes."""
  named = traverse_util.flatten_dict(flax_partitioning.get_axis_names(axes), sep="/")
  missing = sorted(set(traverse_util.flatten_dict(variables, sep="/")) - set(named))
  if missing:
    shown = ", ".join(missing[:5]) + (", ..." if len(missing) > 5 else "")
    raise InputError(
      f"{len(missing)} variables of the model's collection {collection!r} have no logical axes: "
      f"{shown}; make them with flax.linen.partitioning.param_with_axes or variable_with_axes"
    )


def _split(
  model_variables: Variables,
) -> tuple[Variables, Variables | None, FrozenDict, FrozenDict | None]:
  """Returns parameters, their axes, the other collections and their axes."""
  collections = dict(model_variables)
  all_axes = {
    name.removesuffix(_AXES): collections.pop(name)
    for name in list(collections)
    if name.endswith(_AXES)
  }
  for name, axes in all_axes.items():
    _check_axes(name, collections.get(name, {}), axes)
  params, params_axes = collections.pop("params"), all_axes.pop("params", None)
  mutables_axes = flax.core.freeze(all_axes) if all_axes else None
  return params, params_axes, flax.core.freeze(collections), mutables_axes


def _like(reference: Variables, tree: Variables) -> Variables:
  """`tree` as a frozen dict where `reference` is one, else as a plain one."""
  unfrozen = flax.core.unfreeze(tree)
  return flax.core.freeze(unfrozen) if isinstance(reference, FrozenDict) else unfrozen


def _mutables_of(state_dict: Mapping[str, Any]) -> FrozenDict:
  return flax.core.freeze(dict(state_dict.get("flax_mutables", {})))


def _axis_names(collection: str, variables: Variables, axes: Variables | None) -> Variables:
  """The axes of `variables`, in the same kind of dict."""
  if axes is None:
    raise InputError(
      f"the model's collection {collection!r} has no logical axes, which a partitioner needs; make "
      "its variables with flax.linen.partitioning.param_with_axes or variable_with_axes"
    )
  return _like(variables, flax_partitioning.get_axis_names(axes))


def _mutables_axes(flax_mutables: FrozenDict, axes: FrozenDict | None) -> FrozenDict:
  """The axes of every collection in `flax_mutables`."""
  axes = axes or EMPTY_DICT
  return flax.core.freeze(
    {name: _axis_names(name, flax_mutables[name], axes.get(name)) for name in flax_mutables}
  )


class FlaxOptimTrainState(struct.PyTreeNode):
  """The state of training.

  Attributes:
    params_axes: Axis metadata of the parameters.
    flax_mutables: The variables of the model that are not parameters, by collection.
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
      optimizer_def: The optimizer; one with `set_param_axes` is told the logical axes.
      model_variables: What the model's `get_initial_variables` returned.

    Raises:
      InputError: logical axes are missing.
    """
    params, params_axes, flax_mutables, flax_mutables_axes = _split(model_variables)
    if hasattr(optimizer_def, "set_param_axes"):
      optimizer_def.set_param_axes(_axis_names("params", params, params_axes))
    return cls(
      _optimizer=optimizer_def.create(params),
      params_axes=params_axes,
      flax_mutables=flax_mutables,
      flax_mutables_axes=flax_mutables_axes,
    )

  @property
  def step(self) -> Int[jax.Array, ""]:
    """The number of training steps that were done."""
    return self._optimizer.state.step

  @property
  def params(self) -> Variables:
    """The parameters of the model."""
    return self._optimizer.target

  @property
  def param_states(self) -> PyTree:
    """What the optimizer remembers of the parameters."""
    return self._optimizer.state.param_states

  def state_dict(self) -> dict[str, Any]:
    """Returns the tree that a checkpoint stores."""
    state_dict = self._optimizer.state_dict()
    if self.flax_mutables:
      state_dict["flax_mutables"] = flax.core.unfreeze(self.flax_mutables)
    return state_dict

  def restore_state(self, state_dict: Mapping[str, Any]) -> FlaxOptimTrainState:
    """Returns the state with the arrays of `state_dict`, which may have no `flax_mutables`."""
    return self.replace(
      _optimizer=self._optimizer.restore_state(state_dict),
      flax_mutables=_mutables_of(state_dict),
    )

  def replace_params(self, params: Variables) -> FlaxOptimTrainState:
    """Returns the state with other parameters."""
    return self.replace(_optimizer=self._optimizer.replace(target=params))

  def replace_flax_mutables(self, flax_mutables: FrozenDict) -> FlaxOptimTrainState:
    """Returns the state with other variables."""
    return self.replace(flax_mutables=flax_mutables)

  def replace_step(self, step: Int[jax.Array, ""]) -> FlaxOptimTrainState:
    """Returns the state at another step."""
    state = self._optimizer.state.replace(step=step)
    return self.replace(_optimizer=self._optimizer.replace(state=state))

  def apply_gradient(
    self, grads: PyTree, learning_rate: Any, flax_mutables: FrozenDict = EMPTY_DICT
  ) -> FlaxOptimTrainState:
    """Returns the state after one more step, with these variables."""
    optimizer = self._optimizer.apply_gradient(grads, learning_rate=learning_rate)
    return self.replace(_optimizer=optimizer, flax_mutables=flax_mutables)

  def as_logical_axes(self) -> FlaxOptimTrainState:
    """Returns the state with logical axes, or None where replicated, in place of arrays."""
    optimizer_def = self._optimizer.optimizer_def
    return FlaxOptimTrainState(
      _optimizer=optimizer_def.derive_logical_axes(
        self._optimizer, _axis_names("params", self.params, self.params_axes)
      ),
      flax_mutables=_mutables_axes(self.flax_mutables, self.flax_mutables_axes),
    )


class InferenceState(struct.PyTreeNode):
  """The state of evaluation and inference: no optimizer.

  Attributes:
    step: The number of training steps that were done.
    params: The parameters of the model.
    params_axes: Axis metadata of the parameters.
    flax_mutables: The variables of the model that are not parameters, by collection.
    flax_mutables_axes: Axis metadata of `flax_mutables`.
  """

  step: Int[jax.Array, ""] | None
  params: Variables
  params_axes: Variables | None = None
  flax_mutables: FrozenDict = EMPTY_DICT
  flax_mutables_axes: FrozenDict | None = None

  @classmethod
  def create(cls, model_variables: Variables) -> InferenceState:
    """Returns the state at step 0 with what the model's `get_initial_variables` returned."""
    params, params_axes, flax_mutables, flax_mutables_axes = _split(model_variables)
    return cls(
      step=jnp.zeros((), jnp.int32),
      params=params,
      params_axes=params_axes,
      flax_mutables=flax_mutables,
      flax_mutables_axes=flax_mutables_axes,
    )

  @property
  def param_states(self) -> PyTree:
    """Raises NotImplementedError: there is no optimizer."""
    raise NotImplementedError("an InferenceState has no optimizer state")

  def apply_gradient(self, *args: Any, **kwargs: Any) -> InferenceState:
    """Raises NotImplementedError: there is no optimizer."""
    raise NotImplementedError("an InferenceState cannot be trained")

  def state_dict(self) -> dict[str, Any]:
    """Returns the part of a checkpoint's tree that this state has."""
    state_dict = {"target": flax.core.unfreeze(self.params), "state": {"step": self.step}}
    if self.flax_mutables:
      state_dict["flax_mutables"] = flax.core.unfreeze(self.flax_mutables)
    return state_dict

  def restore_state(self, state_dict: Mapping[str, Any]) -> InferenceState:
    """Returns the state with the arrays of `state_dict`, which may have no `flax_mutables`."""
    return self.replace(
      params=_like(self.params, state_dict["target"]),
      step=state_dict["state"]["step"],
      flax_mutables=_mutables_of(state_dict),
    )

  def replace_params(self, params: Variables) -> InferenceState:
    """Returns the state with other parameters."""
    return self.replace(params=params)

  def replace_flax_mutables(self, flax_mutables: FrozenDict) -> InferenceState:
    """Returns the state with other variables."""
    return self.replace(flax_mutables=flax_mutables)

  def replace_step(self, step: Int[jax.Array, ""]) -> InferenceState:
    """Returns the state at another step."""
    return self.replace(step=step)

  def as_logical_axes(self) -> InferenceState:
    """Returns the state with logical axes, or None where replicated, in place of arrays."""
    return InferenceState(
      step=None,
      params=_axis_names("params", self.params, self.params_axes),
      flax_mutables=_mutables_axes(self.flax_mutables, self.flax_mutables_axes),
    )
