"""Eight devices with any number of partitions give the losses of one device.

In the default tests, test_every_gin_file.py compares eight devices with one.
"""

import json
import shutil

import eight_devices
import jax
import numpy as np
import pytest

from vmsst.launch.runtime import (
  adafactor,
  checkpoints,
  data,
  partitioning,
  train,
  trainer,
  utils,
)
from vmsst.models import contrastive
from vmsst.networks import sentence_encoder, t5
from vmsst.tasks import bitext, datasets
from vmsst.text import vocabularies

STEPS = 6
STOP = 3
PARTITIONS = (1, 4)
pytestmark = pytest.mark.slow
# Sums over the batch have another order; a wrong negative, gradient or dropout mask would change
# the second digit.
TOLERANCE = 1e-5


def run(folder, *, partitions=1, steps=STEPS):
  """Trains a tiny CONTRASTIVE with dropout on the sample corpus; returns the last train state."""
  vocabulary = vocabularies.ByteVocabulary()
  config = t5.T5Config(
    vocab_size=vocabulary.size + -vocabulary.size % 8,
    emb_dim=16,
    num_heads=4,
    head_dim=4,
    mlp_dim=32,
    num_encoder_layers=1,
    dropout_rate=0.1,
  )
  model = contrastive.ContrastiveModel(
    network=sentence_encoder.SentenceEncoder(config=config, latent_dim=16),
    input_vocabulary=vocabulary,
    optimizer_def=adafactor.Adafactor(
      logical_factor_rules=adafactor.standard_logical_factor_rules()
    ),
    similarity="cosine",
    scale=10.0,
  )
  lengths = {"inputs": 16, "targets": 16, "input_language": 1, "target_language": 1}

  def make_trainer(**arguments):
    schedule = utils.create_learning_rate_scheduler(factors="constant", base_learning_rate=0.05)
    return trainer.Trainer(learning_rate_fn=schedule, num_microbatches=None, **arguments)

  _, state = train.train(
    model=model,
    train_dataset_cfg=data.DatasetConfig(
      mixture_or_task_name=bitext.sample(vocabulary, languages=("de", "zh"), num_meanings=200),
      task_feature_lengths=lengths,
      split="train",
      batch_size=16,
      shuffle=True,
      seed=1,
    ),
    train_eval_dataset_cfg=None,
    infer_eval_dataset_cfg=None,
    checkpoint_cfg=checkpoints.CheckpointConfig(
      save=checkpoints.SaveCheckpointConfig(period=STOP, save_dataset=True)
    ),
    partitioner=partitioning.PjitPartitioner(num_partitions=partitions),
    trainer_cls=make_trainer,
    model_dir=str(folder),
    total_steps=steps,
    eval_steps=1,
    eval_period=steps,
    stats_period=1,
    random_seed=0,
    get_dataset_fn=datasets.get_global_batches,
  )
  return state


def losses(folder):
  """Returns the loss of each step of the run in `folder`, {step: loss}."""
  lines = (folder / "train" / "metrics.jsonl").read_text().splitlines()
  return {row["step"]: row["loss"] for row in map(json.loads, lines) if "loss" in row}


def forget_after(folder, step, other):
  """Copies the run in `folder` to `other`, as it was at `step`."""
  other.mkdir()
  shutil.copytree(folder / f"checkpoint_{step}", other / f"checkpoint_{step}")
  return other


def run_on_eight_devices(folder):
  """Does all runs that need eight devices; prints the sharding of each token table."""
  assert jax.device_count() == 8
  for partitions in PARTITIONS:
    state = run(folder / f"eight_{partitions}", partitions=partitions)
    table = state.params["token_embedder"]["embedding"]
    print(f"shards: {len(set(map(str, table.sharding.devices_indices_map(table.shape).values())))}")
  run(folder / "one_to_eight", partitions=4)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
  """Folder of the runs: `one`, `eight_<partitions>`, and two that changed their devices."""
  folder = tmp_path_factory.mktemp("devices")
  assert jax.device_count() == 1
  run(folder / "one")
  forget_after(folder / "one", STOP, folder / "one_to_eight")
  printed = eight_devices.run(__file__, folder)
  shards = [line.split()[1] for line in printed.splitlines() if line.startswith("shards:")]
  assert shards == [str(partitions) for partitions in PARTITIONS]  # else nothing is compared
  run(forget_after(folder / "eight_4", STOP, folder / "eight_to_one"))
  return folder


@pytest.mark.parametrize("partitions", PARTITIONS)
def test_eight_devices_have_the_losses_of_one(runs, partitions):
  one, eight = losses(runs / "one"), losses(runs / f"eight_{partitions}")
  assert sorted(one) == list(range(1, STEPS + 1))
  assert one[STEPS] < 0.99 * one[1]
  np.testing.assert_allclose([eight[step] for step in one], list(one.values()), rtol=TOLERANCE)


@pytest.mark.parametrize("name", ["one_to_eight", "eight_to_one"])
def test_a_run_resumes_on_other_devices_with_the_same_losses(runs, name):
  whole, rest = losses(runs / "one"), losses(runs / name)
  assert sorted(rest) == list(range(STOP + 1, STEPS + 1))
  np.testing.assert_allclose(list(rest.values()), [whole[step] for step in rest], rtol=TOLERANCE)
