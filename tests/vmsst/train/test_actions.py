"""Actions: early stopping, and the best checkpoint of a run."""

import shutil
import types

import pytest
import toy_runs

from vmsst.formats import t5x
from vmsst.train import trainer


def test_early_stopping_waits_for_its_patience():
  action = trainer.EarlyStoppingAction(metric=("eval", "loss"), mode="min", patience=2, atol=0.1)
  values = [float("nan"), 3.0, 2.0, 1.95, 1.5, 1.45, 1.44]
  stops = [action.run(None, {"eval": {"loss": value}}) for value in values]
  assert stops == [False] * 6 + [True]
  for mode, values in (("max", [1.0, 2.0, 2.3, 2.1]), ("min", [10.0, 5.0, 4.2, 4.6])):
    action = trainer.EarlyStoppingAction(("eval", "loss"), mode, patience=2, rtol=0.2)
    stops = [action.run(None, {"eval": {"loss": value}}) for value in values]
    assert stops == [False] * 3 + [True]


@pytest.mark.parametrize(("keep", "steps"), [(1, [2, 8]), (2, [2, 6, 8]), (None, [0, 2, 4, 6, 8])])
def test_the_best_checkpoint_of_a_run_and_the_newest_stay(tmp_path, keep, steps):
  means = {}

  class Seeing(trainer.BaseAction):
    def run(self, train_state, metrics_by_task):
      means[int(train_state.step)] = metrics_by_task["toy"]["mean"]

  best = trainer.KeepBestAction(str(tmp_path), ("toy", "mean"), "min")
  toy_runs.run(
    tmp_path,
    total_steps=8,
    eval_period=2,
    checkpoint_cfg=toy_runs.saving(2, keep=keep),
    infer_eval_dataset_cfg=toy_runs.config("validation", batch_size=24, shuffle=False),
    actions={"INFER_EVAL": [best, Seeing()]},
  )
  assert min(means, key=means.get) == 2  # training raises the mean
  assert t5x.find_checkpoint(tmp_path).name == "checkpoint_2"
  found = map(t5x.step_of, t5x.all_checkpoints(tmp_path))
  assert [*found] == steps


def test_the_best_checkpoint_of_a_metric_is_named_and_found(tmp_path, caplog):
  toy_runs.run(tmp_path / "toy", total_steps=1)
  run = tmp_path / "run"

  def evaluated(step, metric, value, complete=True):
    if complete:
      shutil.copytree(tmp_path / "toy" / "checkpoint_1", run / f"checkpoint_{step}")
    action = trainer.KeepBestAction(str(run), ("eval", metric), "max")
    action.run(types.SimpleNamespace(step=step), {"eval": {metric: value}})
    return (t5x.read_best(run) or {}).get("checkpoint"), t5x.find_checkpoint(run).name

  assert evaluated(1, "accuracy", float("nan")) == (None, "checkpoint_1")
  assert evaluated(2, "accuracy", 0.7) == ("checkpoint_2", "checkpoint_2")
  assert evaluated(3, "accuracy", 0.6) == ("checkpoint_2", "checkpoint_2")
  assert evaluated(4, "loss", 0.1) == ("checkpoint_4", "checkpoint_4")
  # The next one is still being written when the run is killed; its evaluation is repeated.
  assert evaluated(6, "loss", 0.3, complete=False) == ("checkpoint_6", "checkpoint_4")
  assert evaluated(6, "loss", 0.2) == ("checkpoint_6", "checkpoint_6")
  assert t5x.read_best(run)["value"] == 0.2
  assert evaluated(7, "loss", 0.5, complete=False) == ("checkpoint_7", "checkpoint_6")
  assert evaluated(8, "loss", 0.1) == ("checkpoint_8", "checkpoint_8")
  assert evaluated(9, "loss", 0.0) == ("checkpoint_8", "checkpoint_8")
  shutil.rmtree(run / "checkpoint_8")
  assert t5x.find_checkpoint(run).name == "checkpoint_9"
  assert "checkpoint_8 is missing, the best checkpoint of the run" in caplog.text
