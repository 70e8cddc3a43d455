"""Arguments of `create_learning_rate_scheduler` that follow the number of training steps.

Gin files compute them from TRAIN_STEPS, so that a schedule ends with the run:

  utils.create_learning_rate_scheduler.decay_factor = @schedules.slope_to_zero()
  schedules.slope_to_zero.total_steps = %TRAIN_STEPS
"""


def slope_to_zero(total_steps: int, warmup_steps: int) -> float:
  """Returns the `decay_factor` with which `linear_decay` reaches zero at `total_steps`."""
  return 1 / max(1, total_steps - warmup_steps)


def multiple(steps: int, factor: int) -> int:
  """Returns `steps * factor`, such as the length of a cycle that a run covers in part."""
  return steps * factor
