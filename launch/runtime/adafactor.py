"""Adafactor with T5X's rules for which axes of a parameter are factored.

Shazeer and Stern, "Adafactor: Adaptive Learning Rates with Sublinear Memory Cost" (2018),
https://arxiv.org/abs/1804.04235. The second moment of a matrix is kept as the means of its rows and
columns. For a parameter of more than two axes (attention heads, stacked layers), T5X derives from
logical axis names which axes are rows, columns or a batch of independent matrices.
"""

from __future__ import annotations

import enum
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Int

from vmsst.errors import InputError
from vmsst.launch.runtime import optimizers
from vmsst.launch.runtime.optimizers import Leaf, Optimizer, OptimizerDef, OptimizerState

PyTree = Any
Path = tuple[str, ...]


class FactorDim(enum.Enum):
  """The role of a parameter's axis in the factored second moment."""

  NONE = None
  BATCH = 1  # independent parameters, never averaged
  ROW = 2
  COLUMN = 3


class HeuristicRule(enum.Enum):
  """Factors only matrices whose sides are both long enough."""

  token = 1


HEURISTIC_RULE = HeuristicRule.token
FactorRule = HeuristicRule | Sequence[FactorDim] | None

_FACTOR_NAMES = {
  "row": FactorDim.ROW,
  "col": FactorDim.COLUMN,
  "column": FactorDim.COLUMN,
  "batch": FactorDim.BATCH,
  "none": FactorDim.NONE,
  "unfactorized": FactorDim.NONE,
}


def standard_logical_factor_rules() -> dict[str, FactorDim]:
  """Returns the role of each of T5X's standard logical axes in the factored second moment."""
  rows = ["embed"]
  columns = ["vocab", "mlp", "heads", "kv", "joined_kv", "mlp_activations", "multiquery_heads"]
  columns += ["q_wi_fused", "o_wo_fused", "kv_fused"]
  batches = ["layers", "stack"]
  unfactored = ["relpos_buckets", "layer_norm_scale"]
  return {
    **dict.fromkeys(rows, FactorDim.ROW),
    **dict.fromkeys(columns, FactorDim.COLUMN),
    **dict.fromkeys(batches, FactorDim.BATCH),
    **dict.fromkeys(unfactored, FactorDim.NONE),
  }


def factor_name_to_factordim(name: str | FactorDim) -> FactorDim:
  """Returns the FactorDim of a name in a gin file: 'row', 'column', 'batch' or 'none'."""
  if isinstance(name, FactorDim):
    return name
  if not isinstance(name, str) or name.lower() not in _FACTOR_NAMES:
    raise InputError(f"unknown factor {name!r}; use one of {', '.join(_FACTOR_NAMES)}")
  return _FACTOR_NAMES[name.lower()]


class HParamMap:
  """A hyperparameter that differs between parameters.

  Attributes:
    rules: Pairs of a regular expression and a value. A parameter takes the value of the first
      expression found in its path, such as `encoder/layers_0/mlp/wi/kernel`.
  """

  def __init__(self, rules: Iterable[tuple[str, Any]]):
    self.rules = tuple((re.compile(pattern), value) for pattern, value in rules)

  def __getitem__(self, path: str) -> Any:
    for pattern, value in self.rules:
      if pattern.search(path):
        return value
    patterns = ", ".join(repr(pattern.pattern) for pattern, _ in self.rules)
    raise InputError(f"no rule of the HParamMap matches parameter {path}; add one to {patterns}")


class AdafactorHyperParams(struct.PyTreeNode):
  """The arguments of `Adafactor`; see there."""

  learning_rate: Any  # a number, or the trainer's scalar array
  factored: bool
  multiply_by_parameter_scale: bool | HParamMap
  beta1: float | None
  decay_rate: float
  step_offset: int
  clipping_threshold: float | None
  weight_decay_rate: float | None
  min_dim_size_to_factor: int
  epsilon1: float
  epsilon2: float
  factor_map: HParamMap | Mapping[str, FactorRule] | None
  logical_factor_rules: Mapping[str, FactorDim | str] | None
  weight_decay_rate_lr_exponent: float | None
  global_norm_clip_threshold: float | None
  max_parameter_scale: float | None
  skip_nan_updates: bool


class AdafactorParamState(struct.PyTreeNode):
  """The state of one parameter; unused arrays have the shape (1,)."""

  v_row: Leaf  # mean of the second moment over the column axes
  v_col: Leaf  # mean of the second moment over the row axes
  v: Leaf  # the whole second moment, if it is not factored
  m: Leaf  # the first moment, if beta1 is set


class _Layout(NamedTuple):
  """The axes of one parameter by role.

  Attributes:
    averaged: All axes but the batch axes.
    rows: Row axes, empty if the second moment is not factored.
    columns: Column axes, empty if the second moment is not factored.
  """

  averaged: tuple[int, ...]
  rows: tuple[int, ...] = ()
  columns: tuple[int, ...] = ()


def _matrix_layout(shape: Sequence[int], min_size: int) -> _Layout:
  """Returns a layout whose rows are the shorter side, or the first of two equal sides."""
  averaged = tuple(range(len(shape)))
  if len(shape) != 2 or min(shape) < min_size:
    return _Layout(averaged)
  row = int(shape[1] < shape[0])
  return _Layout(averaged, (row,), (1 - row,))


def _layout(rule: FactorRule, shape: Sequence[int], min_size: int, path: str) -> _Layout:
  """Returns the layout of a parameter by a rule.

  As in T5X, vectors and matrices without batch axes always follow the heuristic; rules only affect
  parameters with more axes.
  """
  if rule is None:
    return _Layout(tuple(range(len(shape))))
  if rule is HEURISTIC_RULE:
    if len(shape) > 2:
      raise InputError(
        f"Adafactor: parameter {path} of shape {tuple(shape)} has more than two axes and no factor "
        "rule; bind adafactor.Adafactor.logical_factor_rules = "
        "@adafactor.standard_logical_factor_rules()"
      )
    return _matrix_layout(shape, min_size)
  if len(rule) != len(shape):
    raise InputError(
      f"Adafactor: the factor rule {tuple(rule)} of parameter {path} names {len(rule)} axes, but "
      f"its shape is {tuple(shape)}"
    )
  axes = {
    kind: tuple(axis for axis, other in enumerate(rule) if other is kind) for kind in FactorDim
  }
  if len(shape) <= 2 and not axes[FactorDim.BATCH]:
    return _matrix_layout(shape, min_size)
  averaged = tuple(axis for axis, kind in enumerate(rule) if kind is not FactorDim.BATCH)
  rows, columns = axes[FactorDim.ROW], axes[FactorDim.COLUMN]
  return _Layout(averaged, rows, columns) if rows and columns else _Layout(averaged)


def _rule_of_axes(
  names: Sequence[str], rules: Mapping[str, FactorDim | str], path: str
) -> tuple[FactorDim, ...]:
  """Returns the factor rule of a parameter with these logical axes."""
  for name in names:
    if name not in rules:
      raise InputError(
        f"Adafactor: parameter {path} has the logical axis {name!r}, which has no factor rule; add "
        f"one to adafactor.Adafactor.logical_factor_rules ('row', 'column', 'batch' or 'none') or "
        f"use one of {', '.join(sorted(rules))}"
      )
  kinds = tuple(factor_name_to_factordim(rules[name]) for name in names)
  is_factored = FactorDim.ROW in kinds and FactorDim.COLUMN in kinds
  if is_factored and FactorDim.NONE in kinds:
    raise InputError(
      f"Adafactor: parameter {path} with the logical axes {tuple(names)} has rows, columns and "
      f"unfactored axes ({', '.join(kind.name for kind in kinds)}); make all or none factored"
    )
  if is_factored:
    return kinds
  return tuple(kind if kind is FactorDim.BATCH else FactorDim.NONE for kind in kinds)


def _root_mean_square(x: Array, axes: tuple[int, ...]) -> Array:
  return jnp.sqrt(jnp.mean(x * x, axis=axes, keepdims=True))


def _without(shape: Sequence[int], axes: Sequence[int]) -> tuple[int, ...]:
  return tuple(size for axis, size in enumerate(shape) if axis not in axes)


def _scaled_by_factors(grad: Array, v_row: Array, v_col: Array, layout: _Layout) -> Array:
  """Returns `grad` divided by the root of the second moment, given its row and column means."""
  rows_of_v_row = tuple(row - sum(column < row for column in layout.columns) for row in layout.rows)
  mean = jnp.mean(v_row, axis=rows_of_v_row, keepdims=True)
  row_factor = (v_row / mean) ** -0.5
  col_factor = v_col**-0.5
  return (
    grad * jnp.expand_dims(row_factor, layout.columns) * jnp.expand_dims(col_factor, layout.rows)
  )


def _mean(values: Array, axes: tuple[int, ...]) -> Array:
  """Returns the mean over axes; on CPUs as a product, since XLA's sums over rows are slow there."""

  def by_product(values: Array) -> Array:
    shape = tuple(values.shape[axis] for axis in axes)
    weights = jnp.full(shape, 1 / math.prod(shape), values.dtype)
    every = range(values.ndim)
    kept = [axis for axis in every if axis not in axes]
    return jnp.einsum(values, [*every], weights, [*axes], kept, precision=jax.lax.Precision.HIGHEST)

  def by_sum(values: Array) -> Array:
    return jnp.mean(values, axis=axes)

  return jax.lax.platform_dependent(values, cpu=by_product, default=by_sum)


def _divided_by_second_moment(
  grad: Array, state: AdafactorParamState, decay: Array, epsilon: float, layout: _Layout
) -> tuple[Array, AdafactorParamState]:
  """Updates the second moment with `grad`; returns `grad` divided by its root, and the state."""
  mixing = 1.0 - decay
  squared = grad * grad + epsilon
  if layout.rows:
    v_row = decay * state.v_row + mixing * _mean(squared, layout.columns)
    v_col = decay * state.v_col + mixing * _mean(squared, layout.rows)
    update = _scaled_by_factors(grad, v_row, v_col, layout)
    return update, state.replace(v_row=v_row, v_col=v_col)
  v = decay * state.v + mixing * squared
  return grad * v**-0.5, state.replace(v=v)


class Adafactor(OptimizerDef):
  """Adafactor as T5X configures it; the trainer gives the learning rate of each step."""

  hyper_params: AdafactorHyperParams

  def __init__(
    self,
    learning_rate: float | None = None,
    factored: bool = True,
    multiply_by_parameter_scale: bool | HParamMap = True,
    beta1: float | None = None,
    decay_rate: float = 0.8,
    step_offset: int = 0,
    clipping_threshold: float | None = 1.0,
    weight_decay_rate: float | None = None,
    min_dim_size_to_factor: int = 128,
    epsilon1: float = 1e-30,
    epsilon2: float = 1e-3,
    dtype_momentum: Any = jnp.float32,
    factor_map: HParamMap | None = None,
    logical_factor_rules: Mapping[str, FactorDim | str] | None = None,
    weight_decay_rate_lr_exponent: float | None = None,
    global_norm_clip_threshold: float | None = None,
    max_parameter_scale: float | None = None,
    skip_nan_updates: bool = False,
  ):
    """Sets the hyperparameters.

    Args:
      learning_rate: Learning rate if the trainer has none.
      factored: Whether second moments are factored.
      multiply_by_parameter_scale: Whether to scale the learning rate by the root mean square of
        the parameter, for all parameters or by path.
      beta1: Decay of the first moment; None omits the first moment, which saves memory.
      decay_rate: c in the decay 1 - t ** -c of the second moment at step t = 1, 2, ...
      step_offset: First step of the decay, for fine-tuning.
      clipping_threshold: Largest root mean square of an update before the learning rate.
      weight_decay_rate: Fraction of a parameter to subtract at each step.
      min_dim_size_to_factor: Shortest side of a matrix to factor.
      epsilon1: Added to squared gradients.
      epsilon2: Smallest scale of a parameter.
      dtype_momentum: Type of the first moment.
      factor_map: Rules by path: a FactorDim for each axis, HEURISTIC_RULE or None. Overridden by
        logical_factor_rules.
      logical_factor_rules: Role of each logical axis: a FactorDim or its name.
      weight_decay_rate_lr_exponent: Multiplies the weight decay by learning_rate ** exponent.
      global_norm_clip_threshold: Largest global norm of the gradients.
      max_parameter_scale: Largest scale of a parameter.
      skip_nan_updates: Whether to keep the old value if the new one is NaN.
    """
    if not factored and factor_map is not None:
      raise InputError("adafactor.Adafactor: factor_map needs factored = True; remove one of them")
    if not isinstance(multiply_by_parameter_scale, bool | HParamMap):
      raise InputError(
        "adafactor.Adafactor.multiply_by_parameter_scale must be a bool or an HParamMap, got "
        f"{multiply_by_parameter_scale!r}"
      )
    if not isinstance(factor_map, HParamMap | None):
      raise InputError(f"adafactor.Adafactor.factor_map must be an HParamMap, got {factor_map!r}")
    super().__init__(
      AdafactorHyperParams(
        learning_rate=learning_rate,
        factored=factored,
        multiply_by_parameter_scale=multiply_by_parameter_scale,
        beta1=beta1,
        decay_rate=decay_rate,
        step_offset=step_offset,
        clipping_threshold=clipping_threshold,
        weight_decay_rate=weight_decay_rate,
        min_dim_size_to_factor=min_dim_size_to_factor,
        epsilon1=epsilon1,
        epsilon2=epsilon2,
        factor_map=factor_map,
        logical_factor_rules=logical_factor_rules,
        weight_decay_rate_lr_exponent=weight_decay_rate_lr_exponent,
        global_norm_clip_threshold=global_norm_clip_threshold,
        max_parameter_scale=max_parameter_scale,
        skip_nan_updates=skip_nan_updates,
      )
    )
    self.dtype_momentum = jax.dtypes.canonicalize_dtype(dtype_momentum)

  def set_param_axes(self, param_logical_axes: PyTree) -> None:
    """Sets the factor rules from the logical axes of the parameters, if `logical_factor_rules`.

    Raises:
      InputError: An axis has no rule, or the rules of a parameter contradict each other.
    """
    rules = self.hyper_params.logical_factor_rules
    if rules is None:
      return
    factor_map = {
      "/".join(path): _rule_of_axes(tuple(names), rules, "/".join(path))
      for path, names in optimizers.flatten_paths(param_logical_axes).items()
    }
    self.hyper_params = self.hyper_params.replace(factor_map=factor_map)

  def _layout(self, path: Path, shape: Sequence[int]) -> _Layout:
    hyper_params = self.hyper_params
    name = "/".join(path)
    rule: FactorRule = HEURISTIC_RULE
    if not hyper_params.factored:
      rule = None
    elif hyper_params.factor_map:
      rule = hyper_params.factor_map[name]
    return _layout(rule, shape, hyper_params.min_dim_size_to_factor, name)

  def _init_param_state(self, path: Path, param: Array) -> AdafactorParamState:
    layout = self._layout(path, param.shape)
    unused = jnp.zeros((1,), jnp.float32)
    has_momentum = self.hyper_params.beta1 is not None
    state = AdafactorParamState(
      v_row=unused,
      v_col=unused,
      v=unused,
      m=jnp.zeros(param.shape, self.dtype_momentum) if has_momentum else unused,
    )
    if not layout.rows:
      return state.replace(v=jnp.zeros(param.shape, jnp.float32))
    return state.replace(
      v_row=jnp.zeros(_without(param.shape, layout.columns), jnp.float32),
      v_col=jnp.zeros(_without(param.shape, layout.rows), jnp.float32),
    )

  def init_state(self, params: PyTree) -> OptimizerState:
    """Returns the state before the first step."""
    states = {
      path: self._init_param_state(path, param)
      for path, param in optimizers.flatten_paths(params).items()
    }
    return OptimizerState(
      step=jnp.zeros((), jnp.int32), param_states=optimizers.unflatten_like(params, states)
    )

  def apply_gradient(
    self, hyper_params: AdafactorHyperParams, params: PyTree, state: OptimizerState, grads: PyTree
  ) -> tuple[PyTree, OptimizerState]:
    """Returns the parameters and the state after one more step (algorithm 5 of the paper).

    Raises:
      InputError: Neither the trainer nor the optimizer has a learning rate.
    """
    if hyper_params.learning_rate is None:
      raise InputError(
        "Adafactor has no learning rate; bind trainer.Trainer.learning_rate_fn = "
        "@utils.create_learning_rate_scheduler()"
      )
    flat_grads = optimizers.flatten_paths(grads)
    if hyper_params.global_norm_clip_threshold:
      flat_grads = _clip_by_global_norm(flat_grads, hyper_params.global_norm_clip_threshold)
    flat_states = optimizers.flatten_paths(state.param_states)
    new_params, new_states = {}, {}
    for path, param in optimizers.flatten_paths(params).items():
      new_params[path], new_states[path] = self._apply_param_gradient(
        hyper_params, path, state.step, param, flat_states[path], flat_grads[path]
      )
    return optimizers.unflatten_like(params, new_params), OptimizerState(
      step=state.step + 1, param_states=optimizers.unflatten_like(params, new_states)
    )

  def _apply_param_gradient(
    self,
    hyper_params: AdafactorHyperParams,
    path: Path,
    step: Int[Array, ""],
    param: Array,
    state: AdafactorParamState,
    grad: Array,
  ) -> tuple[Array, AdafactorParamState]:
    layout = self._layout(path, param.shape)
    t = jnp.asarray(step - hyper_params.step_offset, jnp.float32) + 1.0
    decay = 1.0 - t ** (-hyper_params.decay_rate)
    update, new_state = _divided_by_second_moment(
      grad.astype(jnp.float32), state, decay, hyper_params.epsilon1, layout
    )
    if hyper_params.clipping_threshold is not None:
      size = _root_mean_square(update, layout.averaged)
      update = update / jnp.maximum(1.0, size / hyper_params.clipping_threshold)

    update = self._step_size(hyper_params, path, param, layout) * update
    if hyper_params.beta1 is not None:
      update = hyper_params.beta1 * state.m + (1.0 - hyper_params.beta1) * update
      new_state = new_state.replace(m=update.astype(self.dtype_momentum))

    new_param = param
    weight_decay = _weight_decay(hyper_params)
    if weight_decay is not None:
      new_param = (1.0 - weight_decay) * param
    new_param = new_param - update
    if hyper_params.skip_nan_updates:
      new_param, new_state = jax.tree.map(
        lambda new, old: jnp.where(jnp.isnan(new), old, new),
        (new_param, new_state),
        (param, state),
      )
    return new_param.astype(param.dtype), new_state

  def _step_size(
    self, hyper_params: AdafactorHyperParams, path: Path, param: Array, layout: _Layout
  ) -> Array | float:
    is_relative = hyper_params.multiply_by_parameter_scale
    if isinstance(is_relative, HParamMap):
      is_relative = is_relative["/".join(path)]
    if not is_relative:
      return hyper_params.learning_rate
    scale = jnp.maximum(_root_mean_square(param, layout.averaged), hyper_params.epsilon2)
    if hyper_params.max_parameter_scale is not None:
      scale = jnp.minimum(scale, hyper_params.max_parameter_scale)
    return hyper_params.learning_rate * scale

  def derive_logical_axes(self, optimizer: Optimizer, param_logical_axes: PyTree) -> Optimizer:
    """Returns `optimizer` with a PartitionSpec, or None if replicated, for every array.

    Whole moments are sharded like their parameter; means of rows and columns are replicated.
    """
    params = optimizers.flatten_paths(optimizer.target)
    states = optimizers.flatten_paths(optimizer.state.param_states)
    axes = optimizers.flatten_paths(param_logical_axes)

    def axes_of(path: Path, moment: Leaf) -> Leaf:
      return axes[path] if moment.shape == params[path].shape else None

    param_states = {
      path: AdafactorParamState(
        v_row=None, v_col=None, v=axes_of(path, state.v), m=axes_of(path, state.m)
      )
      for path, state in states.items()
    }
    return optimizer.replace(
      state=OptimizerState(
        step=None, param_states=optimizers.unflatten_like(optimizer.target, param_states)
      ),
      target=param_logical_axes,
    )


def _weight_decay(hyper_params: AdafactorHyperParams) -> Array | float | None:
  exponent = hyper_params.weight_decay_rate_lr_exponent
  if not exponent:
    return hyper_params.weight_decay_rate
  return (hyper_params.weight_decay_rate or 1.0) * hyper_params.learning_rate**exponent


def _clip_by_global_norm(grads: Mapping[Path, Array], threshold: float) -> dict[Path, Array]:
  norm = jnp.sqrt(jnp.sum(jnp.array([jnp.sum(jnp.square(grad)) for grad in grads.values()])))
  scale = threshold * jnp.minimum(1.0 / threshold, 1.0 / norm)
  return {path: grad * scale for path, grad in grads.items()}
