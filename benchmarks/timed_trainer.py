"""A trainer for `t5x train` that writes the seconds it trains, without those of evaluations.

`time_to_accuracy.py` passes it to the run by a gin file. It also stops the run.
"""

import json
import pathlib
import time
from collections.abc import Mapping
from typing import Any

from t5x import trainer


class TimedTrainer(trainer.Trainer):
  """Appends `{"step", "seconds"}` to a file whenever training pauses.

  Args:
    *args: Those of `Trainer`.
    log: The file.
    limit: Seconds of training after which the run stops, to be resumed later.
    **kwargs: Those of `Trainer`.
  """

  def __init__(self, *args: Any, log: str, limit: float, **kwargs: Any):
    super().__init__(*args, **kwargs)
    self._log, self._limit, self._spent = pathlib.Path(log), limit, 0.0
    self._write({"started": time.time()})

  def train(self, batches: Any, num_steps: int, start_step: int, **kwargs: Any) -> Any:
    """Trains as `Trainer` does, until all steps are finished."""
    began = time.perf_counter()
    done, metrics = super().train(batches, num_steps, start_step, **kwargs)
    seconds = time.perf_counter() - began
    self._spent += seconds
    self._write({"step": start_step + done, "seconds": seconds})
    self.stop_training |= self._spent > self._limit
    return done, metrics

  def _write(self, values: Mapping[str, float]) -> None:
    with self._log.open("a", encoding="utf-8") as stream:
      stream.write(json.dumps(values) + "\n")


class Reached(trainer.BaseAction):
  """Stops a run when its accuracy reaches a target.

  Args:
    target: Accuracy in percent.
  """

  def __init__(self, target: float):
    self._target = target

  def run(self, train_state: Any, metrics_by_task: Mapping[str, Mapping[str, Any]]) -> bool:
    """Returns whether to stop."""
    return any(float(x["accuracy/average"]) >= self._target for x in metrics_by_task.values())
