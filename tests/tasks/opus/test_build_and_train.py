"""From OPUS releases on disk to a trained encoder, by the commands that a person types."""

import gzip
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
def test_releases_become_a_dataset_and_the_dataset_an_encoder(tmp_path):
  english = [sample.sentence(i, "en") for i in range(120)]
  german, spanish = ([sample.sentence(i, code) for i in range(120)] for code in ("de", "es"))
  planted = english[7].upper() + " !!"
  rows = list(zip(german, english, strict=True))
  rows[7] = (german[7], planted)
  parts = [
    opus_tree.Part("Europarl", "v8", ("de", "en"), rows[:80]),
    opus_tree.Part("Tanzil", "v1", ("de", "en"), rows[60:], format="tmx"),
    opus_tree.Part(
      "OpenSubtitles", "v2018", ("en", "es"), list(zip(english, spanish, strict=True))
    ),
    opus_tree.Part("OpenSubtitles", "v2016", ("de", "es"), list(zip(german, spanish, strict=True))),
    opus_tree.Part("JW300", "v1", ("de", "en"), rows),
  ]
  opus_tree.write(tmp_path / "opus", parts)
  (tmp_path / "evaluation" / "tatoeba").mkdir(parents=True)
  for code, text in {"deu": "Etwas anderes.", "eng": english[7]}.items():
    path = tmp_path / "evaluation" / "tatoeba" / f"tatoeba.deu-eng.{code}.gz"
    path.write_bytes(gzip.compress(f"{text}\n".encode()))
  plan = arguments(
    tmp_path,
    tmp_path / "opus",
    tmp_path / "evaluation",
    "vmsst",
    4,
    **{"train.train_eval_dataset_cfg": None},
  )
  done = commands.script(_RUN, cwd=tmp_path, text=json.dumps(plan))
  (dataset,) = (tmp_path / "tfds" / "opus_bitext" / "vmsst").iterdir()
  assert f"{dataset}: described in DATA_CARD.md" in done.stdout
  card = (dataset / "DATA_CARD.md").read_text(encoding="utf-8")
  assert "Europarl" in card
  assert "JW300" not in card
  content = b"".join(path.read_bytes() for path in dataset.glob("*.tfrecord*"))
  assert planted.encode() not in content
  assert english[7].encode() not in content  # of the Spanish pair too
  assert content.count(english[8].encode()) == content.count(english[61].encode()) == 2
  assert len(losses(tmp_path)) == 4
  assert np.isfinite(losses(tmp_path)).all()
  encoder = json.loads((tmp_path / "run" / "encoder.json").read_text())
  assert encoder["languages"] == ["deu", "eng", "spa"]


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
    plan["train"].insert(2, "--gin_file=data/sharded.gin")
  commands.script(_RUN, cwd=tmp_path, text=json.dumps(plan), timeout=1200)
  found = losses(tmp_path)
  assert len(found) == 100
  assert np.mean(found[-10:]) < 0.9 * np.mean(found[:10])
  assert np.isfinite(losses(tmp_path, "training_eval/opus_vmsst")).all()
