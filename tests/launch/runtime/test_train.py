"""Whole training runs of a toy model."""

import dataclasses
import fcntl
import json
import os
import pathlib
import re
import signal
import threading

import fsspec
import jax
import memory_store
import numpy as np
import pytest
import toy_runs

from vmsst.errors import InputError
from vmsst.files import storage
from vmsst.launch.runtime import (
  checkpoints,
  data,
  infer,
  model_dir,
  partitioning,
  trainer,
  utils,
)
from vmsst.launch.runtime import eval as eval_lib


@pytest.mark.parametrize(
  ("stop", "save_dataset"),
  [(3, True), *(pytest.param(*case, marks=pytest.mark.slow) for case in ((8, True), (5, False)))],
)
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
  toy_runs.assert_same(whole.state_dict(), parts.state_dict())
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
  toy_runs.assert_same(whole.state_dict(), resumed.state_dict())


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


@pytest.mark.parametrize(
  ("name", "values"),
  [
    ("total_steps", [2.5, True, -1, None, "x", float("nan")]),
    ("eval_steps", [2.5, -1, None]),
    ("eval_period", [2.5, True, -1, None]),
    ("relative_steps", [2.5, 0]),
    ("stats_period", [2.5, 0]),
    ("random_seed", [2.5, True, 2**63]),
    ("use_hardware_rng", [1, "False"]),
    ("checkpoint_cfg", [None]),
    ("train_dataset_cfg", [None, "sample"]),
    ("infer_eval_dataset_cfg", [3]),
    ("partitioner", [None]),
    ("trainer_cls", [None]),
    ("model", [None]),
    ("actions", [3, {"TRAIN": 3}]),
  ],
)
def test_arguments_that_cannot_be_used_are_named_before_anything_is_written(tmp_path, name, values):
  for value in values:
    with pytest.raises(InputError, match=rf"train\.{name} is {re.escape(repr(value))}; "):
      toy_runs.run(tmp_path / "new" / "run", **{name: value})
  assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
  ("make", "values"),
  [
    (lambda x: toy_runs.config(batch_size=x), [2.5, True, 0, -8, None, "x"]),
    (lambda x: toy_runs.config(shuffle=x), ["False", None]),
    (lambda x: toy_runs.config(split=x), [3, None, ""]),
    (lambda x: dataclasses.replace(toy_runs.config(), seed=x), [2.5, True, 2**63]),
    (
      lambda x: dataclasses.replace(toy_runs.config(), task_feature_lengths={"inputs": x}),
      [2.5, 0, "x"],
    ),
    (lambda x: checkpoints.SaveCheckpointConfig(period=x), [2.5, -1, True]),
    (lambda x: checkpoints.SaveCheckpointConfig(keep=x), [2.5, 0]),
    (lambda x: checkpoints.SaveCheckpointConfig(checkpoint_steps=x), [3, "3"]),
    (lambda x: checkpoints.SaveCheckpointConfig(checkpoint_steps=[x]), [1.5, -1]),
    (lambda x: checkpoints.RestoreCheckpointConfig(path=x), [3, ["a", 3]]),
    (
      lambda x: checkpoints.RestoreCheckpointConfig(path="a", assignment_map=x),
      [3, [("a",)], [("(", None)], [("a", 3)]],
    ),
    (lambda x: checkpoints.CheckpointConfig(save=x), [3]),
    (lambda x: toy_runs.make_trainer(num_microbatches=x)(**_TRAINER), [2.5, -1, "x"]),
    (lambda x: toy_runs.make_trainer(learning_rate_fn=x)(**_TRAINER), [0.1, None]),
  ],
)
def test_configs_that_cannot_be_used_are_refused(make, values):
  for value in values:
    with pytest.raises(InputError, match=r"\.\w+\S* is .*; (set it to|it must be) "):
      make(value)


_TRAINER = dict.fromkeys(
  ("model", "train_state", "partitioner", "summary_dir", "train_state_axes", "rng"), None
) | {"eval_names": []}


def _fails_when(monkeypatch, where):
  def fail(*arguments, **others):
    raise InputError("a mistake")

  monkeypatch.setattr(*where, fail)


_LATE = {
  "data": (data.TrainIterator, "start"),
  "checkpoint": (checkpoints, "newest_intact"),
  "trainer": (trainer.Trainer, "check_batch_size"),
  "model info": (utils, "write_model_info"),
  "first evaluation": (trainer.Trainer, "eval"),
  "first checkpoint": (checkpoints.CheckpointManager, "save"),
}


@pytest.mark.parametrize("where", _LATE)
def test_a_run_that_fails_before_any_result_leaves_nothing(tmp_path, monkeypatch, where):
  _fails_when(monkeypatch, _LATE[where])
  (tmp_path / "notes").mkdir()
  for folder in ("new/deep/run", "notes"):
    evaluated = (
      toy_runs.config("validation", shuffle=False) if where == "first evaluation" else None
    )
    with pytest.raises(InputError, match="a mistake"):
      toy_runs.run(
        tmp_path / folder, train_eval_dataset_cfg=evaluated, run_eval_before_training=True
      )
  assert [path.name for path in tmp_path.rglob("*")] == ["notes"]


def test_a_batch_that_microbatches_do_not_divide_is_refused_before_anything_is_written(tmp_path):
  with pytest.raises(InputError, match="8 is not divisible by num_microbatches=3"):
    toy_runs.run(tmp_path / "run", trainer_cls=toy_runs.make_trainer(num_microbatches=3))
  assert not list(tmp_path.iterdir())


def _contents(folder):
  return {
    path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()
  }


def test_a_failed_restart_changes_nothing(tmp_path):
  toy_runs.run(tmp_path / "run", total_steps=2)
  before = _contents(tmp_path)
  for change in (
    {"total_steps": 1},
    {"trainer_cls": toy_runs.make_trainer(num_microbatches=3)},
    {"infer_eval_dataset_cfg": toy_runs.config("nowhere")},
  ):
    with pytest.raises(InputError):
      toy_runs.run(tmp_path / "run", **change)
    assert _contents(tmp_path) == before


def test_a_failed_run_keeps_other_files(tmp_path, monkeypatch):
  (tmp_path / "run").mkdir()
  (tmp_path / "run" / "notes.txt").write_text("mine")
  _fails_when(monkeypatch, _LATE["first checkpoint"])
  with pytest.raises(InputError, match="a mistake"):
    toy_runs.run(tmp_path / "run")
  assert list(_contents(tmp_path)) == [pathlib.Path("run/notes.txt")]


def test_a_run_that_fails_after_training_keeps_its_results(tmp_path):
  with pytest.raises(InputError, match="train loss is nan"):
    toy_runs.run(
      tmp_path / "run",
      model=toy_runs.ToyModel(poison=5),
      checkpoint_cfg=checkpoints.CheckpointConfig(),
      total_steps=200,
      stats_period=1,
      actions={"TRAIN": [trainer.TerminateOnNanAction(task="train")]},
    )
  assert (tmp_path / "run" / "train" / "metrics.jsonl").is_file()


def test_a_lock_that_a_failed_run_removed_is_taken_anew(tmp_path, monkeypatch):
  lock, flock = fcntl.flock, []

  def removed_meanwhile(file, operation):
    if not flock:  # the run that held it fails now
      (tmp_path / ".lock").unlink()
    flock.append(file)
    lock(file, operation)

  monkeypatch.setattr(fcntl, "flock", removed_meanwhile)
  with model_dir.opened("MODEL_DIR", str(tmp_path), lock=True):
    assert len(flock) == 2
    monkeypatch.undo()
    with (
      pytest.raises(InputError, match=rf"in use by another run \(process {os.getpid()} on"),
      model_dir.opened("MODEL_DIR", str(tmp_path), lock=True),
    ):
      pass
    assert (tmp_path / ".lock").is_file()


@pytest.mark.parametrize(
  ("place", "raised", "message"),
  [
    ("nowhere://bucket/run", None, r"nowhere:// is not supported; give a local path, gs:// or s3:"),
    (
      "gs://bucket/run",
      ImportError("Install gcsfs"),
      r"no package for gs:// is installed; pip install 'vmsst\[gcs\]'",
    ),
    ("s3://bucket/run", ImportError("s3fs"), r"for s3:// is .*; pip install 'vmsst\[s3\]'"),
    (
      "gs://bucket/run",
      OSError("no\n\t route"),
      r"gs://bucket/run cannot be .*: no route\. Che",
    ),
    ("gs://bucket/run", None, "gs://bucket/run cannot be reached: .*: no answer in 0.1 s"),
  ],
)
def test_a_store_that_cannot_be_used_is_named(place, raised, message, monkeypatch, tmp_path):
  released = threading.Event()

  class Store(memory_store.MemoryStore):
    def exists(self, path):
      if raised is not None:
        raise raised
      released.wait(60)

  def filesystem(scheme):
    if isinstance(raised, ImportError):
      raise raised
    return Store()

  if place.startswith(("gs:", "s3:")):
    monkeypatch.setattr(fsspec, "filesystem", filesystem)
    monkeypatch.setattr(fsspec, "get_filesystem_class", filesystem)
    monkeypatch.setattr(storage, "_reached", set())
    monkeypatch.setattr(storage, "_ANSWER_SECONDS", 0.1 if raised is None else 20)
  monkeypatch.chdir(tmp_path)
  with pytest.raises(InputError, match=message):
    toy_runs.run(place)
  released.set()
  assert not list(tmp_path.iterdir())  # no folder named "gs:"


def test_a_failed_evaluation_or_inference_leaves_nothing(tmp_path):
  toy_runs.run(tmp_path / "run", total_steps=1)
  before = _contents(tmp_path)
  arguments = {
    "dataset_cfg": toy_runs.config("validation", batch_size=4, shuffle=False),
    "restore_checkpoint_cfg": checkpoints.RestoreCheckpointConfig(
      path=str(tmp_path / "run" / "checkpoint_1"), mode="specific"
    ),
    "partitioner": partitioning.PjitPartitioner(num_partitions=1),
    "output_dir": str(tmp_path / "new" / "out"),
  }
  wider = toy_runs.ToyModel(width=5)
  with pytest.raises(InputError, match="use a checkpoint of the same model and size"):
    eval_lib.evaluate(model=wider, **arguments)
  for change, message in (
    ({"model": wider}, "use a checkpoint of the same model and size"),
    ({"mode": "predict", "output_vocab_feature_name": "inputs"}, "cannot predict"),
    (
      {"mode": "predict"},
      r"infer\.output_vocab_feature_name is 'targets'; set it to a fea.*: inputs",
    ),
    ({"checkpoint_period": 2.5}, r"infer\.checkpoint_period is 2\.5; "),
    ({"num_shards": 0}, r"infer\.num_shards is 0; "),
    ({"shard_id": 1}, r"infer\.shard_id is 1; set it to a number below num_shards=1"),
    ({"dataset_cfg": toy_runs.config("nowhere")}, "no split 'nowhere'; set one of train, valid"),
  ):
    model = toy_runs.ToyModel()
    model.predict_batch = _cannot_predict
    good = {"mode": "score", "model": model, "checkpoint_period": 3}
    with pytest.raises(InputError, match=message):
      infer.infer(**{**arguments, **good, **change})
  assert _contents(tmp_path) == before
  assert not (tmp_path / "new").exists()


def _cannot_predict(params, batch):
  raise NotImplementedError("cannot predict")


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
  toy_runs.assert_same(whole.state_dict(), resume("parts", 12).state_dict())
