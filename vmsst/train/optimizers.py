"""Optimizers: wrapped optax optimizers, and the base class of Adafactor.

As in T5X, an optax optimizer has a learning rate of its own, and the trainer writes its own to the
metrics. The macro SCHEDULE of gin/runs/train.gin is that of both:

  OPTIMIZER = @optimizers.chain()
  optimizers.chain.transformations = [@optax.clip_by_global_norm(), @optax.adamw()]
  optax.adamw.learning_rate = %SCHEDULE
"""

import abc
import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import jax
import msgspec
import optax
from flax import traverse_util

from vmsst import errors

PyTree = Any


class OptimizerDef(abc.ABC):
  """An optimizer without its state."""

  @abc.abstractmethod
  def init_state(self, params: PyTree) -> PyTree:
    """Returns the state before the first step."""

  @abc.abstractmethod
  def apply_gradient(
    self, params: PyTree, state: PyTree, grads: PyTree, *, step: jax.Array, learning_rate: Any
  ) -> tuple[PyTree, PyTree]:
    """Returns the parameters and the state after one more step; `step` counts those before."""

  @abc.abstractmethod
  def logical_axes(self, params: PyTree, state: PyTree, param_axes: PyTree) -> PyTree:
    """Returns `state` with a PartitionSpec, or None if replicated, in place of every array."""


class OptaxWrapper(OptimizerDef):
  """Any optax optimizer as an OptimizerDef.

  Attributes:
    optax_optimizer: The wrapped gradient transformation.
  """

  def __init__(self, optax_optimizer: optax.GradientTransformation):
    self.optax_optimizer = optax_optimizer

  def init_state(self, params: PyTree) -> PyTree:
    """Returns the state before the first step."""
    return self.optax_optimizer.init(params)

  def apply_gradient(
    self, params: PyTree, state: PyTree, grads: PyTree, *, step: jax.Array, learning_rate: Any
  ) -> tuple[PyTree, PyTree]:
    """Returns the parameters and the state after one more step, at optax's own learning rate."""
    del step, learning_rate
    updates, state = self.optax_optimizer.update(grads, state, params)
    return optax.apply_updates(params, updates), state

  def logical_axes(self, params: PyTree, state: PyTree, param_axes: PyTree) -> PyTree:
    """Returns `state` with a PartitionSpec, or None if replicated, in place of every array.

    Arrays of the optax state that have the shape of a parameter get its axes. All others are
    replicated: counters, hyperparameters, random keys, and the row and column statistics of a
    factored second moment, which are small.
    """

    def axes_of(moment: Any, param: Any, axes: Any) -> Any:
      if isinstance(moment, optax.MaskedNode):  # in place of a parameter that a mask excludes
        return moment
      return axes if moment.shape == param.shape else None

    return optax.tree_map_params(
      self.optax_optimizer,
      axes_of,
      state,
      params,
      param_axes,
      transform_non_params=lambda _: None,
      is_leaf=lambda node: isinstance(node, optax.MaskedNode),
    )


def one_cycle_schedule(
  steps: Annotated[int, msgspec.Meta(ge=1)],
  peak: Annotated[float, msgspec.Meta(gt=0)],
  warmup: Annotated[float, msgspec.Meta(ge=0, lt=1)],
) -> optax.Schedule:
  """Returns a learning rate that rises to its peak and falls to 0 by `steps`, both as a cosine.

  Args:
    steps: Training steps.
    peak: The highest learning rate.
    warmup: The share of the steps in which it rises.
  """
  return optax.cosine_onecycle_schedule(steps, peak, pct_start=warmup)


def chain(
  transformations: Sequence[optax.GradientTransformation], frozen: Sequence[str] = ()
) -> OptaxWrapper:
  """Returns `optax.chain` of one list, which gin can bind, as an OptimizerDef.

  Args:
    transformations: Those to chain.
    frozen: Regular expressions of the names of parameters that are not trained, such as
      "token_embedder/.*". They have no moments. One that matches no parameter is an InputError
      when the state is initialized.
  """
  chained = optax.chain(*transformations)
  if not frozen:
    return OptaxWrapper(chained)

  def labels(params: PyTree) -> PyTree:
    if not isinstance(params, Mapping):  # optax's placeholder for all
      return False
    names = traverse_util.flatten_dict(params, sep="/")
    for pattern in frozen:
      if not any(re.fullmatch(pattern, name) for name in names):
        examples = ", ".join([*names][:3])
        raise errors.InputError(
          f"optimizers.chain.frozen: {pattern!r} matches no parameter; names are {examples} ..."
        )
    is_frozen = {name: any(re.fullmatch(x, name) for x in frozen) for name in names}
    return traverse_util.unflatten_dict(is_frozen, sep="/")

  return OptaxWrapper(optax.partition({False: chained, True: optax.set_to_zero()}, labels))
