"""Batches: trimming, prefetching, saved iterator states."""

import json

import numpy as np
import pytest
import shuffled_rows
import tensorflow as tf

from vmsst.errors import InputError
from vmsst.launch.runtime import data, partitioning


@pytest.fixture
def partitioner():
  return partitioning.PjitPartitioner(num_partitions=1)


@pytest.mark.parametrize(
  ("longest", "width"), [(0, 8), (1, 8), (8, 8), (9, 12), (13, 16), (17, 24), (25, 32), (32, 32)]
)
def test_trimming_cuts_only_columns_that_are_padding(longest, width):
  tokens = np.zeros((3, 32), np.int32)
  tokens[1, :longest] = 7
  batch = {
    "inputs": tokens,
    "targets": tokens[:, :20] * 0,
    "input_language": np.ones((3, 1), np.int32),
  }
  trimmed = data.trim_padding(batch)
  assert trimmed["inputs"].shape == (3, width)
  assert trimmed["inputs"].sum() == tokens.sum()
  assert trimmed["input_language"].shape == (3, 1)


def test_trimming_keeps_the_same_fraction_of_every_sequence():
  batch = {"inputs": np.ones((2, 64), np.int32), "targets": np.zeros((2, 32), np.int32)}
  batch["inputs"][:, 30:] = 0
  shapes = {name: value.shape for name, value in data.trim_padding(batch).items()}
  assert shapes == {"inputs": (2, 32), "targets": (2, 16)}


@pytest.mark.parametrize("save_at", [0, 4, 7])
def test_a_restarted_iterator_gives_the_batches_that_would_have_come(
  partitioner, tmp_path, save_at
):
  first = data.TrainIterator(shuffled_rows.shuffled_dataset(), partitioner, snapshot_period=2)
  first.start(0)
  assert shuffled_rows.take(first, 7) == shuffled_rows.expected(0, 7)
  state = first.state(save_at)
  assert state.position <= save_at
  state.copy_to(tmp_path / "dataset", process=0, processes=1)
  first.close()

  saved = data.DataState.read_from(tmp_path / "dataset", process=0, processes=1)
  second = data.TrainIterator(shuffled_rows.shuffled_dataset(), partitioner, snapshot_period=2)
  second.start(7, saved)
  assert shuffled_rows.take(second, 30) == shuffled_rows.expected(7, 30)
  assert second.state(20).position == 20
  second.close()


def test_a_dataset_whose_state_cannot_be_saved_is_read_again(partitioner):
  def rows():
    for i in range(100):
      yield {"inputs": np.full((2, 8), i + 1, np.int32)}

  spec = {"inputs": tf.TensorSpec([2, 8], tf.int32)}
  dataset = tf.data.Dataset.from_generator(rows, output_signature=spec)
  iterator = data.TrainIterator(dataset, partitioner, snapshot_period=3)
  iterator.start(5)
  assert shuffled_rows.take(iterator, 3) == [[6, 6], [7, 7], [8, 8]]
  assert iterator.state(8).position == 0
  iterator.close()


def test_errors_of_the_pipeline_reach_the_training_loop(partitioner):
  iterator = data.TrainIterator(shuffled_rows.shuffled_dataset().take(2), partitioner)
  iterator.start(0)
  shuffled_rows.take(iterator, 2)
  with pytest.raises(InputError, match="does not repeat"):
    next(iterator)
  iterator.close()


def test_a_damaged_position_is_named(tmp_path):
  state = data.DataState(0, None)
  state.copy_to(tmp_path, process=0, processes=1)
  (description,) = tmp_path.glob("*.json")
  assert json.loads(description.read_text()) == {"batches": 0, "saved": False}
  description.write_text('{"batches": ')
  with pytest.raises(InputError, match=r"train_ds-000-of-001\.json is damaged"):
    data.DataState.read_from(tmp_path, process=0, processes=1)


def test_an_unknown_task_is_named_with_the_known_ones():
  cfg = data.DatasetConfig("no_such_task", {"inputs": 8}, "train", 2, False, 0)
  with pytest.raises(InputError, match="no task or mixture 'no_such_task' is registered; known:"):
    data.get_dataset(cfg, 0, 1, lambda **_: None)
