"""The trainer: steps, their metrics, microbatches and the end of a schedule."""

import shutil
import types

import clu.metrics
import commands
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toy_runs

from vmsst import errors
from vmsst.formats import t5x
from vmsst.train import checkpoints, gin_utils, partitioning, train_state, trainer

STEPS = 7


@pytest.mark.parametrize("microbatches", [None, 4])
def test_a_loss_gets_the_number_of_updates_before_it(tmp_path, microbatches):
  model = toy_runs.Growing()
  make = toy_runs.make_trainer(num_microbatches=microbatches)
  toy_runs.run(tmp_path, model=model, trainer_cls=make, total_steps=STEPS, period=3, stats_period=1)
  assert model.traces == 1 or microbatches
  updates = toy_runs.metrics(tmp_path / "train", "updates")
  assert updates == {step: step - 1 for step in range(1, STEPS + 1)}


def test_metrics_are_means_over_the_steps_since_the_last_ones(tmp_path, capsys):
  options = {"total_steps": STEPS, "period": 100}
  toy_runs.run(tmp_path / "each", stats_period=1, **options)
  single = toy_runs.metrics(tmp_path / "each" / "train")
  assert f"loss {single[STEPS]:.4f}" in capsys.readouterr().err.splitlines()[-1]
  toy_runs.run(tmp_path / "sums", stats_period=3, **options)
  means = {step: np.mean([single[step - i] for i in range(3)]) for step in (3, 6)}
  found = toy_runs.metrics(tmp_path / "sums" / "train")
  assert found == pytest.approx({**means, STEPS: single[STEPS]}, rel=1e-5)


class Counting(toy_runs.ToyModel):
  """Counts calls in a collection that has no axes."""

  def get_initial_variables(self, rng, input_shapes, input_types=None):
    variables = super().get_initial_variables(rng, input_shapes, input_types)
    return {**variables, "seen": {"calls": jnp.zeros((), jnp.int32)}}

  def loss_fn(self, params, batch, dropout_rng, flax_mutables):
    loss, metrics = super().loss_fn(params, batch, dropout_rng)
    return loss, (metrics, jax.tree.map(lambda count: count + 1, flax_mutables))

  def eval_fn(self, params, batch, flax_mutables):
    loss, metrics = super().loss_fn(params, batch, None)
    return loss, {**metrics, "calls": clu.metrics.LastValue(flax_mutables["seen"]["calls"])}


def test_variables_without_axes_are_replicated_saved_and_resumed(tmp_path):
  evaluation = toy_runs.config("validation", shuffle=False)
  for steps in (4, STEPS):
    options = {"model": Counting(), "train_eval_dataset_cfg": evaluation}
    toy_runs.run(tmp_path, total_steps=steps, period=4, **options)
  assert toy_runs.read_checkpoint(tmp_path / "checkpoint_4")["flax_mutables"]["seen"]["calls"] == 4
  assert toy_runs.metrics(tmp_path / "training_eval" / "toy", "calls")[STEPS] == STEPS
  info = (tmp_path / "model-info.txt").read_text()
  assert "flax_mutables/seen/calls  int32[]  axes=None  mesh=None" in info


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


def run_on_eight_devices(folder):
  """Prints the FLOPs of a device, in which XLA counts one microbatch."""
  mesh, model = partitioning.PjitPartitioner(num_partitions=1), toy_runs.ToyModel(width=512)
  for count in (1, 4):
    shapes = {"inputs": (128 * count, 8)}
    initializer = train_state.TrainStateInitializer(
      model.optimizer_def, model.get_initial_variables, shapes, mesh
    )
    state, axes = initializer.global_train_state_shape, initializer.train_state_axes
    made = toy_runs.make_trainer(num_microbatches=count)(
      model, state, mesh, [], None, axes, jax.random.PRNGKey(0)
    )
    batch = {"inputs": jax.ShapeDtypeStruct(shapes["inputs"], jnp.int32)}
    step = made._partitioned_train_step.lower(state, batch).compile()
    print(step.cost_analysis()["flops"])


def test_microbatches_are_computed_on_all_devices(tmp_path):
  whole, parts = commands.on_eight_devices(__file__, tmp_path).split()[-2:]
  assert float(parts) < 1.5 * float(whole)


def test_the_trainer_for_upstream_changes_nothing_here(tmp_path, monkeypatch):
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
  assert f"The best checkpoint {run}/checkpoint_8 is missing; reading checkpoint_9" in caplog.text


@pytest.mark.parametrize("watched", [True, False])
def test_the_best_or_the_newest_checkpoints_are_averaged_after_the_last_step(tmp_path, watched):
  best = trainer.KeepBestAction(str(tmp_path), ("toy", "mean"), "min", count=2)

  def run(total_steps, average=2):
    toy_runs.run(
      tmp_path,
      total_steps=total_steps,
      eval_period=2,
      checkpoint_cfg=toy_runs.saving(2, keep=2, dtype="bfloat16"),
      infer_eval_dataset_cfg=toy_runs.config("validation", batch_size=24, shuffle=False),
      actions={"INFER_EVAL": [best]} if watched else {},
      average=average,
    )
    path = t5x.find_checkpoint(tmp_path)
    return path.parent.name, toy_runs.read_checkpoint(path)["target"]["table"]

  name, table = run(6)
  steps = (2, 4) if watched else (4, 6)  # training raises the mean
  saved = [toy_runs.read_checkpoint(tmp_path / f"checkpoint_{step}") for step in steps]
  first, second = (np.float32(state["target"]["table"]) for state in saved)
  assert (name, table.dtype) == ("average", np.float32)
  np.testing.assert_array_equal(table, (first + second) / 2)
  assert run(8, average=1)[0] == tmp_path.name  # the average of six steps is gone
  if watched:
    assert checkpoints.best_names(str(tmp_path)) == ["checkpoint_2", "checkpoint_4"]
  option = "KeepBestAction.count" if watched else "KEEP_CHECKPOINTS"
  with pytest.raises(errors.InputError, match=f"average is 3; set it to at most {option}=2"):
    run(10, average=3)
