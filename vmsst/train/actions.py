"""Actions for a training run: early stopping, best checkpoints, and an error for NaN metrics."""

import abc
import dataclasses
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
from absl import logging

from vmsst import storage
from vmsst.errors import InputError
from vmsst.formats import t5x
from vmsst.jobs import outputs

Scalars = Mapping[str, float]


class BaseAction(abc.ABC):
  """Base class of actions. An action receives new metrics and may stop the training."""

  @abc.abstractmethod
  def run(self, train_state: Any, metrics_by_task: Mapping[str, Scalars]) -> bool:
    """Returns whether to stop the run. An exception ends the run without writing a checkpoint."""


def _metric_value(metrics_by_task: Mapping[str, Scalars], task: str, metric: str) -> float | None:
  """Returns a task's metric. If the metric is missing, logs a warning and returns None."""
  value = metrics_by_task.get(task, {}).get(metric)
  if value is None:
    logging.warning("%s has no metric %s.", task, metric)
  return None if value is None else float(value)


@dataclasses.dataclass(eq=False)
class EarlyStoppingAction(BaseAction):
  """Stops the run after `patience` evaluations without improvement.

  Attributes:
    metric: (task, metric) to watch.
    mode: "min" if lower values are better, "max" if higher values are better.
    patience: Number of consecutive evaluations without improvement after which the run stops.
    atol: Minimum absolute improvement.
    rtol: Minimum improvement, as a fraction of the best value. It is added to `atol`.
  """

  metric: tuple[str, str]
  mode: Literal["min", "max"]
  patience: Annotated[int, msgspec.Meta(ge=1)] = 3
  atol: Annotated[float, msgspec.Meta(ge=0)] = 0.0
  rtol: Annotated[float, msgspec.Meta(ge=0)] = 0.0

  def __post_init__(self) -> None:
    self._best: float | None = None
    self._waited = 0

  def run(self, train_state: Any, metrics_by_task: Mapping[str, Scalars]) -> bool:
    """Returns whether `patience` evaluations have passed without improvement."""
    value = _metric_value(metrics_by_task, *self.metric)
    if value is None or not np.isfinite(value):
      return False
    score = value if self.mode == "max" else -value
    if self._best is None or score - self._best > self.atol + self.rtol * abs(self._best):
      self._best, self._waited = score, 0
      return False
    self._waited += 1
    return self._waited >= self.patience


@dataclasses.dataclass(eq=False)
class KeepBestAction(BaseAction):
  """Writes the names of the best checkpoints to `best.json`.

  The run never deletes the checkpoints named in `best.json`, and `vmsst.load` opens the best of
  them. The run must save a checkpoint at every evaluation, and complete it before the next
  evaluation.

  Attributes:
    model_dir: The run's folder.
    metric: (task, metric) to watch.
    mode: "min" if lower values are better, "max" if higher values are better.
    count: Number of checkpoints to keep. Must not be less than the argument `average` of `train`.
  """

  model_dir: str
  metric: tuple[str, str]
  mode: Literal["min", "max"]
  count: Annotated[int, msgspec.Meta(ge=1)] = 1

  def run(self, train_state: Any, metrics_by_task: Mapping[str, Scalars]) -> bool:
    """Updates `best.json`; returns False."""
    value = _metric_value(metrics_by_task, *self.metric)
    if value is None or not np.isfinite(value):
      return False
    name = f"checkpoint_{int(train_state.step)}"
    metric, best = "/".join(self.metric), t5x.read_best(self.model_dir) or {}
    complete = {path.name for path in t5x.all_checkpoints(self.model_dir)}
    ranking = best.get("ranking", [best]) if best.get("metric") == metric else []
    # After a crash, `best.json` may list the new checkpoint already, or an incomplete checkpoint.
    ranking = [entry for entry in ranking if entry["checkpoint"] in complete - {name}]
    ranking.append({"checkpoint": name, "value": value})
    # The sort is stable even in reverse order, so the earlier checkpoint wins a tie.
    ranking.sort(key=lambda entry: entry["value"], reverse=self.mode == "max")
    ranking = ranking[: self.count]
    if any(entry["checkpoint"] == name for entry in ranking):
      best = {**ranking[0], "metric": metric, "ranking": ranking}
      outputs.write_json(storage.path(self.model_dir) / t5x.BEST_FILE, best)
    return False


@dataclasses.dataclass(eq=False)
class TerminateOnNanAction(BaseAction):
  """Ends the run with an error when a metric is NaN or infinite.

  Attributes:
    task: Name of the task, or "train" for the training metrics.
    metric: Name of the metric.
  """

  task: str
  metric: str = "loss"

  def run(self, train_state: Any, metrics_by_task: Mapping[str, Scalars]) -> bool:
    """Raises InputError if the metric is NaN or infinite; otherwise returns False."""
    value = _metric_value(metrics_by_task, self.task, self.metric)
    if value is not None and not np.isfinite(value):
      raise InputError(
        f"{self.task} {self.metric} is {value} at step {int(train_state.step)}; the last "
        "checkpoint is from an earlier step. Lower the learning rate or check the data"
      )
    return False
