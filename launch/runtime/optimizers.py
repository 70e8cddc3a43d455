"""Optimizers in T5X's form: wrapped optax optimizers, and the base class of Adafactor.

An `OptimizerDef` is the recipe; an `Optimizer` is the recipe with parameters (`target`) and state.
As in T5X, a wrapped optax optimizer ignores the trainer's learning rate and uses its own, so a gin
file gives the same schedule to both:

  OPTIMIZER = @optimizers.chain()
  optimizers.chain.transformations = [@optax.clip_by_global_norm(), @optax.adamw()]
  optax.adamw.learning_rate = @utils.create_learning_rate_scheduler()
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import optax
from flax import serialization, struct, traverse_util
from flax.core import frozen_dict

from vmsst.errors import InputError

PyTree = Any
Leaf = Any  # an array; in a tree of logical axes a PartitionSpec, or None if replicated


def some_names(names: Sequence[str], count: int = 5) -> str:
  """Returns the first `count` names, sorted, and the number of others, for a message."""
  more = f" and {len(names) - count} more" if len(names) > count else ""
  return ", ".join(sorted(names)[:count]) + more


class OptimizerState(struct.PyTreeNode):
  """The step, an int32 scalar, and the optimizer state of the parameters."""

  step: Leaf
  param_states: PyTree


def flatten_paths(tree: PyTree) -> dict[tuple[str, ...], Any]:
  """Returns the leaves of a nested dict (frozen or not) by path, without empty dicts."""
  return traverse_util.flatten_dict(frozen_dict.unfreeze(tree))


def unflatten_like(tree: PyTree, flat: Mapping[tuple[str, ...], Any]) -> PyTree:
  """Returns the nested dict of `flat`, frozen if `tree` is."""
  nested = traverse_util.unflatten_dict(flat)
  return frozen_dict.freeze(nested) if isinstance(tree, frozen_dict.FrozenDict) else nested


def _without_empty(tree: Mapping[str, Any]) -> dict[str, Any]:
  """Returns `tree` without branches that have no leaf, such as those of `optax.EmptyState`."""
  return traverse_util.unflatten_dict(traverse_util.flatten_dict(tree))


def _restore(reference: PyTree, state_dict: PyTree, name: str) -> PyTree:
  """Returns `reference` with the leaves of `state_dict`, which may lack branches without leaves."""
  expected = traverse_util.flatten_dict(
    serialization.to_state_dict(reference), keep_empty_nodes=True
  )
  given = traverse_util.flatten_dict(frozen_dict.unfreeze(state_dict), keep_empty_nodes=True)
  missing = [
    "/".join((name, *path))
    for path, leaf in expected.items()
    if path not in given and leaf is not traverse_util.empty_node
  ]
  if missing:
    raise InputError(
      f"{len(missing)} of {len(expected)} arrays of the train state are missing: "
      f"{some_names(missing)}. Use the model and the optimizer that were saved."
    )
  complete = {path: given.get(path, leaf) for path, leaf in expected.items()}
  return serialization.from_state_dict(reference, traverse_util.unflatten_dict(complete))


class OptimizerDef:
  """The recipe of an optimizer; subclasses define `init_state` and `apply_gradient`.

  Attributes:
    hyper_params: A dataclass with a `replace` method and a `learning_rate` field.
  """

  def __init__(self, hyper_params: Any):
    self.hyper_params = hyper_params

  def init_state(self, params: PyTree) -> OptimizerState:
    """Returns the state before the first step."""
    raise NotImplementedError

  def apply_gradient(
    self, hyper_params: Any, params: PyTree, state: OptimizerState, grads: PyTree
  ) -> tuple[PyTree, OptimizerState]:
    """Returns the parameters and the state after one more step."""
    raise NotImplementedError

  def derive_logical_axes(self, optimizer: Optimizer, param_logical_axes: PyTree) -> Optimizer:
    """Returns `optimizer` with a PartitionSpec, or None if replicated, for every array."""
    raise NotImplementedError

  def update_hyper_params(self, **overrides: Any) -> Any:
    """Returns the hyperparameters with some replaced, or all with `hyper_params=`."""
    hyper_params = overrides.pop("hyper_params", self.hyper_params)
    return hyper_params.replace(**overrides) if overrides else hyper_params

  def create(self, target: PyTree) -> Optimizer:
    """Returns an optimizer of the parameters `target`, before the first step."""
    return Optimizer(optimizer_def=self, state=self.init_state(target), target=target)

  def state_dict(self, target: PyTree, state: OptimizerState) -> dict[str, Any]:
    """Returns the tree that a checkpoint stores: `{'target': ..., 'state': ...}`.

    Tuples become dicts with the keys '0', '1', ...; branches without arrays are omitted.
    """
    return {
      "target": serialization.to_state_dict(target),
      "state": _without_empty(serialization.to_state_dict(state)),
    }

  def restore_state(
    self, target: PyTree, state: OptimizerState, state_dict: Mapping[str, Any]
  ) -> tuple[PyTree, OptimizerState]:
    """Returns parameters and state with the leaves of `state_dict`.

    Raises:
      InputError: Arrays are missing from `state_dict`; the message names them.
    """
    return (
      _restore(target, state_dict["target"], "target"),
      _restore(state, state_dict["state"], "state"),
    )


class Optimizer(struct.PyTreeNode):
  """Parameters with the state of their optimizer.

  Attributes:
    optimizer_def: The recipe.
    state: The step and the state of the recipe.
    target: The parameters.
  """

  optimizer_def: OptimizerDef = struct.field(pytree_node=False)
  state: OptimizerState
  target: PyTree

  def apply_gradient(self, grads: PyTree, **hyper_param_overrides: Any) -> Optimizer:
    """Returns the optimizer after one more step; overrides apply to this step only."""
    hyper_params = self.optimizer_def.update_hyper_params(**hyper_param_overrides)
    target, state = self.optimizer_def.apply_gradient(hyper_params, self.target, self.state, grads)
    return self.replace(target=target, state=state)

  def state_dict(self) -> dict[str, Any]:
    """Returns the tree that a checkpoint stores."""
    return self.optimizer_def.state_dict(self.target, self.state)

  def restore_state(self, state_dict: Mapping[str, Any]) -> Optimizer:
    """Returns the optimizer with the arrays of `state_dict`."""
    target, state = self.optimizer_def.restore_state(self.target, self.state, state_dict)
    return self.replace(target=target, state=state)


class _TrainerHyperParams(struct.PyTreeNode):
  """Set by the trainer at each step; unused, since optax has its own schedule."""

  learning_rate: float | None = None


class OptaxWrapper(OptimizerDef):
  """Any optax optimizer as an OptimizerDef.

  Attributes:
    optax_optimizer: The wrapped gradient transformation.
  """

  def __init__(self, optax_optimizer: optax.GradientTransformation):
    super().__init__(hyper_params=_TrainerHyperParams())
    self.optax_optimizer = optax_optimizer

  def init_state(self, params: PyTree) -> OptimizerState:
    """Returns the state before the first step."""
    return OptimizerState(
      step=jnp.zeros((), jnp.int32), param_states=self.optax_optimizer.init(params)
    )

  def apply_gradient(
    self, hyper_params: Any, params: PyTree, state: OptimizerState, grads: PyTree
  ) -> tuple[PyTree, OptimizerState]:
    """Returns the parameters and the state after one more step, at optax's own learning rate."""
    del hyper_params
    updates, optax_state = self.optax_optimizer.update(grads, state.param_states, params)
    return optax.apply_updates(params, updates), OptimizerState(
      step=state.step + 1, param_states=optax_state
    )

  def derive_logical_axes(self, optimizer: Optimizer, param_logical_axes: PyTree) -> Optimizer:
    """Returns `optimizer` with a PartitionSpec, or None if replicated, for every array.

    Arrays of the optax state that have the shape of a parameter get its axes. All others are
    replicated: counters, hyperparameters, random keys, and the row and column statistics of a
    factored second moment, which are small.
    """

    def axes_of(moment: Any, param: Any, axes: Any) -> Any:
      if isinstance(moment, optax.MaskedNode):  # in place of a parameter that a mask excludes
        return moment
      return axes if moment.shape == param.shape else None

    param_states = optax.tree_map_params(
      self.optax_optimizer,
      axes_of,
      optimizer.state.param_states,
      optimizer.target,
      param_logical_axes,
      transform_non_params=lambda _: None,
      is_leaf=lambda node: isinstance(node, optax.MaskedNode),
    )
    return optimizer.replace(
      state=OptimizerState(step=None, param_states=param_states), target=param_logical_axes
    )


def chain(transformations: Sequence[optax.GradientTransformation]) -> OptaxWrapper:
  """Returns `optax.chain` of one list, which gin can bind, as an OptimizerDef."""
  return OptaxWrapper(optax.chain(*transformations))
