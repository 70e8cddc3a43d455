"""Whole training runs of a toy model, and the folder of a run."""

import os
import signal
import subprocess
import sys

import commands
import killed_commands
import memory_store
import numpy as np
import pytest
import toy_runs

from vmsst import storage
from vmsst.errors import InputError
from vmsst.formats import t5x
from vmsst.train import input_pipeline, model_dir, trainer


def test_a_stopped_and_restarted_run_ends_bitwise_like_an_uninterrupted_one(tmp_path):
  cfg = toy_runs.saving(2, keep=2)
  _, uninterrupted = toy_runs.run(tmp_path / "whole", checkpoint_cfg=cfg)
  toy_runs.run(tmp_path / "parts", total_steps=3, checkpoint_cfg=cfg)
  step, resumed = toy_runs.run(tmp_path / "parts", checkpoint_cfg=cfg)
  assert step == 12
  toy_runs.assert_same(uninterrupted.state_dict(), resumed.state_dict())
  steps = [t5x.step_of(p) for p in t5x.all_checkpoints(tmp_path / "parts")]
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
  _, uninterrupted = toy_runs.run(tmp_path / "whole", period=100)
  toy_runs.assert_same(uninterrupted.state_dict(), resumed.state_dict())


@pytest.mark.parametrize("interrupted", [5, 8])
def test_an_interrupted_evaluation_is_repeated(tmp_path, interrupted):
  toy_runs.run(tmp_path / "first", total_steps=5)
  steps = []

  class Evaluator:
    def evaluate(self, train_state, train_state_axes):
      steps.append(int(train_state.step))
      if steps == [*range(5, interrupted, 3), interrupted]:
        raise KeyboardInterrupt
      return {"toy": {"score": 1.0}}

  restore = toy_runs.restoring(tmp_path / "first" / "checkpoint_5")
  options = {
    "checkpoint_cfg": toy_runs.saving(4, restore=restore),
    "evaluator": Evaluator(),
    "run_eval_before_training": True,
  }
  with pytest.raises(KeyboardInterrupt):
    toy_runs.run(tmp_path / "run", **options)
  toy_runs.run(tmp_path / "run", **options)
  expected = [5, 8, 12]
  expected.insert(expected.index(interrupted), interrupted)
  assert steps == expected


def test_a_failed_restart_changes_nothing(tmp_path):
  toy_runs.run(tmp_path / "run", total_steps=2)
  before = killed_commands.contents(tmp_path)
  keeping = {"actions": {"INFER_EVAL": [trainer.KeepBestAction("x", ("toy", "mean"), "max")]}}
  sliced = toy_runs.ToyModel()
  sliced.embedding_slices = 3
  for folder, change, message in (
    ("run", {"total_steps": 1}, "TRAIN_STEPS=1 is less than the checkpoint's step, 2"),
    (
      "new/deep",
      {"trainer_cls": toy_runs.make_trainer(num_microbatches=3)},
      "num_microbatches is 3; set it to a divisor of the batch size, 8",
    ),
    ("new/deep", {"model": sliced}, "embedding_slices is 3; set it to a divisor of the batch size"),
    ("new/deep", {"actions": {"TRIAN": []}}, "actions is 'TRIAN'; known: TRAIN, TRAIN_EVAL, INFER"),
    ("new/deep", keeping, "EVAL_PERIOD=4 is not a multiple of CHECKPOINT_PERIOD=5"),
    ("new/deep", {**keeping, "period": 0}, "EVAL_PERIOD=4 is not a multiple of CHECKPOINT_PERIO"),
    ("run", {"infer_eval_dataset_cfg": toy_runs.config("nowhere")}, "'nowhere'"),
    ("run", {"train_dataset_cfg": toy_runs.config("nowhere")}, "no split 'nowhere'; set one of tr"),
    ("run", {"model": toy_runs.ToyModel(width=6)}, r"shape \(16, 6\) .*/checkpoint_2"),
  ):
    with pytest.raises(InputError, match=message):
      toy_runs.run(tmp_path / folder, **change)
    assert killed_commands.contents(tmp_path) == before
  assert {*tmp_path.glob("new/**/*")} <= {tmp_path / "new" / "deep"}


def test_trimming_does_not_change_what_is_learned(tmp_path, monkeypatch):
  _, trimmed = toy_runs.run(tmp_path / "trimmed", total_steps=5)
  monkeypatch.setattr(input_pipeline, "trim_padding", dict)
  _, padded = toy_runs.run(tmp_path / "padded", total_steps=5)
  np.testing.assert_allclose(trimmed.params["table"], padded.params["table"], rtol=1e-5)


def test_a_run_from_another_s_checkpoint_starts_its_data_over_and_resumes_exactly(tmp_path):
  toy_runs.run(tmp_path / "first", total_steps=5)

  def resume(name, steps):
    start = toy_runs.restoring(tmp_path / "first" / "checkpoint_5")
    cfg = toy_runs.saving(3, save_dataset=False, restore=start)
    return toy_runs.run(tmp_path / name, total_steps=steps, checkpoint_cfg=cfg)[1]

  uninterrupted = resume("whole", 12)
  resume("parts", 8)
  toy_runs.assert_same(uninterrupted.state_dict(), resume("parts", 12).state_dict())


# --------------------------------------------------------------------------------------------
# The folder of a run

HOLDER = """
import sys, time
from vmsst.train import model_dir
with model_dir.open_folder("MODEL_DIR", sys.argv[1], claim=True):
  print("holds", flush=True)
  time.sleep(600)
"""


def test_two_runs_cannot_share_a_local_folder(tmp_path):
  folder = str(tmp_path / "locked")
  options = {"env": commands.environment(), "stdout": subprocess.PIPE, "text": True}
  with subprocess.Popen([sys.executable, "-c", HOLDER, folder], **options) as holder:
    assert holder.stdout.readline() == "holds\n"
    opened = model_dir.open_folder("MODEL_DIR", folder, claim=True)
    with pytest.raises(InputError, match=f"{folder} is being written by another command"), opened:
      pass
    holder.kill()
  with model_dir.open_folder("MODEL_DIR", folder, claim=True) as check:  # the first was killed
    check()
  assert storage.names(folder) == set()


def test_a_run_that_starts_later_takes_over_a_folder_in_a_store(monkeypatch):
  memory_store.installed(monkeypatch)
  with model_dir.open_folder("MODEL_DIR", "gs://bucket/run", claim=True) as check_first:
    check_first()
    with model_dir.open_folder("MODEL_DIR", "gs://bucket/run", claim=True) as check_second:
      check_second()
      with pytest.raises(InputError, match="started later now uses gs://bucket/run"):
        check_first()
    storage.remove("gs://bucket/run/run_id")
    with pytest.raises(InputError, match="a run that started later"):
      check_second()


@pytest.mark.parametrize(
  ("folder", "message"),
  [
    ("relative/run", "must be an absolute path, got 'relative/run'"),
    ("s3://bucket/run", "s3://bucket/run: checkpoints cannot be written to s3://"),
  ],
)
def test_a_folder_that_cannot_be_used_is_named(folder, message):
  opened = model_dir.open_folder("MODEL_DIR", folder, claim=True)
  with pytest.raises(InputError, match=message), opened:
    pass
