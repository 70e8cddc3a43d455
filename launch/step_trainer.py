"""A T5X trainer that passes the training step to the model, for losses that change over time.

`StepTrainer` extends the `Trainer` of the T5X runtime in use, upstream or bundled. It is created on
first use, so importing this module does not import T5X. In gin:

  train_script.train.trainer_cls = @step_trainer.StepTrainer
  step_trainer.StepTrainer:
    num_microbatches = %NUM_MICROBATCHES
    learning_rate_fn = @utils.create_learning_rate_scheduler()

Repeat the bindings of `trainer.Trainer`, which do not apply to it. The training evaluation gets the
number of updates so far, so that its loss is the training objective.
"""

import functools
from types import ModuleType
from typing import Any


class _ModelAtStep:
  """A model whose `loss_fn` and `eval_fn` get the step; delegates all else to the model."""

  def __init__(self, model: Any, step: Any):
    self._model = model
    self._step = step

  def __getattr__(self, name: str) -> Any:
    return getattr(self._model, name)

  def loss_fn(self, *args: Any, **kwargs: Any) -> Any:
    return self._model.loss_fn(*args, step=self._step, **kwargs)

  def eval_fn(self, *args: Any, **kwargs: Any) -> Any:
    return self._model.eval_fn(*args, step=self._step, **kwargs)


@functools.cache
def step_trainer_class(trainer: ModuleType) -> type:
  """Returns the `StepTrainer` of one runtime.

  It calls `model.loss_fn(params, batch, rng, step=state.step)` and `model.eval_fn(params, batch,
  step=state.step)`. The step is the number of previous updates, the same in all microbatches and
  after a restart.

  Args:
    trainer: The runtime's `t5x.trainer`.
  """

  class StepTrainer(trainer.Trainer):  # type: ignore[name-defined]
    """T5X's trainer for a model whose loss depends on the step; same arguments as `Trainer`."""

    @functools.cached_property
    def _partitioned_train_step(self) -> Any:
      def train_step(train_state: Any, batch: Any) -> Any:
        return trainer.train_with_lr(
          train_state,
          batch,
          learning_rate=self._learning_rate_fn(train_state.step),
          dropout_rng=self._get_step_rng(train_state.step),
          model=_ModelAtStep(self._model, train_state.step),
          num_microbatches=self._num_microbatches,
          weight_metrics_computer=self._weight_metrics_computer,
          data_partition_spec=self._partitioner.data_partition_spec,
        )

      return self._partitioner.partition(
        train_step,
        in_axis_resources=(self._train_state_axes, self._partitioner.data_partition_spec),
        out_axis_resources=(self._train_state_axes, None),
        donate_argnums=(0,),
      )

    @functools.cached_property
    def _partitioned_eval_step(self) -> Any:
      def eval_step(train_state: Any, batch: Any) -> Any:
        return trainer.eval_step(_ModelAtStep(self._model, train_state.step), train_state, batch)

      return self._partitioner.partition(
        eval_step,
        in_axis_resources=(self._train_state_axes, self._partitioner.data_partition_spec),
        out_axis_resources=None,
      )

  # The name under which gin and stack traces find it.
  StepTrainer.__module__, StepTrainer.__qualname__ = __name__, "StepTrainer"
  return StepTrainer


def __getattr__(name: str) -> Any:
  if name == "StepTrainer":
    from t5x import trainer  # upstream or bundled

    return step_trainer_class(trainer)
  raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
