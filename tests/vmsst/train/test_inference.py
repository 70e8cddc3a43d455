"""Inference over the rows of a dataset."""

import json

import commands
import pytest
import servers

# On TPU pods, rows of the mesh that are next to each other may be of different hosts.
INFERENCE = """
import json, os, sys, types
import numpy as np
import tensorflow as tf
from jax.experimental import mesh_utils
from vmsst.train import distributed, partitioning, utils
mesh_utils.create_device_mesh = lambda shape, devices: np.array(
  sorted(devices, key=lambda device: (device.id % 2, device.process_index))).reshape(shape)
child = os.fork()
with distributed.joined(f"localhost:{sys.argv[1]}", 2, int(child == 0)):
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
    found = commands.script(INFERENCE, port, cwd=tmp_path, devices=2).stdout.splitlines()[-1]
  assert json.loads(found) == [[i, i + 1] for i in range(12)]
