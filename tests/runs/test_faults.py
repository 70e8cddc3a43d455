"""Faults of disks, checkpoints, data and numbers; signals and kills. Nothing is lost."""

import errno
import os
import re
import shutil
import subprocess
import warnings

import jax
import numpy as np
import orbax.checkpoint as ocp
import pytest
import toy_runs

from vmsst.errors import InputError
from vmsst.formats import t5x
from vmsst.train import checkpoints, trainer
from vmsst.train import eval as eval_lib


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
  """Returns a finished run of 6 steps, with checkpoints 0, 2, 4 and 6."""
  folder = tmp_path_factory.mktemp("finished") / "run"
  toy_runs.run(folder, total_steps=6, period=2)
  return folder


def copy(folder, target):
  """Returns a copy of a run."""
  subprocess.run(["cp", "-r", str(folder), str(target)], check=True)
  return target


def flip(path, position=None):
  """Changes one bit of a file."""
  content = bytearray(path.read_bytes())
  content[len(content) // 2 if position is None else position] ^= 4
  path.write_bytes(content)


def assert_same_checkpoint(first, second):
  """Asserts bitwise equal arrays."""
  jax.tree.map(
    np.testing.assert_array_equal, toy_runs.read_checkpoint(first), toy_runs.read_checkpoint(second)
  )


# --------------------------------------------------------------------------------------------
# Checkpoints


def test_a_change_of_any_byte_of_a_checkpoint_is_detected(finished, tmp_path):
  checkpoint = copy(finished / "checkpoint_6", tmp_path / "checkpoint_6")
  path = t5x.all_checkpoints(tmp_path)[0]
  assert t5x.damage(path) is None
  files = [f for f in checkpoint.rglob("*") if f.is_file() and f.name != "commit_success.txt"]
  files.remove(checkpoint / "_CHECKPOINT_METADATA")
  assert {f.parent.name for f in files} >= {"state", "d", "dataset", "checkpoint_6"}
  for file in files:
    before = file.read_bytes()
    flip(file)
    found = t5x.damage(path)
    assert found.startswith(str(file.relative_to(checkpoint))) or file.name == t5x.CHECKSUMS
    file.unlink()
    assert t5x.damage(path) or file.name == t5x.CHECKSUMS
    file.write_bytes(before)
  assert t5x.damage(path) is None


def test_orbax_reads_a_checkpoint_with_checksums(finished):
  manager = ocp.CheckpointManager(
    finished, options=ocp.CheckpointManagerOptions(step_prefix="checkpoint", read_only=True)
  )
  with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # Orbax recommends passing shardings
    read = manager.restore(6, args=ocp.args.Composite(state=ocp.args.PyTreeRestore()))
  assert set(read) == {"state"}
  table = toy_runs.read_checkpoint(finished / "checkpoint_6")["target"]["table"]
  np.testing.assert_array_equal(read["state"]["target"]["table"], table)
  manager.close()


def test_the_checkpoint_before_a_damaged_one_is_used(finished, tmp_path, caplog):
  run = copy(finished, tmp_path / "run")
  arrays = max((run / "checkpoint_6" / "state" / "ocdbt.process_0" / "d").iterdir())
  flip(arrays)
  flip(run / "checkpoint_4" / "_CHECKPOINT_METADATA")  # not needed
  toy_runs.run(run, total_steps=6, period=2)
  (warning,) = [text for text in caplog.messages if "is damaged" in text]
  assert (
    f"{run}/checkpoint_6 is damaged: state/ocdbt.process_0/d/{arrays.name} has changed since"
    in warning
  )
  assert (run / "damaged_checkpoint_6" / "state").is_dir()
  assert_same_checkpoint(run / "checkpoint_6", finished / "checkpoint_6")
  flip(run / "checkpoint_6" / "state" / "_METADATA")
  for mode, path in (("specific", run / "damaged_checkpoint_6"), ("latest", run)):
    with pytest.raises(InputError, match=r"checkpoint_6 is damaged: state/\S+ has changed since"):
      checkpoints.find_checkpoint(checkpoints.RestoreCheckpointConfig(path=str(path), mode=mode))


def test_a_checkpoint_without_its_state_is_damaged_and_one_without_its_data_is_not(
  finished, tmp_path, caplog
):
  run = copy(finished, tmp_path / "run")
  shutil.rmtree(run / "checkpoint_6" / "state")  # as in a copy that was interrupted
  toy_runs.run(run, total_steps=6, period=2)
  assert f"{run}/checkpoint_6 is damaged: it has no folder `state`" in caplog.text
  assert_same_checkpoint(run / "checkpoint_6", finished / "checkpoint_6")
  shutil.rmtree(run / "checkpoint_6" / "dataset")  # reads and skips the examples of the first steps
  toy_runs.run(run, total_steps=8, period=2)
  assert checkpoints.newest_intact(str(run)).name == "checkpoint_8"
  assert not (run / "checkpoint_6" / "dataset").exists()


def test_a_run_with_only_damaged_checkpoints_does_not_start_over(finished, tmp_path):
  run = copy(finished, tmp_path / "run")
  for checkpoint in run.glob("checkpoint_*"):
    flip(checkpoint / "state" / "manifest.ocdbt")
  for _ in range(2):
    with pytest.raises(InputError, match=r"every checkpoint in \S+ is damaged: checkpoint_6: sta"):
      toy_runs.run(run, total_steps=6, period=2)


def test_a_run_that_cannot_write_a_checkpoint_reports_why_and_keeps_a_complete_one(
  finished, tmp_path, monkeypatch
):
  write = t5x.write_checksums

  def failing(checkpoint, folders):
    if "checkpoint_4" in checkpoint.name:
      raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    write(checkpoint, folders)

  with monkeypatch.context() as patch:
    patch.setattr(t5x, "write_checksums", failing)
    with pytest.raises(InputError, match=r"checkpoint in \S+ could not be written.*No space left"):
      toy_runs.run(tmp_path, total_steps=600, period=2)
  assert checkpoints.newest_intact(str(tmp_path)).name == "checkpoint_2"
  toy_runs.run(tmp_path, total_steps=6, period=2)
  assert not list(tmp_path.glob("*tmp*"))
  assert_same_checkpoint(tmp_path / "checkpoint_6", finished / "checkpoint_6")


# --------------------------------------------------------------------------------------------
# Numbers and data


@pytest.mark.parametrize("watched", [True, False])
def test_a_nan_loss_is_reported_with_its_step(tmp_path, caplog, watched):
  actions = {"TRAIN": [trainer.TerminateOnNanAction(task="train")]} if watched else None
  wanted = "train loss is nan at step" if watched else "parameters are not finite after step"
  model, cfg = toy_runs.ToyModel(poison=5), toy_runs.saving(10, keep=1)
  options = {"total_steps": 500, "checkpoint_cfg": cfg, "actions": actions, "eval_period": 0}
  with pytest.raises(InputError, match=wanted):
    toy_runs.run(tmp_path, model=model, **options)
  step = int(re.search(r"Step (\d+) is the first step with a loss", caplog.text)[1])
  checkpoint = checkpoints.newest_intact(str(tmp_path))
  assert t5x.step_of(checkpoint) == (step - 1) // 10 * 10
  state = toy_runs.read_checkpoint(checkpoint)
  assert all(np.isfinite(array).all() for array in jax.tree.leaves(state))


# --------------------------------------------------------------------------------------------
# Signals and kills


def test_an_interrupted_evaluation_is_repeated(tmp_path, monkeypatch):
  evaluated = []
  evaluate = eval_lib.InferenceEvaluator.evaluate

  def seen(self, train_state, axes):
    evaluated.append(int(train_state.step))
    if len(evaluated) == 2:  # the checkpoint of step 4 is almost complete
      raise KeyboardInterrupt
    return evaluate(self, train_state, axes)

  monkeypatch.setattr(eval_lib.InferenceEvaluator, "evaluate", seen)

  def go():
    evaluation = toy_runs.config("validation", batch_size=24, shuffle=False)
    options = {"eval_period": 2, "infer_eval_dataset_cfg": evaluation}
    toy_runs.run(tmp_path, total_steps=6, period=2, **options)

  with pytest.raises(KeyboardInterrupt):
    go()
  go()
  assert evaluated == [2, 4, 4, 6]
  go()  # the last one is always shown
  assert evaluated == [2, 4, 4, 6, 6]


@pytest.mark.slow
def test_training_is_killed_10_times(tmp_path):
  toy_runs.kill(tmp_path, 10, cwd=tmp_path)
  toy_runs.assert_same_runs(tmp_path / "whole", tmp_path / "killed", 100)
