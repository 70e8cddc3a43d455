"""Learning-rate schedules: products of named factors, such as `'constant * linear_warmup'`.

Gin files compute some of their arguments from TRAIN_STEPS, so that a schedule ends with the run:

  utils.create_learning_rate_scheduler.decay_factor = @schedules.slope_to_zero()
  schedules.slope_to_zero.total_steps = %TRAIN_STEPS
"""

from collections.abc import Callable
from typing import Annotated

import jax
import jax.numpy as jnp
import msgspec
from jaxtyping import Float, Int

from vmsst.errors import InputError

Step = Int[jax.Array, ""] | int
Schedule = Callable[[Step], Float[jax.Array, ""]]


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
  """Returns a function from a step to its learning rate, a float32 scalar.

  With t = max(0, step - step_offset) and w = warmup_steps, the factors are:

  * constant: base_learning_rate,
  * linear_warmup: min(1, t / w); w is at least 1 here and in the next three factors,
  * linear_decay: base_learning_rate * min(t / w, 1 + decay_factor * (w - t)); it includes the
    constant and the warm-up, so use it alone,
  * rsqrt_decay: 1 / sqrt(max(t, w)),
  * rsqrt_normalized_decay: sqrt(w / max(t, w)),
  * decay_every: decay_factor ** floor(t / steps_per_decay),
  * cosine_decay: (1 + cos(pi * p)) / 2, where p in [0, 1) is the position in the current cycle,
    (t - w) / steps_per_cycle.

  The paper's lr(t) = 1e-3 * min(t / 4000, sqrt(4000 / t)) is `'constant * linear_warmup *
  rsqrt_normalized_decay'` with a base of 1e-3 and 4000 warm-up steps.

  Args:
    factors: Names of factors, separated by `*`.
    base_learning_rate: The constant.
    warmup_steps: Length of the warm-up, and start of the decays.
    decay_factor: Slope of `linear_decay`, or factor of `decay_every`.
    steps_per_decay: Steps between two decays of `decay_every`.
    steps_per_cycle: Length of one cosine cycle.
    step_offset: The step to count as 0, for fine-tuning.
    min_learning_rate: Lower bound; step 0 of a warm-up is therefore not exactly 0.

  Raises:
    InputError: A factor is unknown.
  """
  warmup = max(1, warmup_steps)

  def decay_by_cosine(rate, t):
    cycles = jnp.maximum(0.0, (t - warmup_steps) / float(steps_per_cycle))
    return rate * jnp.maximum(0.0, 0.5 * (1.0 + jnp.cos(jnp.pi * (cycles % 1.0))))

  def decay_linearly(rate, t):
    up_then_down = jnp.minimum(t / warmup, 1.0 + decay_factor * (warmup_steps - t))
    return rate * (base_learning_rate * up_then_down)

  # Each entry multiplies the rate so far. The order of operations determines the last bit of the
  # result, and thus whether both runtimes train to the same numbers.
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
  """Returns the `decay_factor` with which `linear_decay` reaches zero at `total_steps`."""
  return 1 / max(1, total_steps - warmup_steps)


def multiple(steps: int, factor: int) -> int:
  """Returns `steps * factor`, such as the length of a cycle that a run covers in part."""
  return steps * factor
