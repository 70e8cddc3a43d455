"""Adafactor with T5X's rules for factoring a parameter's second moment.

Shazeer and Stern, "Adafactor: Adaptive Learning Rates with Sublinear Memory Cost" (2018),
https://arxiv.org/abs/1804.04235. The second moment of a matrix is stored as row and column means. A
parameter has more than two axes if it contains attention heads or stacked layers, for example. For
such a parameter, the logical axis names determine which axes are rows, which are columns, and which
form a batch of independent matrices.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from flax import struct, traverse_util
from jaxtyping import Array

from vmsst.errors import InputError
from vmsst.train.optimizers import OptimizerDef

PyTree = Any
Leaf = Any  # An array; or, in a tree of logical axes, a PartitionSpec or None (replicated).
Path = tuple[str, ...]


Role = Literal["row", "column", "batch", "none"]
"""Role of a parameter axis in the factored second moment. The axis of stacked layers is 'batch'."""


def standard_logical_factor_rules() -> dict[str, Role]:
  """Maps T5X's standard logical axes to their roles in the factored second moment."""
  columns = ["vocab", "mlp", "heads", "kv", "joined_kv", "mlp_activations", "multiquery_heads"]
  columns += ["q_wi_fused", "o_wo_fused", "kv_fused"]
  return {
    "embed": "row",
    **dict.fromkeys(columns, "column"),
    **dict.fromkeys(["layers", "stack"], "batch"),
    **dict.fromkeys(["relpos_buckets", "layer_norm_scale"], "none"),
  }


class AdafactorParamState(struct.PyTreeNode):
  """Optimizer state for one parameter. Unused arrays have shape (1,)."""

  v_row: Leaf  # mean of the second moment over the column axes
  v_col: Leaf  # mean of the second moment over the row axes
  v: Leaf  # the full second moment, if it is not factored
  m: Leaf  # the first moment, if beta1 is set


class _Layout(NamedTuple):
  """The axes of one parameter, grouped by role.

  Attributes:
    averaged: All axes except batch axes.
    rows: Row axes, empty if the second moment is not factored.
    columns: Column axes, empty if the second moment is not factored.
  """

  averaged: tuple[int, ...]
  rows: tuple[int, ...] = ()
  columns: tuple[int, ...] = ()


def _layout(
  roles: Sequence[Role] | None, shape: Sequence[int], min_size: int, path: str
) -> _Layout:
  """Returns a parameter's layout.

  As in T5X, the roles of the axes ('row', 'column', 'batch' or 'none') only matter for parameters
  with more than two axes or with a batch axis. For a matrix without a batch axis, only the size
  determines whether the second moment is factored.
  """
  if len(shape) <= 2 and "batch" not in (roles or ()):
    averaged = tuple(range(len(shape)))
    if len(shape) != 2 or min(shape) < min_size:
      return _Layout(averaged)
    row = int(shape[1] < shape[0])  # the shorter axis, or the first of two equal axes
    return _Layout(averaged, (row,), (1 - row,))
  if roles is None:
    raise InputError(
      f"Adafactor: parameter {path} of shape {tuple(shape)} has more than two axes and no factor "
      "rule; bind adafactor.Adafactor.logical_factor_rules = "
      "@adafactor.standard_logical_factor_rules()"
    )

  def axes(*selected: Role) -> tuple[int, ...]:
    return tuple(axis for axis, role in enumerate(roles) if role in selected)

  averaged, rows, columns = axes("row", "column", "none"), axes("row"), axes("column")
  return _Layout(averaged, rows, columns) if rows and columns else _Layout(averaged)


def _roles(names: Sequence[str], rules: Mapping[str, Role], path: str) -> tuple[Role, ...]:
  """Maps a parameter's logical axis names to roles."""
  for name in names:
    if name not in rules:
      raise InputError(
        f"Adafactor: parameter {path} has the logical axis {name!r}, which has no factor rule; add "
        "a rule to adafactor.Adafactor.logical_factor_rules ('row', 'column', 'batch' or 'none')"
      )
  roles = tuple(rules[name] for name in names)
  if not {"row", "column"} <= set(roles):
    return tuple("batch" if role == "batch" else "none" for role in roles)
  return roles


def _root_mean_square(x: Array, axes: tuple[int, ...]) -> Array:
  # The optimization barriers in this module prevent XLA from fusing the computation of a mean into
  # the parameter update. Without the barriers, XLA on GPUs repeats the last part of this
  # computation in every tile of the update. For VMSST with 24 stacked layers, the repetitions take
  # a third of the step time.
  return jax.lax.optimization_barrier(jnp.sqrt(jnp.mean(x * x, axis=axes, keepdims=True)))


def _without(shape: Sequence[int], axes: Sequence[int]) -> tuple[int, ...]:
  return tuple(size for axis, size in enumerate(shape) if axis not in axes)


def _mean(values: Array, axes: tuple[int, ...]) -> Array:
  """Returns the mean over `axes`. On CPUs, uses a matmul because XLA's row sums are slow there."""

  def by_product(values: Array) -> Array:
    shape = tuple(values.shape[axis] for axis in axes)
    weights = jnp.full(shape, 1 / math.prod(shape), values.dtype)
    dims = range(values.ndim)
    out = [axis for axis in dims if axis not in axes]
    return jnp.einsum(values, [*dims], weights, [*axes], out, precision=jax.lax.Precision.HIGHEST)

  def by_sum(values: Array) -> Array:
    return jnp.mean(values, axis=axes)

  return jax.lax.platform_dependent(values, cpu=by_product, default=by_sum)


def _divided_by_second_moment(
  grad: Array, state: AdafactorParamState, decay: Array, epsilon: float, layout: _Layout
) -> tuple[Array, AdafactorParamState]:
  """Returns `grad` divided by the square root of the updated second moment, and the new state."""
  mixing = 1.0 - decay
  squared = grad * grad + epsilon
  if layout.rows:
    v_row = decay * state.v_row + mixing * _mean(squared, layout.columns)
    v_col = decay * state.v_col + mixing * _mean(squared, layout.rows)
    rows_of_v_row = tuple(row - sum(c < row for c in layout.columns) for row in layout.rows)
    mean = jnp.mean(v_row, axis=rows_of_v_row, keepdims=True)
    factors = jax.lax.optimization_barrier(((v_row / mean) ** -0.5, v_col**-0.5))
    row_factor, column_factor = map(jnp.expand_dims, factors, (layout.columns, layout.rows))
    update = grad * row_factor * column_factor
    return update, state.replace(v_row=v_row, v_col=v_col)
  v = decay * state.v + mixing * squared
  return grad * v**-0.5, state.replace(v=v)


@dataclasses.dataclass(eq=False)
class Adafactor(OptimizerDef):
  """Adafactor with T5X's options. The trainer passes the learning rate for each step.

  Attributes:
    factored: Whether to factor second moments.
    multiply_by_parameter_scale: Whether to scale the learning rate by the root mean square of the
      parameter.
    beta1: Decay of the first moment. If None, there is no first moment, which saves memory.
    decay_rate: Exponent c in the second moment's decay, 1 - t ** -c at step t = 1, 2, ...
    step_offset: Step at which t is 1, such as the first step of fine-tuning.
    clipping_threshold: Maximum root mean square of an update, before it is multiplied by the
      learning rate.
    weight_decay_rate: Fraction of a parameter to subtract at each step.
    min_dim_size_to_factor: A matrix is factored only if both axes have at least this size.
    epsilon1: Constant added to squared gradients.
    epsilon2: Lower bound of the root mean square in `multiply_by_parameter_scale`.
    logical_factor_rules: Role of each logical axis: 'row', 'column', 'batch' or 'none'.
  """

  factored: bool = True
  multiply_by_parameter_scale: bool = True
  beta1: float | None = None
  decay_rate: float = 0.8
  step_offset: int = 0
  clipping_threshold: float | None = 1.0
  weight_decay_rate: float | None = None
  min_dim_size_to_factor: int = 128
  epsilon1: float = 1e-30
  epsilon2: float = 1e-3
  logical_factor_rules: Mapping[str, Role] | None = None

  def __post_init__(self) -> None:
    self._roles: dict[Path, tuple[Role, ...]] = {}

  def set_param_axes(self, param_logical_axes: PyTree) -> None:
    """Looks up the role of each parameter axis in `logical_factor_rules`, if it is set.

    Raises:
      InputError: If a logical axis has no rule.
    """
    if self.logical_factor_rules is not None:
      self._roles = {
        path: _roles(tuple(names), self.logical_factor_rules, "/".join(path))
        for path, names in traverse_util.flatten_dict(param_logical_axes).items()
      }

  def _layout(self, path: Path, shape: Sequence[int]) -> _Layout:
    if not self.factored:
      return _Layout(tuple(range(len(shape))))
    return _layout(self._roles.get(path), shape, self.min_dim_size_to_factor, "/".join(path))

  def init_state(self, params: PyTree) -> PyTree:
    """Returns the state before the first step."""

    def state_of(path: Any, param: Array) -> AdafactorParamState:
      layout = self._layout(path, param.shape)
      shapes: dict[str, tuple[int, ...]] = dict.fromkeys(("v_row", "v_col", "v", "m"), (1,))
      if layout.rows:
        shapes["v_row"] = _without(param.shape, layout.columns)
        shapes["v_col"] = _without(param.shape, layout.rows)
      else:
        shapes["v"] = param.shape
      if self.beta1 is not None:
        shapes["m"] = param.shape
      return AdafactorParamState(
        **{name: jnp.zeros(shape, jnp.float32) for name, shape in shapes.items()}
      )

    return traverse_util.path_aware_map(state_of, params)

  def apply_gradient(
    self, params: PyTree, state: PyTree, grads: PyTree, *, step: jax.Array, learning_rate: Any
  ) -> tuple[PyTree, PyTree]:
    """Returns the parameters and the state after one more step (algorithm 5 of the paper)."""
    t = jnp.asarray(step - self.step_offset, jnp.float32) + 1.0
    decay = 1.0 - t ** (-self.decay_rate)
    flat_grads, flat_states = map(traverse_util.flatten_dict, (grads, state))

    def update_one(path: Path, param: Array) -> tuple[Array, AdafactorParamState]:
      layout, old_state = self._layout(path, param.shape), flat_states[path]
      update, new_state = _divided_by_second_moment(
        flat_grads[path].astype(jnp.float32), old_state, decay, self.epsilon1, layout
      )
      if self.clipping_threshold is not None:
        size = _root_mean_square(update, layout.averaged)
        update = update / jnp.maximum(1.0, size / self.clipping_threshold)
      step_size = learning_rate
      if self.multiply_by_parameter_scale:
        scale = jnp.maximum(_root_mean_square(param, layout.averaged), self.epsilon2)
        step_size = learning_rate * scale
      update = step_size * update
      if self.beta1 is not None:
        update = self.beta1 * old_state.m + (1.0 - self.beta1) * update
        new_state = new_state.replace(m=update)
      new_param = param
      if self.weight_decay_rate is not None:
        new_param = (1.0 - self.weight_decay_rate) * param
      return (new_param - update).astype(param.dtype), new_state

    new_params, new_states = {}, {}
    for path, param in traverse_util.flatten_dict(params).items():
      new_params[path], new_states[path] = update_one(path, param)
    return traverse_util.unflatten_dict(new_params), traverse_util.unflatten_dict(new_states)

  def logical_axes(self, params: PyTree, state: PyTree, param_axes: PyTree) -> PyTree:
    """Returns `state` with every array replaced by its PartitionSpec, or by None if replicated.

    Moments with the same shape as their parameter are sharded like the parameter. The row and
    column means of factored moments are replicated.
    """

    def axes_of(param: Any, moments: AdafactorParamState, axes: Any) -> AdafactorParamState:
      v, m = (axes if x.shape == param.shape else None for x in (moments.v, moments.m))
      return AdafactorParamState(v_row=None, v_col=None, v=v, m=m)

    return jax.tree.map(axes_of, params, state, param_axes)
