"""The step passed to a loss: in training, with microbatches, after a restart, and by gin."""

import json
import subprocess
import sys

import clu.metrics
import commands
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


def test_the_step_changes_the_update_and_a_plain_trainer_tells_none(whole, tmp_path):
  state, told = run(tmp_path, trainer_cls=toy_runs.make_trainer())
  assert set(told.values()) == {1.0}
  assert not np.allclose(state["target"]["table"], whole[0]["target"]["table"])


def test_one_class_a_runtime_that_keeps_the_name_under_which_gin_finds_it():
  found = step_trainer.step_trainer_class(trainer)
  assert found is step_trainer.step_trainer_class(trainer)
  assert issubclass(found, trainer.Trainer)
  assert (found.__module__, found.__qualname__) == ("vmsst.launch.step_trainer", "StepTrainer")


def test_importing_it_needs_no_t5x():
  code = "import sys, vmsst.launch.step_trainer; print(*sys.modules)"
  done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
  assert not {"tensorflow", "seqio", "t5x"} & set(done.stdout.split())


# Trains with each given file at a test size and reports the results.
_TRAIN = """
import json, pathlib, sys
import gin, numpy as np
from vmsst.launch.main import main
from vmsst.tasks import sample
import vmsst

folder, files = pathlib.Path(sys.argv[1]), sys.argv[2:]
(folder / "a.en-de.tsv").write_text("a house\\tein Haus\\n" * 40)
found = {}
for file in files:
  gin.clear_config(clear_constants=True)
  run = folder / file
  tiny = {
    "MODEL_DIR": f"'{run}'", "PATTERNS": f"['{folder}/a.en-de.tsv']",
    "VOCABULARY_PATH": f"'{sample.vocabulary_path()}'", "VOCAB_SIZE": 3600, "EMBED_DIM": 8,
    "TRAIN_STEPS": 3, "STATS_PERIOD": 1, "EVAL_PERIOD": 3, "CHECKPOINT_PERIOD": 3, "BATCH_SIZE": 8,
    "t5.T5Config.num_encoder_layers": 1, "t5.T5Config.num_heads": 2, "t5.T5Config.head_dim": 4,
    "t5.T5Config.mlp_dim": 8, "train.train_eval_dataset_cfg": None,
  }
  gin_files = [f"--gin_file={name}" for name in (file, "data/files.gin")]
  main(["train", *gin_files, *(f"--gin.{name}={value}" for name, value in tiny.items())])
  rows = map(json.loads, (run / "train" / "metrics.jsonl").read_text().splitlines())
  metrics = {row["step"]: row for row in rows if "loss" in row}
  vectors = vmsst.load(run).encode(["a house", "ein Haus"])
  found[file] = {"metrics": metrics, "norms": np.linalg.norm(vectors, axis=1).tolist()}
(folder / "found.json").write_text(json.dumps(found))
"""


def train_files(folder, files):
  commands.script(_TRAIN, folder, *files, cwd=folder)
  return json.loads((folder / "found.json").read_text())


def check_run(file, result):
  assert list(result["metrics"]) == ["1", "2", "3"]
  for step, metrics in result["metrics"].items():
    assert all(np.isfinite(value) for value in metrics.values()), (file, metrics)
    assert 0 < metrics["nll/translation"] < 20
    if file.startswith("vmsst"):
      assert metrics["kl_weight"] == pytest.approx((int(step) - 1) / 1e6)
      assert metrics["kl/semantic"] > 0
  assert all(norm > 0 for norm in result["norms"])


def test_the_gin_files_train_with_the_step_and_their_encoders_load(tmp_path):
  files = ["vmsst_6l.gin", "bitranslation_6l.gin"]
  for file, result in train_files(tmp_path, files).items():
    check_run(file, result)


@pytest.mark.slow
def test_every_other_gin_file_trains_too(tmp_path):
  joint = ["vmsst_contrastive_6l.gin", "vmsst_contrastive_24l.gin"]
  results = train_files(tmp_path, ["vmsst_24l.gin", "bitranslation_24l.gin", *joint])
  for file, result in results.items():
    check_run(file, result)
  for file in joint:
    assert "loss/contrastive" in results[file]["metrics"]["1"]
