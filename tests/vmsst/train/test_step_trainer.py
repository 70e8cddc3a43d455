"""The trainer for upstream T5X, on the bundled runtime."""

import jax
import numpy as np
import toy_runs

from vmsst.train import gin_utils, trainer


def test_it_changes_nothing_here(tmp_path, monkeypatch):
  gin_utils.install_t5x()
  from vmsst.train import step_trainer

  assert issubclass(step_trainer.StepTrainer, trainer.Trainer)
  options = {"total_steps": 7, "period": 3, "stats_period": 1}
  options["train_eval_dataset_cfg"] = toy_runs.config("validation", shuffle=False)
  _, expected = toy_runs.run(tmp_path / "plain", model=toy_runs.Growing(), **options)
  monkeypatch.setattr(trainer, "Trainer", step_trainer.StepTrainer)
  _, state = toy_runs.run(tmp_path / "own", model=toy_runs.Growing(), **options)
  jax.tree.map(np.testing.assert_array_equal, state.state_dict(), expected.state_dict())
  updates = toy_runs.metrics(tmp_path / "own" / "training_eval" / "toy", "updates")
  assert updates == {4: 4, 7: 7}
