"""Trains each recipe at a tiny size: the loss is finite, and vmsst.load opens the run."""

import json

import commands
import numpy as np
import pytest
import released_folders

import vmsst
from vmsst.data import sample

pytestmark = pytest.mark.slow
TINY = {"TRAIN_STEPS": 30, "BATCH_SIZE": 8, "EVAL_PERIOD": 15, "CHECKPOINT_PERIOD": 15}
TINY |= {"EMBEDDING_SLICES": 1, "LEARNING_RATE": 1e-3, "DROPOUT_RATE": 0.0, "DTYPE": "float32"}
TINY |= {"STATS_PERIOD": 10, "starting_encoders.max_length.limit": 16}
RECIPES = sorted(path.name for path in (vmsst.gin_dir() / "recipes").glob("*.gin"))


@pytest.fixture(scope="module")
def data(tmp_path_factory):
  """Writes an encoder, bitext, queries with negatives and scores, and a teacher's vectors."""
  folder = tmp_path_factory.mktemp("recipes")
  released_folders.write(folder / "encoder", "bert", {})
  pairs = [(sample.sentence(i, "de"), sample.sentence(i, "en")) for i in range(40)]
  (folder / "x.de-en.tsv").write_text("".join("\t".join(pair) + "\n" for pair in pairs))
  scores = {"pos_scores": [5.0], "neg_scores": [1.0]}
  questions = [{"query": x, "pos": [y], "neg": ["a red apple"], **scores} for x, y in pairs]
  (folder / "questions.jsonl").write_text("".join(f"{json.dumps(x)}\n" for x in questions))
  commands.vmsst(
    "data", "embed", str(folder / "encoder"), str(folder / "vectors"), str(folder / "x.de-en.tsv")
  )
  return folder


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_recipe_trains(data, recipe):
  bitext, run = str(data / "x.de-en.tsv"), data / recipe
  bindings = {"ENCODER": str(data / "encoder"), "PAIRS": bitext, "MODEL_DIR": str(run), **TINY}
  if recipe.startswith("e5"):
    bindings["DEV_SETS"] = bitext
  if recipe == "e5_stage_2.gin":
    bindings["PAIRS"] = {"questions": str(data / "questions.jsonl")}
  if recipe == "multilingual_distillation.gin":
    bindings |= {"TEACHER_VECTORS": str(data / "vectors"), "TEACHER_DIM": 16}
  arguments = [f"--gin.{name}={value!r}" for name, value in bindings.items()]
  commands.t5x("train", f"--gin_file=recipes/{recipe}", *arguments, cwd=data)
  text = (run / "train" / "metrics.jsonl").read_text()
  lines = [line for line in map(json.loads, text.splitlines()) if "loss" in line]
  losses = [line["loss"] for line in lines]
  # The learning rate falls to zero at TRAIN_STEPS.
  assert lines[-1]["learning_rate/current"] < 0.02 * TINY["LEARNING_RATE"]
  assert losses
  assert np.isfinite(losses).all()
  encoder = vmsst.load(run)
  assert encoder.encode(["red"]).shape == (1, 16)
  if recipe.startswith("e5"):
    assert encoder.prompts["query"] == "query: "
