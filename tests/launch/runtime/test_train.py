"""Whole training runs of a toy model."""

import json
import os
import signal

import jax
import numpy as np
import pytest
import toy_runs

from vmsst.errors import InputError
from vmsst.launch.runtime import checkpoints, data, infer, partitioning, trainer
from vmsst.launch.runtime import eval as eval_lib


def assert_same(first, second):
  """Asserts bitwise equal train states."""
  jax.tree.map(np.testing.assert_array_equal, toy_runs.host(first), toy_runs.host(second))


@pytest.mark.parametrize(("stop", "save_dataset"), [(3, True), (8, True), (5, False)])
def test_a_stopped_and_restarted_run_ends_bitwise_like_an_uninterrupted_one(
  tmp_path, stop, save_dataset
):
  cfg = checkpoints.CheckpointConfig(
    save=checkpoints.SaveCheckpointConfig(period=2, keep=2, save_dataset=save_dataset)
  )
  _, whole = toy_runs.run(tmp_path / "whole", checkpoint_cfg=cfg)
  toy_runs.run(tmp_path / "parts", total_steps=stop, checkpoint_cfg=cfg)
  step, parts = toy_runs.run(tmp_path / "parts", checkpoint_cfg=cfg)
  assert step == 12
  assert_same(whole.state_dict(), parts.state_dict())
  steps = [checkpoints.checkpoint_step(p) for p in checkpoints.all_checkpoints(tmp_path / "parts")]
  assert steps == [10, 12]


def test_sigterm_writes_a_checkpoint_and_the_next_run_resumes(tmp_path):
  sent = []

  class Signaling(trainer.BaseAction):
    def run(self, train_state, metrics_by_task):
      if not sent:
        sent.append(int(train_state.step))
        os.kill(os.getpid(), signal.SIGTERM)
      return False

  before = signal.getsignal(signal.SIGTERM)
  step, _ = toy_runs.run(
    tmp_path / "run", period=100, stats_period=3, actions={"TRAIN": [Signaling()]}
  )
  assert step == sent[0] == 3
  assert signal.getsignal(signal.SIGTERM) is before
  assert (tmp_path / "run" / "checkpoint_3" / "state").is_dir()
  _, resumed = toy_runs.run(tmp_path / "run", period=100)
  _, whole = toy_runs.run(tmp_path / "whole", period=100)
  assert_same(whole.state_dict(), resumed.state_dict())


def test_metrics_are_the_mean_over_the_steps_since_they_were_last_written(tmp_path):
  toy_runs.run(tmp_path / "each", total_steps=6, stats_period=1, noise=0.0)
  toy_runs.run(tmp_path / "sums", total_steps=6, stats_period=3, noise=0.0)

  def losses(name):
    lines = (tmp_path / name / "train" / "metrics.jsonl").read_text().splitlines()
    return {row["step"]: row["loss"] for row in map(json.loads, lines) if "loss" in row}

  each, sums = losses("each"), losses("sums")
  assert sorted(sums) == [3, 5, 6]  # 5 is a checkpoint
  np.testing.assert_allclose(sums[3], np.mean([each[s] for s in (1, 2, 3)]), rtol=1e-6)
  np.testing.assert_allclose(sums[5], np.mean([each[s] for s in (4, 5)]), rtol=1e-6)


def test_seqio_and_training_evaluation_agree_with_the_saved_parameters(tmp_path, capsys):
  toy_runs.run(
    tmp_path,
    total_steps=4,
    train_eval_dataset_cfg=toy_runs.config("validation", shuffle=False),
    infer_eval_dataset_cfg=toy_runs.config("validation", batch_size=24, shuffle=False),
    run_eval_before_training=True,
  )
  model = toy_runs.ToyModel()
  restore = checkpoints.RestoreCheckpointConfig(path=str(tmp_path), mode="latest")
  results = eval_lib.evaluate(
    model=model,
    dataset_cfg=toy_runs.config("validation", batch_size=24, shuffle=False),
    restore_checkpoint_cfg=restore,
    partitioner=partitioning.PjitPartitioner(num_partitions=1),
    output_dir=str(tmp_path / "eval"),
  )
  state = toy_runs.read_checkpoint(tmp_path / "checkpoint_4")
  table = state["target"]["table"]
  validation = toy_runs.rows(seed=len("validation"))
  means = [np.mean([table[t] for t in row if t], axis=0) for row in validation]
  assert results[4]["toy"]["rows"] == 64
  np.testing.assert_allclose(results[4]["toy"]["mean"], np.mean(means), rtol=1e-5)
  lines = (tmp_path / "training_eval" / "toy" / "metrics.jsonl").read_text().splitlines()
  losses = {row["step"]: row["loss"] for row in map(json.loads, lines)}
  goal = [[sum(row != 0)] for row in validation[:16]]
  wanted = np.mean(np.square(np.asarray(means[:16]) - goal))
  np.testing.assert_allclose(losses[4], wanted, rtol=1e-5)
  assert sorted(losses) == [0, 4]
  printed = capsys.readouterr().out
  assert "step 0" in printed
  assert f"{results[4]['toy']['mean']:.4g}"[:4] in printed


def test_infer_writes_every_row_once_and_resumes_after_an_interruption(tmp_path, monkeypatch):
  toy_runs.run(tmp_path, total_steps=1)

  def run():
    infer.infer(
      mode="score",
      model=toy_runs.ToyModel(),
      dataset_cfg=toy_runs.config("validation", batch_size=4, shuffle=False),
      restore_checkpoint_cfg=checkpoints.RestoreCheckpointConfig(
        path=str(tmp_path / "checkpoint_1"), mode="specific"
      ),
      partitioner=partitioning.PjitPartitioner(num_partitions=1),
      output_dir=str(tmp_path / "infer"),
      checkpoint_period=3,
    )

  write, written = infer._write, []

  def failing_write(path, lines):
    if len(written) == 2:
      raise OSError("disk full")
    written.append(path.name)
    write(path, lines)

  monkeypatch.setattr(infer, "_write", failing_write)
  with pytest.raises(OSError, match="disk full"):
    run()
  monkeypatch.setattr(
    infer, "_write", lambda path, lines: (written.append(path.name), write(path, lines))
  )
  run()
  assert len(written) == len(set(written))
  (output,) = (tmp_path / "infer").glob("toy-score.jsonl-00000-of-00001")
  lines = [json.loads(line) for line in output.read_text().splitlines()]
  table = toy_runs.read_checkpoint(tmp_path / "checkpoint_1")["target"]["table"]
  expected = [r[r != 0] for r in toy_runs.rows(seed=len("validation"))]
  assert [line["inputs"]["inputs"] for line in lines] == [row.tolist() for row in expected]
  scores = np.asarray([line["score"] for line in lines])
  np.testing.assert_allclose(scores, [table[row].mean(axis=0) for row in expected], rtol=1e-5)


def test_nan_stops_the_run_and_leaves_the_last_checkpoint(tmp_path):
  with pytest.raises(InputError, match="train loss is nan by step"):
    toy_runs.run(
      tmp_path,
      model=toy_runs.ToyModel(poison=5),
      total_steps=200,
      period=1,
      stats_period=1,
      actions={"TRAIN": [trainer.TerminateOnNanAction(task="train")]},
    )
  state = toy_runs.read_checkpoint(checkpoints.all_checkpoints(tmp_path)[-1])
  assert all(np.isfinite(x).all() for x in jax.tree.leaves(state))


def test_microbatches_sum_the_gradients_of_their_parts(tmp_path):
  model = toy_runs.ToyModel(noise=0.0)
  variables = model.get_initial_variables(jax.random.PRNGKey(0), {"inputs": (8, 8)})
  state = model_state(model, variables)
  batch = {"inputs": toy_runs.rows(8)}
  grads, metrics, _ = trainer.accumulate_grads_microbatched(
    model, state, batch, jax.random.PRNGKey(1), num_microbatches=4
  )
  parts = [
    jax.grad(lambda p, part=part: model.loss_fn(p, {"inputs": part}, None)[0])(state.params)
    for part in batch["inputs"].reshape(4, 2, 8)
  ]
  wanted = sum(np.asarray(part["table"]) for part in parts)
  np.testing.assert_allclose(grads["table"], wanted, rtol=1e-5)
  whole, _ = model.loss_fn(state.params, batch, None)
  np.testing.assert_allclose(metrics["loss"].compute(), whole, rtol=1e-6)
  with pytest.raises(InputError, match="8 is not divisible by num_microbatches=3"):
    trainer.accumulate_grads_microbatched(model, state, batch, jax.random.PRNGKey(1), 3)


def model_state(model, variables):
  import flax

  from vmsst.launch.runtime import train_state

  return train_state.FlaxOptimTrainState.create(model.optimizer_def, flax.core.freeze(variables))


def test_early_stopping_waits_for_its_patience():
  action = trainer.EarlyStoppingAction(metric=("eval", "loss"), mode="min", patience=2, atol=0.1)
  values = [3.0, 2.0, 1.95, 1.5, 1.45, 1.44]
  stops = [action.run(None, {"eval": {"loss": value}}) for value in values]
  assert stops == [False, False, False, False, False, True]


@pytest.mark.parametrize(
  ("model_dir", "message"),
  [
    ("relative/run", "must be an absolute path, got 'relative/run'"),
    ("/proc/vmsst", "MODEL_DIR /proc/vmsst cannot be written to"),
  ],
)
def test_a_model_dir_that_cannot_be_used_is_named(model_dir, message):
  with pytest.raises(InputError, match=message):
    toy_runs.run(model_dir)


def test_fewer_steps_than_the_checkpoint_has_are_refused(tmp_path):
  toy_runs.run(tmp_path, total_steps=4)
  with pytest.raises(
    InputError, match="TRAIN_STEPS=3 is less than the checkpoint's step, 4; raise it"
  ):
    toy_runs.run(tmp_path, total_steps=3)


def test_trimming_does_not_change_what_is_learned(tmp_path, monkeypatch):
  _, trimmed = toy_runs.run(tmp_path / "trimmed", total_steps=5)
  monkeypatch.setattr(data, "can_trim", lambda: False)
  _, padded = toy_runs.run(tmp_path / "padded", total_steps=5)
  np.testing.assert_allclose(trimmed.params["table"], padded.params["table"], rtol=1e-5)


def test_a_run_from_another_s_checkpoint_starts_its_data_over_and_resumes_exactly(tmp_path):
  toy_runs.run(tmp_path / "first", total_steps=5)

  def resume(name, steps):
    cfg = checkpoints.CheckpointConfig(
      restore=checkpoints.RestoreCheckpointConfig(
        path=str(tmp_path / "first" / "checkpoint_5"), mode="specific"
      ),
      save=checkpoints.SaveCheckpointConfig(period=3, save_dataset=False),
    )
    return toy_runs.run(tmp_path / name, total_steps=steps, checkpoint_cfg=cfg)[1]

  whole = resume("whole", 12)
  resume("parts", 8)
  assert_same(whole.state_dict(), resume("parts", 12).state_dict())
