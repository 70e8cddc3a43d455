"""Whole training runs of a toy model."""

import json
import os
import shutil
import signal
import types

import clu.metrics
import fsspec
import jax
import jax.numpy as jnp
import memory_store
import numpy as np
import optax
import pytest
import toy_runs

from vmsst.checkpoints import t5x
from vmsst.errors import InputError
from vmsst.train import checkpoints, data, infer, inference, partitioning, train_state, trainer
from vmsst.train import eval as eval_lib


def test_a_stopped_and_restarted_run_ends_bitwise_like_an_uninterrupted_one(tmp_path):
  cfg = toy_runs.saving(2, keep=2)
  _, whole = toy_runs.run(tmp_path / "whole", checkpoint_cfg=cfg)
  toy_runs.run(tmp_path / "parts", total_steps=3, checkpoint_cfg=cfg)
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

  def run(split="validation"):
    infer.infer(
      mode="score",
      model=toy_runs.ToyModel(),
      dataset_cfg=toy_runs.config(split, batch_size=4, shuffle=False),
      restore_checkpoint_cfg=toy_runs.restoring(tmp_path / "checkpoint_1"),
      partitioner=partitioning.PjitPartitioner(num_partitions=1),
      output_dir=str(tmp_path / "infer"),
      checkpoint_period=3,
    )

  real, computed = inference.get_infer_fn, []

  def failing(**arguments):
    infer_fn = real(**arguments)

    def infer_some(*args, rng, **options):
      if len(computed) == 2:
        computed.append("a failure")
        raise OSError("disk full")
      computed.append(int(rng[1]))
      return infer_fn(*args, rng=rng, **options)

    return infer_some

  monkeypatch.setattr(inference, "get_infer_fn", failing)
  rows = toy_runs.rows
  # Lines of another split, or of other examples, are not used.
  for split, shift in (("train", 0), ("validation", 1), ("validation", 0)):
    monkeypatch.setattr(toy_runs, "rows", lambda seed, shift=shift: rows(seed=seed + shift))
    computed.clear()
    with pytest.raises(OSError, match="disk full"):
      run(split)
  run()
  assert computed == [0, 1, "a failure", 2, 3, 4, 5]
  (output,) = (tmp_path / "infer").glob("toy-score.jsonl-00000-of-00001")
  lines = [json.loads(line) for line in output.read_text().splitlines()]
  table = toy_runs.read_checkpoint(tmp_path / "checkpoint_1")["target"]["table"]
  expected = [r[r != 0] for r in toy_runs.rows(seed=len("validation"))]
  assert [line["inputs"]["inputs"] for line in lines] == [row.tolist() for row in expected]
  scores = np.asarray([line["score"] for line in lines])
  np.testing.assert_allclose(scores, [table[row].mean(axis=0) for row in expected], rtol=1e-5)


class PerToken(toy_runs.ToyModel):
  """The mean loss of a token, or the sum over all tokens, as of upstream T5X's models."""

  def loss_fn(self, params, batch, dropout_rng):
    tokens_B = jnp.sum(batch["inputs"] != 0, axis=1)
    vector_BS = self.module.apply({"params": params}, batch["inputs"])
    total, count = jnp.sum(tokens_B * jnp.mean(vector_BS**2, axis=1)), jnp.sum(tokens_B)
    if self.summed:
      return total, {}
    return total / count, {"loss": clu.metrics.Average(total=total, count=count)}


@pytest.mark.parametrize("summed", [False, True])
def test_microbatches_have_the_gradients_of_the_batch(summed):
  model = PerToken()
  model.summed = summed
  variables = model.get_initial_variables(jax.random.PRNGKey(0), {"inputs": (8, 8)})
  state = train_state.TrainState.create(model.optimizer_def, variables)
  batch = {"inputs": toy_runs.rows(8)}
  grads, metrics, _ = trainer.accumulate_grads_microbatched(
    model, state, batch, jax.random.PRNGKey(1), num_microbatches=4
  )
  whole, expected = jax.value_and_grad(lambda p: model.loss_fn(p, batch, None)[0])(state.params)
  np.testing.assert_allclose(grads["table"], expected["table"], rtol=1e-5)
  if not summed:
    np.testing.assert_allclose(metrics["loss"].compute(), whole, rtol=1e-6)


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
  found = map(checkpoints.checkpoint_step, checkpoints.all_checkpoints(tmp_path))
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


# JAX 0.12 with Python 3.13, where the warning as an error would abort the process.
@pytest.mark.filterwarnings("ignore:builtin type event_stats has no __module__")
def test_a_trace_has_the_steps_asked_for_and_changes_nothing(tmp_path):
  _, expected = toy_runs.run(tmp_path / "plain", total_steps=6)
  _, found = toy_runs.run(tmp_path / "traced", total_steps=6, profile_steps=(3, 5))
  (path,) = (tmp_path / "traced" / "profile").rglob("*.xplane.pb")
  events = [
    event
    for plane in jax.profiler.ProfileData.from_file(str(path)).planes
    for line in plane.lines
    for event in line.events
    if event.name == "train"
  ]
  assert sorted(dict(event.stats)["step_num"] for event in events) == [3, 4, 5]
  toy_runs.assert_same(expected.state_dict(), found.state_dict())


def _contents(folder):
  return {
    path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()
  }


def test_a_failed_restart_changes_nothing(tmp_path):
  toy_runs.run(tmp_path / "run", total_steps=2)
  before = _contents(tmp_path)
  keeping = {"actions": {"INFER_EVAL": [trainer.KeepBestAction("x", ("toy", "mean"), "max")]}}
  sliced = toy_runs.ToyModel()
  sliced.embedding_slices = 3
  for folder, change, message in (
    ("run", {"total_steps": 1}, "TRAIN_STEPS=1 is less than the checkpoint's step, 2"),
    (
      "new/deep",
      {"trainer_cls": toy_runs.make_trainer(learning_rate_fn=optax.linear_schedule(0.1, 0.0, 5))},
      "the learning rate falls to 0e",
    ),
    (
      "new/deep",
      {"trainer_cls": toy_runs.make_trainer(num_microbatches=3)},
      "num_microbatches is 3; set it to a divisor of the batch size, 8",
    ),
    ("new/deep", {"model": sliced}, "embedding_slices is 3; set it to a divisor of the batch size"),
    ("new/deep", keeping, "EVAL_PERIOD=4 is not a multiple of CHECKPOINT_PERIOD=5"),
    ("new/deep", {**keeping, "period": 0}, "EVAL_PERIOD=4 is not a multiple of CHECKPOINT_PERIO"),
    ("run", {"infer_eval_dataset_cfg": toy_runs.config("nowhere")}, "'nowhere'"),
    ("run", {"train_dataset_cfg": toy_runs.config("nowhere")}, "no split 'nowhere'; set one of tr"),
    ("run", {"model": toy_runs.ToyModel(width=6)}, r"shape \(16, 6\) .*/checkpoint_2"),
  ):
    with pytest.raises(InputError, match=message):
      toy_runs.run(tmp_path / folder, **change)
    assert _contents(tmp_path) == before
  assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
  ("place", "raised", "message"),
  [
    ("relative/run", None, "must be an absolute path, got 'relative/run'"),
    ("nowhere://bucket/run", None, r"nowhere:// is not supported; give a local path, gs:// or s3:"),
    ("gs://bucket/run", ImportError("Install gcsfs"), r"pip install 'vmsst\[gcs\]'"),
    ("s3://bucket/run", None, "s3://bucket/run: checkpoints cannot be written to s3://"),
    ("gs://bucket/run", OSError("no\n\t route"), r"gs://bucket/run/run_id cannot be .*: no route"),
  ],
)
def test_a_model_dir_that_cannot_be_used_is_named(place, raised, message, monkeypatch, tmp_path):
  class Store(memory_store.MemoryStore):
    def pipe_file(self, *args, **options):
      raise raised

  def filesystem(scheme):
    if isinstance(raised, ImportError):
      raise raised
    return Store()

  if place.startswith(("gs:", "s3:")):
    monkeypatch.setattr(fsspec, "filesystem", filesystem)
    monkeypatch.setattr(fsspec, "get_filesystem_class", filesystem)
  monkeypatch.chdir(tmp_path)
  with pytest.raises(InputError, match=message):
    toy_runs.run(place)
  assert not list(tmp_path.iterdir())  # no folder named "gs:"


def test_a_failed_evaluation_or_inference_leaves_no_results(tmp_path):
  toy_runs.run(tmp_path / "run", total_steps=1)
  before = _contents(tmp_path)
  arguments = {
    "dataset_cfg": toy_runs.config("validation", batch_size=4, shuffle=False),
    "restore_checkpoint_cfg": toy_runs.restoring(tmp_path / "run" / "checkpoint_1"),
    "partitioner": partitioning.PjitPartitioner(num_partitions=1),
    "output_dir": str(tmp_path / "new" / "out"),
  }
  wider = toy_runs.ToyModel(width=5)
  with pytest.raises(InputError, match="use a checkpoint of the same model and size"):
    eval_lib.evaluate(model=wider, **arguments)
  for change, message in (
    ({"model": wider}, "use a checkpoint of the same model and size"),
    ({"shard_id": 1}, r"infer\.shard_id is 1; set it below num_shards=1"),
  ):
    good = {"mode": "score", "model": toy_runs.ToyModel(), "checkpoint_period": 3}
    with pytest.raises(InputError, match=message):
      infer.infer(**{**arguments, **good, **change})
  assert _contents(tmp_path) == before


def test_trimming_does_not_change_what_is_learned(tmp_path, monkeypatch):
  _, trimmed = toy_runs.run(tmp_path / "trimmed", total_steps=5)
  monkeypatch.setattr(data, "trim_padding", dict)
  _, padded = toy_runs.run(tmp_path / "padded", total_steps=5)
  np.testing.assert_allclose(trimmed.params["table"], padded.params["table"], rtol=1e-5)


def test_a_run_from_another_s_checkpoint_starts_its_data_over_and_resumes_exactly(tmp_path):
  toy_runs.run(tmp_path / "first", total_steps=5)

  def resume(name, steps):
    start = toy_runs.restoring(tmp_path / "first" / "checkpoint_5")
    cfg = toy_runs.saving(3, save_dataset=False, restore=start)
    return toy_runs.run(tmp_path / name, total_steps=steps, checkpoint_cfg=cfg)[1]

  whole = resume("whole", 12)
  resume("parts", 8)
  toy_runs.assert_same(whole.state_dict(), resume("parts", 12).state_dict())
