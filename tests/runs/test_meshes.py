"""The mesh files: what each shards on eight devices, with unchanged losses."""

import json

import commands
import numpy as np
import pytest

import vmsst

ROOT = vmsst.gin_dir()
STEPS = 2
# Number of shards of the token table and of a feed-forward kernel.
CUT = {
  "meshes/data_parallel.gin": (1, 1),
  "meshes/fully_sharded.gin": (8, 8),
  "meshes/tensor_parallel.gin": (2, 2),
  "meshes/vocabulary_sharded.gin": (2, 1),
  "both.gin": (8, 8),
}

_STUB = """
from __gin__ import dynamic_registration
from t5x import partitioning
NUM_PARTITIONS = 1
partitioning.PjitPartitioner:
  num_partitions = %NUM_PARTITIONS
  logical_axis_rules = @partitioning.standard_logical_axis_rules()
"""

_TRAIN = """
import json, sys
import gin, jax, numpy as np
from vmsst.train import aliases
aliases.install()
from vmsst.data import vocabularies
from vmsst.train import adafactor, gin_utils, partitioning, trainer, utils
from vmsst.models import bitranslation
from vmsst.networks import t5, vmsst

model = bitranslation.BitranslationModel(
  network=vmsst.BitranslationNetwork(
    config=t5.T5Config(
      vocab_size=400, emb_dim=16, num_heads=2, head_dim=8, mlp_dim=32, num_encoder_layers=1
    ),
    latent_dim=16,
  ),
  vocabulary=vocabularies.ByteVocabulary(),
  optimizer_def=adafactor.Adafactor(
    logical_factor_rules=adafactor.standard_logical_factor_rules()
  ),
)
rng = np.random.default_rng(0)
batch = {name: rng.integers(3, 250, (16, 8)).astype(np.int32) for name in ("inputs", "targets")}
batch |= {f"{side}_language": np.full((16, 1), i, np.int32) for i, side in
          enumerate(("input", "target"))}
schedule = utils.create_learning_rate_scheduler(factors="constant", base_learning_rate=0.1)

root, steps, *files = sys.argv[1:]
steps = int(steps)
for file in files:
  gin.clear_config()
  gin_utils.parse_gin_flags([root, "."], ["stub.gin", file], [])
  partitioner = gin.get_configurable(partitioning.PjitPartitioner)()
  initializer = utils.TrainStateInitializer(
    optimizer_def=model.optimizer_def,
    init_fn=model.get_initial_variables,
    input_shapes={name: value.shape for name, value in batch.items()},
    input_types={name: value.dtype for name, value in batch.items()},
    partitioner=partitioner,
  )
  shapes = initializer.global_train_state_shape.state_dict()["target"]
  placed = partitioner.shardings(initializer.train_state_axes).state_dict()["target"]
  def parts(path):
    shape, sharding = shapes, placed
    for name in path.split("/"):
      shape, sharding = shape[name], sharding[name]
    return len(set(map(str, sharding.devices_indices_map(shape.shape).values())))
  report = {"file": file, "losses": [], "cut": [
    parts("token_embedder/embedding"), parts("encoder/layers_0/mlp/wo/kernel")]}
  if not steps:
    print(json.dumps(report))
    continue
  state = initializer.from_scratch(jax.random.PRNGKey(0))
  run = trainer.Trainer(
    model=model, train_state=state, partitioner=partitioner, eval_names=[], summary_dir=None,
    train_state_axes=initializer.train_state_axes, rng=jax.random.PRNGKey(0),
    learning_rate_fn=schedule, num_microbatches=None,
  )
  for _ in range(steps):
    state, metrics = run._partitioned_train_step(state, partitioner.to_devices(batch))
    report["losses"].append(float(metrics["loss"].compute()))
  run.close()
  print(json.dumps(report))
"""


def train(folder, steps):
  """Runs each mesh for `steps` steps on eight devices; returns the reports."""
  (folder / "stub.gin").write_text(_STUB)
  both = "include 'meshes/tensor_parallel.gin'\ninclude 'meshes/fully_sharded.gin'\n"
  (folder / "both.gin").write_text(both)
  done = commands.script(_TRAIN, ROOT, steps, *CUT, cwd=folder, devices=8)
  return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def test_each_mesh_cuts_what_it_says(tmp_path):
  assert {report["file"]: tuple(report["cut"]) for report in train(tmp_path, 0)} == CUT


@pytest.mark.slow
def test_meshes_do_not_change_the_losses(tmp_path):
  found = train(tmp_path, STEPS)
  assert {report["file"] for report in found} == CUT.keys()
  first = found[0]["losses"]
  assert first[1] < first[0]
  for report in found[1:]:
    np.testing.assert_allclose(report["losses"], first, rtol=1e-5, err_msg=report["file"])
