"""The trainer: steps, metrics, progress, meshes and shares of a batch."""

import io
import json
import pathlib
import re
import sys
import time
import types
from typing import Any

import clu.metrics
import commands
import flax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toy_runs
from jax.experimental import mesh_utils

from vmsst.errors import InputError
from vmsst.train import aliases, partitioning, progress, trainer

STEPS, ROWS = 7, 8


class Growing(toy_runs.ToyModel):
  """A model whose loss and metrics grow with the step; counts how often its loss is traced."""

  traces = 0

  def loss_fn(self, params, batch, dropout_rng, step):
    self.traces += 1
    loss, metrics = super().loss_fn(params, batch, dropout_rng)
    weight = jnp.float32(step)
    told = clu.metrics.Average.from_model_output(jnp.full(batch["inputs"].shape[:1], weight))
    return loss * (1 + weight), {**metrics, "told": told}

  def eval_fn(self, params, batch, step):
    return self.loss_fn(params, batch, None, step)


def run_growing(folder, *, microbatches=None, **overrides):
  """Returns the last train state, and the step that the model got in each step."""
  made = toy_runs.make_trainer(num_microbatches=microbatches)
  options = {"model": Growing(), "trainer_cls": made, "total_steps": STEPS, "stats_period": 1}
  _, state = toy_runs.run(folder, period=3, **{**options, **overrides})
  return toy_runs.host(state.state_dict()), told(folder / "train")


def told(folder):
  """Returns the step that the model got, by the step of the metrics."""
  rows = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
  return {row["step"]: row["told"] for row in rows if "told" in row}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
  model = Growing()
  found = run_growing(tmp_path_factory.mktemp("whole"), model=model)
  assert model.traces == 1
  return found


def test_a_loss_gets_the_number_of_updates_before_it_in_each_microbatch(whole, tmp_path):
  assert whole[1] == {step: step - 1 for step in range(1, STEPS + 1)}
  assert run_growing(tmp_path, microbatches=4)[1] == whole[1]


def test_the_trainer_for_upstream_changes_nothing_here(whole, tmp_path, monkeypatch):
  aliases.install()
  from vmsst.train import step_trainer

  assert issubclass(step_trainer.StepTrainer, trainer.Trainer)
  monkeypatch.setattr(trainer, "Trainer", step_trainer.StepTrainer)
  evaluation = toy_runs.config("validation", shuffle=False)
  state, steps = run_growing(tmp_path, train_eval_dataset_cfg=evaluation)
  assert steps == whole[1]
  jax.tree.map(np.testing.assert_array_equal, state, whole[0])
  assert told(tmp_path / "training_eval" / "toy") == {4: 4, STEPS: STEPS}


@flax.struct.dataclass
class PerStep(clu.metrics.Metric):
  """A total per step. Microbatches count as steps until `replace_steps`."""

  total: Any = None
  steps: Any = 1

  def merge(self, other):
    return PerStep(self.total + other.total, self.steps + other.steps)

  def replace_steps(self, steps):
    return self.replace(steps=steps)

  def compute(self):
    return jnp.asarray(self.total / self.steps)


@flax.struct.dataclass
class PerSecond(clu.metrics.Metric):
  """A total per second; without a total, the seconds."""

  total: Any = None
  duration: Any = None

  def merge(self, other):
    assert self.duration is None
    return self if self.total is None else PerSecond(self.total + other.total)

  def replace_duration(self, duration):
    return self.replace(duration=duration)

  def compute(self):
    if self.duration is None:
      raise ValueError("no duration")
    return jnp.asarray(self.duration if self.total is None else self.total / self.duration)


@flax.struct.dataclass
class StepsPerSecond(PerStep, PerSecond):
  """The steps per second."""

  def merge(self, other):
    return self

  def compute(self):
    return jnp.asarray(self.steps / self.duration)


class Measured(toy_runs.ToyModel):
  """Its loss is a sum over a batch; it counts calls in a collection that has no axes."""

  def get_initial_variables(self, rng, input_shapes, input_types=None):
    variables = super().get_initial_variables(rng, input_shapes, input_types)
    return {**variables, "seen": {"calls": jnp.zeros((), jnp.int32)}}

  def _measured(self, params, batch):
    mean, _ = super().loss_fn(params, batch, None)
    rows = jnp.float32(batch["inputs"].shape[0])
    loss = mean * rows
    return loss, {
      "loss": PerStep(loss),
      "rows_per_step": PerStep(rows),
      "rows_per_second": PerSecond(rows),
      "seconds": PerSecond(),
      "steps_per_second": StepsPerSecond(),
    }

  def loss_fn(self, params, batch, dropout_rng, flax_mutables):
    loss, metrics = self._measured(params, batch)
    return loss, (metrics, jax.tree.map(lambda count: count + 1, flax_mutables))

  def eval_fn(self, params, batch, flax_mutables):
    loss, metrics = self._measured(params, batch)
    return loss, {**metrics, "calls": clu.metrics.LastValue(flax_mutables["seen"]["calls"])}


def run(folder, microbatches, **overrides):
  toy_runs.run(
    folder,
    **{
      "model": Measured(),
      "trainer_cls": toy_runs.make_trainer(num_microbatches=microbatches),
      "total_steps": STEPS,
      "stats_period": 3,
      "train_eval_dataset_cfg": toy_runs.config("validation", ROWS, shuffle=False),
      "eval_period": STEPS,
      "period": 100,
      **overrides,
    },
  )
  kinds = {"train": folder / "train", "eval": folder / "training_eval" / "toy"}
  return {
    kind: [
      row
      for row in map(json.loads, (path / "metrics.jsonl").read_text().splitlines())
      if "loss" in row
    ]
    for kind, path in kinds.items()
  }


@pytest.mark.parametrize("microbatches", [None, pytest.param(4, marks=pytest.mark.slow)])
def test_metrics_per_step_and_per_time_get_their_steps_and_seconds(tmp_path, capsys, microbatches):
  began = time.monotonic()
  written = run(tmp_path / "sums", microbatches)
  took = time.monotonic() - began
  assert [row["step"] for row in written["train"]] == [3, 6, STEPS]
  for kind, counts in (("train", (3, 3, 1)), ("eval", (2,))):
    for row, steps in zip(written[kind], counts, strict=True):
      assert row["rows_per_step"] == ROWS
      assert row["seconds"] > 0
      assert row["rows_per_second"] * row["seconds"] == pytest.approx(steps * ROWS, rel=1e-5)
      assert row["steps_per_second"] * row["seconds"] == pytest.approx(steps, rel=1e-5)
  assert sum(row["seconds"] for rows in written.values() for row in rows) < took
  shown = re.search(rf"step {STEPS}/{STEPS} \[.*, loss ([\d.]+)", capsys.readouterr().err)
  assert float(shown[1]) == pytest.approx(written["train"][-1]["loss"], abs=1e-4)
  single = run(tmp_path / "each", microbatches, stats_period=1)["train"]
  losses = np.reshape([row["loss"] for row in single[:6]], (2, 3)).mean(axis=1)
  assert [row["loss"] for row in written["train"][:2]] == pytest.approx(losses, rel=1e-5)


def test_variables_without_axes_are_replicated_saved_and_resumed(tmp_path):
  save = toy_runs.saving(4)
  run(tmp_path, None, checkpoint_cfg=save, total_steps=4)
  written = run(tmp_path, None, checkpoint_cfg=save)
  assert toy_runs.read_checkpoint(tmp_path / "checkpoint_4")["flax_mutables"]["seen"]["calls"] == 4
  assert written["eval"][-1]["calls"] == STEPS
  info = (tmp_path / "model-info.txt").read_text()
  assert "flax_mutables/seen/calls  int32[]  axes=None  mesh=None" in info


# --------------------------------------------------------------------------------------------
# Progress


class Terminal(io.StringIO):
  """A stream that is a terminal."""

  def isatty(self):
    return True


@pytest.mark.parametrize("stream", [io.StringIO, Terminal])
def test_the_line_shows_loss_and_rates_in_place_or_as_further_lines(monkeypatch, stream):
  monkeypatch.setattr(sys, "stderr", stream())
  bar = progress.Progress(100, 1000, 64)
  now = [bar.start_t]
  bar._time = lambda: now[0]
  average = clu.metrics.Average.from_model_output
  for step, loss in ((110, 1.0), (130, 2.5), (1000, 3.5)):
    now[0] += 20
    bar.show(step, {name: average(jnp.asarray([loss])) for name in ("loss", "tokens_per_example")})
  bar.end_line("evaluating")
  text = sys.stderr.getvalue()
  lines = re.split(r"[\r\n]+", text.strip())
  assert lines[-1] == "evaluating"
  assert text.count("\r") == (3 if stream is Terminal else 0)
  assert re.match(
    r"step 130/1000 \[00:40<.*, loss 2.5000, \S+ examples/s, \S+ tokens/s\]", lines[1]
  )
  assert "step 1000/1000" in lines[-2]


@pytest.mark.parametrize(
  ("best", "columns", "numbers"),
  [
    (None, ["step 0", "step 30"], ["1.00", "60.00"]),
    (20, ["step 0", "step 20 (best)", "step 30"], ["1.00", "91.25", "60.00"]),
    (30, ["step 0", "step 30 (best)"], ["1.00", "60.00"]),
    (-5, ["step -5 (best)", "step 30"], ["95.00", "60.00"]),  # evaluated by an earlier process
  ],
)
def test_tables_show_the_first_the_best_and_the_newest_evaluation(capsys, best, columns, numbers):
  log = progress.EvaluationLog()
  for step, value in ((0, 1.0), (10, 50.0), (20, 91.25), (30, 60.0)):
    log.add(step, {"retrieval": {"accuracy/de": value, "loss": 2.0, "note": "text"}})
  record = {"checkpoint": f"checkpoint_{best}", "metric": "retrieval/accuracy/de", "value": 95.0}
  log.print_tables(None if best is None else record)
  empty, header, line, accuracy, loss = capsys.readouterr().out.splitlines()
  assert re.split("  +", header) == ["retrieval", *columns]
  assert re.split("  +", accuracy) == ["accuracy/de", *numbers]
  assert loss.endswith("2.00")
  assert (empty, set(line)) == ("", {"-"})


class Sometimes(toy_runs.ToyModel):
  """Has no loss in its second step, such as LASER in a batch without translations."""

  def loss_fn(self, params, batch, dropout_rng, step):
    weight = jnp.float32(step != 1)
    loss, metrics = super().loss_fn(params, batch, dropout_rng)
    mean = metrics["loss"]
    metric = mean.replace(total=mean.total * weight, count=mean.count * weight)
    return loss * weight, {"loss": metric}

  def eval_fn(self, params, batch, step):
    return self.loss_fn(params, batch, None, step)


def test_a_loss_of_no_pairs_is_not_a_failure(tmp_path):
  toy_runs.run(tmp_path, model=Sometimes(), total_steps=4, stats_period=4)
  assert (tmp_path / "checkpoint_4").is_dir()


# --------------------------------------------------------------------------------------------
# Meshes, rules and data layouts


FLOPS = """
import sys
sys.path.insert(0, sys.argv[1])
import contextlib, jax, jax.numpy as jnp, toy_runs
from vmsst.train import partitioning, utils
partitioner, model = partitioning.PjitPartitioner(num_partitions=1), toy_runs.ToyModel(width=512)
for count in (1, 4):
  shapes = {"inputs": (128 * count, 8)}
  initializer = utils.TrainStateInitializer(
    model.optimizer_def, model.get_initial_variables, shapes, partitioner)
  state = initializer.global_train_state_shape
  with contextlib.closing(toy_runs.make_trainer(num_microbatches=count)(
    model=model, train_state=state, partitioner=partitioner, eval_names=[], summary_dir=None,
    train_state_axes=initializer.train_state_axes, rng=jax.random.PRNGKey(0),
  )) as trainer:
    batch = {"inputs": jax.ShapeDtypeStruct(shapes["inputs"], jnp.int32)}
    step = trainer._partitioned_train_step.lower(state, batch).compile()
  print(step.cost_analysis()["flops"])
"""


def test_microbatches_are_computed_on_all_devices(tmp_path):
  """A device's FLOPs, in which XLA counts one microbatch, are those of a batch of its size."""
  helpers = pathlib.Path(toy_runs.__file__).parent
  whole, parts = commands.script(FLOPS, helpers, cwd=tmp_path, devices=4).stdout.split()[-2:]
  assert float(parts) < 1.5 * float(whole)


def test_axes_that_no_torus_has_are_made_of_parts(monkeypatch):
  def create(shape, devices, allow_split_physical_axes=False):
    if not allow_split_physical_axes:
      raise NotImplementedError("Failed to find assignment for logical_axis_index 1 of size 1")
    return np.reshape(devices, shape)

  monkeypatch.setattr(mesh_utils, "create_device_mesh", create)
  assert partitioning.PjitPartitioner(num_partitions=1).mesh.axis_names == ("data", "model")


@pytest.mark.parametrize(
  "arguments",
  [{}, {"num_partitions": 1, "model_parallel_submesh": (1, 1, 1, 1)}, {"num_partitions": 1 << 20}],
)
def test_meshes_that_cannot_be_are_refused(arguments):
  with pytest.raises(InputError):
    partitioning.PjitPartitioner(**arguments)


def fake_partitioner(process_of_device):
  """A partitioner whose devices belong to other processes; has only what the layout reads."""
  partitioner = partitioning.PjitPartitioner(num_partitions=1)
  devices = np.vectorize(lambda p: types.SimpleNamespace(process_index=p), otypes=[object])(
    np.asarray(process_of_device)
  )
  data, model = devices.shape
  partitioner.mesh = types.SimpleNamespace(
    devices=devices, shape={"data": data, "model": model}, size=devices.size
  )
  return partitioner


def test_processes_that_share_rows_of_the_mesh_read_the_same_data():
  own_rows = fake_partitioner([[0, 0], [0, 0], [1, 1], [1, 1]]).get_data_layout(8)
  assert (own_rows.num_shards, own_rows.shard_id) == (2, 0)
  shared_rows = fake_partitioner([[0, 1], [0, 1]]).get_data_layout(8)
  assert (shared_rows.num_shards, shared_rows.shard_id) == (1, 0)


def test_a_batch_that_does_not_divide_is_refused_with_a_multiple():
  with pytest.raises(InputError, match=r"BATCH_SIZE=6 .*data axis .*\(4 of 4.*multiple of 4"):
    fake_partitioner([[0], [0], [0], [0]]).get_data_layout(6)
