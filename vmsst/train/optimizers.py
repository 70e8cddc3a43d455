"""Optimizers and learning-rate schedules.

As in T5X, an optax optimizer uses the learning rate in its own configuration. The trainer also has
a learning-rate schedule, but with an optax optimizer, this schedule only determines the learning
rate that is shown in the metrics. gin/runs/train.gin sets the trainer's schedule to the macro
SCHEDULE. To use the same schedule in an optax optimizer, write:

  OPTIMIZER = @optimizers.chain()
  optimizers.chain.transformations = [@optax.clip_by_global_norm(), @optax.adamw()]
  optax.adamw.learning_rate = %SCHEDULE

To make a schedule end with the run, compute its arguments from TRAIN_STEPS in the gin file:

  from vmsst.train import optimizers as schedules
  utils.create_learning_rate_scheduler.decay_factor = @schedules.slope_to_zero()
  schedules.slope_to_zero.total_steps = %TRAIN_STEPS
"""

import abc
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import msgspec
import optax
from flax import traverse_util
from jaxtyping import Float, Int

from vmsst.errors import InputError

PyTree = Any
Step = Int[jax.Array, ""] | int
Schedule = Callable[[Step], Float[jax.Array, ""]]


class OptimizerDef(abc.ABC):
  """An optimizer without its state."""

  @abc.abstractmethod
  def init_state(self, params: PyTree) -> PyTree:
    """Returns the state before the first step."""

  @abc.abstractmethod
  def apply_gradient(
    self, params: PyTree, state: PyTree, grads: PyTree, *, step: jax.Array, learning_rate: Any
  ) -> tuple[PyTree, PyTree]:
    """Returns the parameters and state after one more step; `step` counts the steps before it."""

  def select(self, params: PyTree, batch: Any) -> tuple[PyTree, Callable[[PyTree], PyTree]]:
    """Selects the parameters to differentiate in a step (default: all).

    Args:
      params: The parameters.
      batch: The batch, by feature.

    Returns:
      The selected parameters, and a function. The function takes a tree with the selected
      parameters or with their gradients, and adds the entries that the model and `apply_gradient`
      need.
    """
    del batch
    return params, lambda tree: tree

  @abc.abstractmethod
  def logical_axes(self, params: PyTree, state: PyTree, param_axes: PyTree) -> PyTree:
    """Returns `state` with every array replaced by its PartitionSpec, or by None if replicated."""


class OptaxWrapper(OptimizerDef):
  """Wraps an optax optimizer as an OptimizerDef.

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
    """Returns parameters and state after one more step, with optax's own learning rate."""
    del step, learning_rate
    updates, state = self.optax_optimizer.update(grads, state, params)
    return optax.apply_updates(params, updates), state

  def logical_axes(self, params: PyTree, state: PyTree, param_axes: PyTree) -> PyTree:
    """Returns `state` with every array replaced by its PartitionSpec, or by None if replicated.

    An array in the optax state that has the same shape as its parameter gets the parameter's axes.
    All remaining arrays are small and are replicated, for example counters, hyperparameters, random
    keys, and the row and column statistics of a factored second moment.
    """

    def axes_of(moment: Any, param: Any, axes: Any) -> Any:
      if isinstance(moment, optax.MaskedNode):  # A mask excludes this parameter.
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


def chain(
  transformations: Sequence[optax.GradientTransformation], frozen: Sequence[str] = ()
) -> OptaxWrapper:
  """Wraps `optax.chain` as an OptimizerDef, with all transformations in one argument for gin.

  Args:
    transformations: Transformations to chain.
    frozen: Regular expressions for the names of frozen parameters, such as "token_embedder/.*".
      Frozen parameters have no moments. An expression that matches no parameter raises InputError
      when the state is initialized.
  """
  transform = optax.chain(*transformations)
  if not frozen:
    return OptaxWrapper(transform)

  def labels(params: PyTree) -> PyTree:
    if not isinstance(params, Mapping):  # optax's placeholder for all parameters
      return False
    names = traverse_util.flatten_dict(params, sep="/")
    frozen_names = matching("optimizers.chain.frozen", frozen, names)
    return traverse_util.unflatten_dict({name: name in frozen_names for name in names}, sep="/")

  return OptaxWrapper(optax.partition({False: transform, True: optax.set_to_zero()}, labels))


def matching(option: str, patterns: Sequence[str], names: Iterable[str]) -> set[str]:
  """Returns the parameter names that match at least one of an option's regular expressions.

  Raises:
    InputError: If an expression matches no name.
  """
  matches: set[str] = set()
  for pattern in patterns:
    new = {name for name in names if re.fullmatch(pattern, name)}
    if not new:
      examples = ", ".join([*names][:3])
      raise InputError(f"{option}: {pattern!r} matches no parameter; names are {examples} ...")
    matches |= new
  return matches


# --------------------------------------------------------------------------------------------
# Learning-rate schedules


def create_learning_rate_scheduler(
  factors: str = "constant * linear_warmup * rsqrt_decay",
  base_learning_rate: Annotated[float, msgspec.Meta(ge=0)] = 0.5,
  warmup_steps: Annotated[int, msgspec.Meta(ge=0)] = 1000,
  decay_factor: float = 0.5,
  steps_per_decay: Annotated[int, msgspec.Meta(ge=1)] = 20000,
  steps_per_cycle: Annotated[int, msgspec.Meta(ge=1)] = 100000,
  step_offset: Annotated[int, msgspec.Meta(ge=0)] = 0,
  min_learning_rate: Annotated[float, msgspec.Meta(ge=0)] = 1e-8,
) -> Schedule:
  """Returns a function that takes a step and returns its learning rate, a float32 scalar.

  The learning rate is the product of the chosen factors. With t = max(0, step - step_offset),
  w = warmup_steps and v = max(1, w), the factors are:

  * constant: base_learning_rate,
  * linear_warmup: min(1, t / v),
  * linear_decay: base_learning_rate * min(t / v, 1 + decay_factor * (w - t)); this formula includes
    the constant and the warm-up, so do not combine it with other factors,
  * rsqrt_decay: 1 / sqrt(max(t, v)),
  * rsqrt_normalized_decay: sqrt(v / max(t, v)),
  * decay_every: decay_factor ** floor(t / steps_per_decay),
  * cosine_decay: (1 + cos(pi * p)) / 2, where p is the fractional part of
    max(0, t - w) / steps_per_cycle.

  The VMSST paper uses lr(t) = 1e-3 * min(t / 4000, sqrt(4000 / t)). This schedule is `'constant *
  linear_warmup * rsqrt_normalized_decay'` with a base learning rate of 1e-3 and 4000 warm-up steps.

  Args:
    factors: Names of factors, separated by `*`.
    base_learning_rate: Value of `constant`.
    warmup_steps: Number of warm-up steps. All decays except `decay_every` start after them.
    decay_factor: Slope for `linear_decay`, or factor for `decay_every`.
    steps_per_decay: Number of steps between two decays, for `decay_every`.
    steps_per_cycle: Length of one cosine cycle.
    step_offset: The step at which the schedule starts, for fine-tuning.
    min_learning_rate: Lower bound of the learning rate, also at step 0 of a warm-up.

  Raises:
    InputError: If a factor is unknown.
  """
  warmup = max(1, warmup_steps)

  def decay_by_cosine(rate, t):
    cycles = jnp.maximum(0.0, (t - warmup_steps) / float(steps_per_cycle))
    return rate * jnp.maximum(0.0, 0.5 * (1.0 + jnp.cos(jnp.pi * (cycles % 1.0))))

  def decay_linearly(rate, t):
    up_then_down = jnp.minimum(t / warmup, 1.0 + decay_factor * (warmup_steps - t))
    return rate * (base_learning_rate * up_then_down)

  # Each function below multiplies the learning rate by one factor. The order of operations affects
  # the last bit of the result. Keep T5X's order, because both runtimes must produce identical
  # results.
  apply_factor = {
    "constant": lambda rate, t: rate * base_learning_rate,
    "linear_warmup": lambda rate, t: rate * jnp.minimum(1.0, t / warmup),
    "linear_decay": decay_linearly,
    "rsqrt_decay": lambda rate, t: rate / jnp.sqrt(jnp.maximum(t, warmup)),
    "rsqrt_normalized_decay": lambda rate, t: (
      rate * jnp.sqrt(warmup) / jnp.sqrt(jnp.maximum(t, warmup))
    ),
    "decay_every": lambda rate, t: rate * decay_factor ** (t // steps_per_decay),
    "cosine_decay": decay_by_cosine,
  }

  names = [name.strip() for name in factors.split("*")]
  for name in names:
    if name not in apply_factor:
      raise InputError(
        f"create_learning_rate_scheduler.factors = {factors!r}: unknown factor {name!r}; "
        f"use {', '.join(sorted(apply_factor))}"
      )

  def schedule(step: Step) -> Float[jax.Array, ""]:
    t = jnp.maximum(0, step - step_offset)
    rate = 1.0
    for name in names:
      rate = apply_factor[name](rate, t)
    return jnp.asarray(jnp.maximum(rate, min_learning_rate), jnp.float32)

  return schedule


def slope_to_zero(total_steps: int, warmup_steps: int) -> float:
  """Returns the `decay_factor` that makes `linear_decay` reach zero at `total_steps`."""
  return 1 / max(1, total_steps - warmup_steps)


def multiple(steps: int, factor: int) -> int:
  """Returns `steps * factor`, for example for a cosine cycle that is longer than the run."""
  return steps * factor


def one_cycle_schedule(
  steps: Annotated[int, msgspec.Meta(ge=1)],
  peak: Annotated[float, msgspec.Meta(gt=0)],
  warmup: Annotated[float, msgspec.Meta(ge=0, lt=1)],
) -> optax.Schedule:
  """Returns a schedule that rises to a peak and then falls to 0 at `steps`, along cosine curves.

  Args:
    steps: Training steps.
    peak: Highest learning rate.
    warmup: Fraction of the steps during which the learning rate rises.
  """
  return optax.cosine_onecycle_schedule(steps, peak, pct_start=warmup)
