"""`t5x infer` and `t5x eval`: every row once, also after an interruption."""

import json

import commands
import numpy as np
import pytest
import servers
import toy_runs

from vmsst.train import checkpoints, infer, inference, partitioning
from vmsst.train import eval as eval_lib


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
  # A run must not reuse lines of another split or of other examples.
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
  losses = toy_runs.metrics(tmp_path / "training_eval" / "toy")
  goal = [[sum(row != 0)] for row in validation[:16]]
  expected = np.mean(np.square(np.asarray(means[:16]) - goal))
  np.testing.assert_allclose(losses[4], expected, rtol=1e-5)
  assert sorted(losses) == [0, 4]
  printed = capsys.readouterr().out
  assert "step 0" in printed
  assert f"{results[4]['toy']['mean']:.4g}"[:4] in printed


# On TPU pods, neighboring rows of the mesh may belong to different hosts.
INFERENCE = """
import json, os, sys, types
import numpy as np
import tensorflow as tf
from jax.experimental import mesh_utils
from vmsst.train import distributed, partitioning, utils
mesh_utils.create_device_mesh = lambda shape, devices: np.array(
  sorted(devices, key=lambda device: (device.id % 2, device.process_index))).reshape(shape)
child = os.fork()
with distributed.join(f"localhost:{sys.argv[1]}", 2, int(child == 0)):
  state = types.SimpleNamespace(params=None, flax_mutables=None)
  infer = utils.get_infer_fn(lambda params, batch: batch["inputs"][:, 0], 8, state,
                             partitioning.PjitPartitioner(num_partitions=1))
  rows = tf.data.Dataset.from_tensor_slices({"inputs": np.arange(12, dtype=np.int32)[:, None] + 1})
  found = infer(rows.enumerate(), state)
if child:
  os.waitpid(child, 0)
  print(json.dumps([(index, int(value)) for index, value in found]))
"""


@pytest.mark.slow
def test_inference_keeps_the_order_of_rows_if_hosts_interleave(tmp_path):
  with servers.reserved() as port:
    output = commands.script(INFERENCE, port, cwd=tmp_path, devices=2).stdout.splitlines()[-1]
  assert json.loads(output) == [[i, i + 1] for i in range(12)]
