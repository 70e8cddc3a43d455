"""A trainer for upstream T5X that passes the training step to the model's loss.

`gin/runs/upstream.gin` uses the class `StepTrainer`. The bundled trainer always passes the step, so
`StepTrainer` changes nothing in the bundled runtime. However, `t5x eval` in the bundled runtime
must be able to read the config.gin of an upstream T5X run, which refers to `StepTrainer`.
"""

import functools
import types
from typing import Any

from t5x import trainer

from vmsst import errors


class StepTrainer(trainer.Trainer):
  """Calls `model.loss_fn` and `eval_fn` with `step`, the number of updates so far.

  The arguments are the same as for `Trainer`. Unlike upstream T5X's trainer, this class does not
  compute metrics for individual weights. It rejects microbatches, because upstream T5X sums the
  gradients of all microbatches. If the loss is a mean over examples, this sum is too large.
  """

  @functools.cached_property
  def _partitioned_train_step(self) -> Any:
    if (self._num_microbatches or 1) > 1:
      raise errors.InputError("NUM_MICROBATCHES needs the bundled runtime; set EMBEDDING_SLICES")

    def train_step(train_state: Any, batch: Any) -> Any:
      loss_fn = functools.partial(self._model.loss_fn, step=train_state.step)
      return trainer.train_with_lr(
        train_state,
        batch,
        learning_rate=self._learning_rate_fn(train_state.step),
        dropout_rng=self._get_step_rng(train_state.step),
        model=types.SimpleNamespace(loss_fn=loss_fn),
        num_microbatches=self._num_microbatches,
        data_partition_spec=self._partitioner.data_partition_spec,
      )

    return self._partition(train_step, (self._train_state_axes, None), donate_argnums=(0,))

  @functools.cached_property
  def _partitioned_eval_step(self) -> Any:
    def eval_step(train_state: Any, batch: Any) -> Any:
      eval_fn = functools.partial(self._model.eval_fn, step=train_state.step)
      return trainer.eval_step(types.SimpleNamespace(eval_fn=eval_fn), train_state, batch)

    return self._partition(eval_step, None)

  def _partition(self, step: Any, out_axes: Any, **options: Any) -> Any:
    axes = (self._train_state_axes, self._partitioner.data_partition_spec)
    return self._partitioner.partition(
      step, in_axis_resources=axes, out_axis_resources=out_axes, **options
    )
