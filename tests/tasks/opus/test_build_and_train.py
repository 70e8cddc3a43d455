"""From OPUS releases on disk to a trained encoder, by the commands that a person types."""

import json

import commands
import numpy as np
import opus_tree
import pytest

from vmsst.bitext import dataset_shards
from vmsst.tasks import sample

# Builds, then trains a tiny model, in one process: importing takes longer than both.
_RUN = """
import json, sys
from vmsst import cli
from vmsst.launch.main import main

plan = json.load(sys.stdin)
assert cli.main(plan["build"]) == 0
main(plan["train"])
"""
TINY = {
  "VOCABULARY_PATH": f"'{sample.vocabulary_path()}'",
  "VOCAB_SIZE": 3600,
  "EMBED_DIM": 16,
  "MAX_LENGTH": 16,
  "BATCH_SIZE": 16,
  "STATS_PERIOD": 1,
  "EVAL_STEPS": 1,
  "t5.T5Config.num_encoder_layers": 1,
  "t5.T5Config.num_heads": 2,
  "t5.T5Config.head_dim": 8,
  "t5.T5Config.mlp_dim": 16,
  "utils.create_learning_rate_scheduler.factors": "'constant'",
  "utils.create_learning_rate_scheduler.base_learning_rate": 0.01,
}


def arguments(folder, opus, evaluation, recipe, steps, **more):
  """Of the build and of the training."""
  build = ["data", "build", "--recipe", recipe, "--input", opus, "--held-out", evaluation]
  macros = {
    **TINY,
    "MODEL_DIR": f"'{folder / 'run'}'",
    "OPUS_DATA_DIR": f"'{folder / 'tfds'}'",
    "TRAIN_STEPS": steps,
    "EVAL_PERIOD": steps,
    **more,
  }
  return {
    "build": [*map(str, build), "--output", str(folder / "tfds"), "--workers", "1"],
    "train": [
      "train",
      "--gin_file=contrastive_6l.gin",
      *(f"--gin.{name}={value}" for name, value in macros.items()),
    ],
  }


def losses(folder, part="train"):
  lines = (folder / "run" / part / "metrics.jsonl").read_text().splitlines()
  return [row["loss"] for row in map(json.loads, lines) if "loss" in row]


@pytest.mark.slow
@pytest.mark.parametrize("file_format", dataset_shards.FORMATS)
def test_a_hundred_steps_on_real_releases(tmp_path, data_root, file_format):
  codes = ("de", "es", "fr", "ru", "tr")
  opus_tree.write(tmp_path / "opus", opus_tree.parts_of(data_root, codes, rows=3000))
  of_ems = {
    "VOCABULARY_PATH": f"'{data_root / 'vocab' / 'ems_62languages_bpe_60000.model'}'",
    "vocabularies.SentencePieceVocabulary.lowercase": True,
    "VOCAB_SIZE": 60000,
    "EMBED_DIM": 64,
    "BATCH_SIZE": 32,
    "SIMILARITY": "'cosine'",
    "SCALE": 20.0,
    "utils.create_learning_rate_scheduler.base_learning_rate": 0.05,
  }
  plan = arguments(tmp_path, tmp_path / "opus", data_root, "vmsst", 100, **of_ems)
  if file_format == "array_record":
    plan["build"] += ["--format", file_format]
  commands.script(_RUN, cwd=tmp_path, text=json.dumps(plan), timeout=1200)
  found = losses(tmp_path)
  assert len(found) == 100
  assert np.mean(found[-10:]) < 0.9 * np.mean(found[:10])
  assert np.isfinite(losses(tmp_path, "training_eval/opus_vmsst")).all()
