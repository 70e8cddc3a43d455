"""Batches: trimming, prefetching, saved iterator states, and shares of processes and devices."""

import itertools
import types

import numpy as np
import pytest
import tensorflow as tf
import toy_runs

from vmsst.errors import InputError
from vmsst.train import input_pipeline, partitioning, train_state


@pytest.mark.parametrize(
  ("longest", "width"),
  [(0, 4), (1, 4), (4, 4), (5, 8), (8, 8), (9, 12), (13, 16), (17, 24), (25, 32), (32, 32)],
)
def test_trimming_cuts_only_columns_that_are_padding(longest, width):
  tokens = np.zeros((3, 32), np.int32)
  tokens[1, :longest] = 7
  languages = np.ones((3, 1), np.int32)
  batch = {"inputs": tokens, "targets": tokens[:, :20] * 0, "input_language": languages}
  trimmed = input_pipeline.trim_padding(batch)
  assert trimmed["inputs"].shape == (3, width)
  assert trimmed["inputs"].sum() == tokens.sum()
  assert trimmed["input_language"].shape == (3, 1)


def test_trimming_keeps_the_same_fraction_of_every_sequence():
  batch = {
    "inputs": np.zeros((2, 64), np.int32),
    "targets": np.zeros((2, 32), np.int32),
    "negatives": np.zeros((2, 3, 64), np.int32),
    "teacher_inputs": np.zeros((2, 64), np.float32),
  }
  for name, length, cut in (("inputs", 30, 32), ("negatives", 34, 48)):
    batch[name][..., :length] = 1
    trimmed = input_pipeline.trim_padding(batch)
    assert {name: value.shape for name, value in trimmed.items()} == {
      "inputs": (2, cut),
      "targets": (2, cut // 2),
      "negatives": (2, 3, cut),
      "teacher_inputs": (2, 64),
    }
    assert all(trimmed[name].sum() == value.sum() for name, value in batch.items())


def iterate(step, saved=None, batches=None, **options):
  """Returns a started iterator over `batches`, or over the shuffled dataset of toy_runs."""
  mesh = partitioning.PjitPartitioner(num_partitions=1)
  iterator = input_pipeline.TrainIterator(batches or toy_runs.shuffled_dataset(), mesh, **options)
  iterator.start(step, saved)
  return iterator


@pytest.mark.parametrize("save_at", [0, 4, 7])
def test_a_restarted_iterator_gives_the_batches_that_would_have_come(tmp_path, save_at):
  first = iterate(0)
  assert toy_runs.take_rows(first, save_at) == toy_runs.expected_rows(0, save_at)
  state = first.state()
  assert state.position == save_at
  state.copy_to(tmp_path / "dataset", process=0, processes=1)
  first.close()

  saved = input_pipeline.DataState.read_from(tmp_path / "dataset", process=0, processes=1)
  second = iterate(7, saved)
  assert toy_runs.take_rows(second, 30) == toy_runs.expected_rows(7, 30)
  second.close()


def test_processes_trim_a_batch_to_the_longest_text_of_all(monkeypatch):
  """A simulated second process has a long text in every third batch."""
  numbers = range(1, 60)

  def gathered(sixteenths):
    other_sixteenths = [
      16 if number % 3 == 0 else 4 for number in itertools.islice(seen, len(sixteenths))
    ]
    return np.stack([sixteenths, other_sixteenths])

  seen = iter(numbers)
  monkeypatch.setattr(input_pipeline, "can_trim", lambda: False)
  monkeypatch.setattr(input_pipeline.multihost_utils, "process_allgather", gathered)
  rows = np.zeros((59, 2, 32), np.int32)
  for number in numbers:
    rows[number - 1, :, : 12 if number % 2 else 3] = number
  dataset = tf.data.Dataset.from_tensor_slices({"inputs": rows}).repeat()
  iterator = iterate(0, batches=dataset)
  for number in range(1, 40):
    tokens = np.asarray(next(iterator)["inputs"])
    width = 32 if number % 3 == 0 else 12 if number % 2 else 8
    np.testing.assert_array_equal(tokens, rows[number - 1, :, :width])
  iterator.close()


def test_errors_of_the_pipeline_reach_the_training_loop():
  iterator = iterate(0, batches=toy_runs.shuffled_dataset().take(2))
  toy_runs.take_rows(iterator, 2)
  with pytest.raises(InputError, match="does not repeat"):
    next(iterator)
  iterator.close()


@pytest.mark.parametrize("change", [{"iterator": {"next_index": 7}}, {"shard": [1, 2]}])
def test_a_state_that_does_not_fit_the_data_is_not_used(caplog, change):
  first = iterate(7)
  state = first.state().dataset
  first.close()
  iterator = iterate(3, input_pipeline.DataState(3, {**state, **change}))
  assert toy_runs.take_rows(iterator, 9) == toy_runs.expected_rows(3, 9)
  iterator.close()
  assert "Cannot use the data iterator state of step 3" in caplog.text


def test_a_run_that_starts_at_a_later_step_restarts_its_data_and_resumes(tmp_path):
  for save_state in (True, False):
    first = iterate(1000, input_pipeline.DataState(1000, None), save_state=save_state)
    assert toy_runs.take_rows(first, 3) == toy_runs.expected_rows(0, 3)
    first.state().copy_to(tmp_path, process=0, processes=1)
    first.close()
    second = iterate(1003, input_pipeline.DataState.read_from(tmp_path, process=0, processes=1))
    assert toy_runs.take_rows(second, 20) == toy_runs.expected_rows(3, 20)
    assert second.state().position == 1023
    second.close()


def test_a_state_belongs_to_one_number_of_processes(tmp_path, caplog):
  input_pipeline.DataState(0, None).copy_to(tmp_path, process=1, processes=2)
  assert input_pipeline.DataState.read_from(tmp_path, process=1, processes=2).position == 0
  assert not caplog.records
  assert input_pipeline.DataState.read_from(tmp_path, process=0, processes=2) is None
  for process, count in ((0, 1), (2, 3)):
    assert input_pipeline.DataState.read_from(tmp_path, process, count) is None
    assert f"not from a run with {count} processes" in caplog.text


def fake_partitioner(process_of_device):
  """A partitioner with a mesh over devices of several processes, as far as the layout reads it."""
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
