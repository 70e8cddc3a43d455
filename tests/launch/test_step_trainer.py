"""The step passed to a loss: in training, with microbatches, after a restart, and by gin."""

import json

import clu.metrics
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toy_runs

from vmsst.launch import step_trainer
from vmsst.launch.runtime import trainer, utils

STEPS = 6


class Growing(toy_runs.ToyModel):
  """A model whose loss and metrics grow with the step."""

  def loss_fn(self, params, batch, dropout_rng, step=None):
    loss, metrics = super().loss_fn(params, batch, dropout_rng)
    weight = jnp.float32(1 if step is None else step)
    told = clu.metrics.Average.from_model_output(jnp.full(batch["inputs"].shape[:1], weight))
    return loss * (1 + weight), {**metrics, "told": told}

  def eval_fn(self, params, batch, step=None):
    return self.loss_fn(params, batch, None, step)


def run(folder, *, microbatches=None, **overrides):
  def construct(**arguments):
    return step_trainer.step_trainer_class(trainer)(
      **arguments,
      learning_rate_fn=utils.create_learning_rate_scheduler(
        factors="constant", base_learning_rate=0.1
      ),
      num_microbatches=microbatches,
    )

  options = {"model": Growing(), "trainer_cls": construct, "total_steps": STEPS, "stats_period": 1}
  _, state = toy_runs.run(folder, period=3, **{**options, **overrides})
  lines = (folder / "train" / "metrics.jsonl").read_text().splitlines()
  rows = [row for row in map(json.loads, lines) if "told" in row]
  return toy_runs.host(state.state_dict()), {row["step"]: row["told"] for row in rows}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
  return run(tmp_path_factory.mktemp("whole"))


def test_a_loss_gets_the_number_of_updates_before_it(whole):
  assert whole[1] == {step: step - 1 for step in range(1, STEPS + 1)}


def test_microbatches_get_the_same_step(whole, tmp_path):
  assert run(tmp_path, microbatches=4)[1] == whole[1]


def test_a_restarted_run_resumes_from_its_step_to_the_same_end(whole, tmp_path):
  run(tmp_path, total_steps=4)
  state, told = run(tmp_path)
  assert told == whole[1]
  jax.tree.map(np.testing.assert_array_equal, state, whole[0])


def test_the_training_evaluation_gets_the_number_of_updates_so_far(tmp_path):
  run(tmp_path, train_eval_dataset_cfg=toy_runs.config("validation", shuffle=False))
  (path,) = tmp_path.glob("training_eval/*/metrics.jsonl")
  rows = map(json.loads, path.read_text().splitlines())
  assert {row["step"]: row["told"] for row in rows if "told" in row} == {4: 4, STEPS: STEPS}


def test_the_step_changes_the_update_and_a_plain_trainer_tells_none(whole, tmp_path):
  state, told = run(tmp_path, trainer_cls=toy_runs.make_trainer())
  assert set(told.values()) == {1.0}
  assert not np.allclose(state["target"]["table"], whole[0]["target"]["table"])


def test_one_class_a_runtime_that_keeps_the_name_under_which_gin_finds_it():
  found = step_trainer.step_trainer_class(trainer)
  assert found is step_trainer.step_trainer_class(trainer)
  assert issubclass(found, trainer.Trainer)
  assert (found.__module__, found.__qualname__) == ("vmsst.launch.step_trainer", "StepTrainer")
