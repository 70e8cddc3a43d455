"""Meshes, and the shares of a batch that processes read."""

import types

import numpy as np
import pytest
import toy_runs
from jax.experimental import mesh_utils

from vmsst.errors import InputError
from vmsst.train import partitioning, train_state


def test_axes_that_no_torus_has_are_made_of_parts(monkeypatch):
  def create(shape, devices, allow_split_physical_axes=False):
    if not allow_split_physical_axes:
      raise NotImplementedError("Failed to find assignment for logical_axis_index 1 of size 1")
    return np.reshape(devices, shape)

  monkeypatch.setattr(mesh_utils, "create_device_mesh", create)
  assert partitioning.PjitPartitioner(num_partitions=1).mesh.axis_names == ("data", "model")


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
  assert fake_partitioner([[0, 0], [0, 0], [1, 1], [1, 1]]).data_shard(8) == (0, 2)
  assert fake_partitioner([[0, 1], [0, 1]]).data_shard(8) == (0, 1)


def test_a_batch_that_does_not_divide_is_refused_with_a_multiple():
  with pytest.raises(InputError, match=r"BATCH_SIZE=6 .*data axis .*\(4 of 4.*multiple of 4"):
    fake_partitioner([[0], [0], [0], [0]]).data_shard(6)


def test_a_parameter_whose_axis_has_no_rule_is_named_not_replicated():
  model = toy_runs.ToyModel()
  rules = [("vocab", None), ("batch", "data")]
  with pytest.raises(InputError, match="target/table has logical axis 'embed', but no sharding ru"):
    train_state.TrainStateInitializer(
      model.optimizer_def,
      model.get_initial_variables,
      {"inputs": (8, 8)},
      partitioning.PjitPartitioner(num_partitions=1, logical_axis_rules=rules),
    )
