"""Batches: trimming, prefetching, saved iterator states."""

import itertools
import json

import numpy as np
import pytest
import tensorflow as tf
import toy_runs

from vmsst.errors import InputError
from vmsst.train import data, partitioning


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
  first = data.TrainIterator(toy_runs.shuffled_dataset(), partitioner, snapshot_period=2)
  first.start(0)
  assert toy_runs.take_rows(first, 7) == toy_runs.expected_rows(0, 7)
  state = first.state(save_at)
  assert state.position <= save_at
  state.copy_to(tmp_path / "dataset", process=0, processes=1)
  first.close()

  saved = data.DataState.read_from(tmp_path / "dataset", process=0, processes=1)
  second = data.TrainIterator(toy_runs.shuffled_dataset(), partitioner, snapshot_period=2)
  second.start(7, saved)
  assert toy_runs.take_rows(second, 30) == toy_runs.expected_rows(7, 30)
  assert second.state(20).position == 20
  second.close()


def test_processes_trim_a_batch_to_the_longest_text_of_all(partitioner, monkeypatch):
  """The other process has a long text in every third batch."""
  numbers = range(1, 60)

  def gathered(own):
    other = [8 if number % 3 == 0 else 2 for number in itertools.islice(seen, len(own))]
    return np.stack([own, other])

  seen = iter(numbers)
  monkeypatch.setattr(data, "can_trim", lambda: False)
  monkeypatch.setattr(data.multihost_utils, "process_allgather", gathered)
  rows = np.zeros((59, 2, 32), np.int32)
  for number in numbers:
    rows[number - 1, :, : 12 if number % 2 else 3] = number
  dataset = tf.data.Dataset.from_tensor_slices({"inputs": rows}).repeat()
  iterator = data.TrainIterator(dataset, partitioner)
  iterator.start(0)
  for number in range(1, 40):
    tokens = np.asarray(next(iterator)["inputs"])
    width = 32 if number % 3 == 0 else 12 if number % 2 else 8
    np.testing.assert_array_equal(tokens, rows[number - 1, :, :width])
  iterator.close()


def test_a_dataset_whose_state_cannot_be_saved_is_read_again(partitioner):
  def rows():
    for i in range(100):
      yield {"inputs": np.full((2, 8), i + 1, np.int32)}

  spec = {"inputs": tf.TensorSpec([2, 8], tf.int32)}
  dataset = tf.data.Dataset.from_generator(rows, output_signature=spec)
  iterator = data.TrainIterator(dataset, partitioner, snapshot_period=3)
  iterator.start(5)
  assert toy_runs.take_rows(iterator, 3) == [[6, 6], [7, 7], [8, 8]]
  assert iterator.state(8).position == 0
  iterator.close()


def test_errors_of_the_pipeline_reach_the_training_loop(partitioner):
  iterator = data.TrainIterator(toy_runs.shuffled_dataset().take(2), partitioner)
  iterator.start(0)
  toy_runs.take_rows(iterator, 2)
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


# --------------------------------------------------------------------------------------------
# States, read and written as upstream T5X does


def iterate(step, saved=None, **options):
  """Returns a started iterator over the shuffled dataset of toy_runs."""
  iterator = data.TrainIterator(
    toy_runs.shuffled_dataset(),
    partitioning.PjitPartitioner(num_partitions=1),
    snapshot_period=10,
  )
  iterator.start(step, saved, **options)
  return iterator


def test_a_state_without_our_json_is_that_of_its_checkpoint(tmp_path, caplog):
  folder = tmp_path / "checkpoint_7" / "dataset"
  theirs = iter(toy_runs.shuffled_dataset())
  for _ in range(7):
    next(theirs)
  tf.train.Checkpoint(ds=theirs).write(str(folder / "train_ds-000-of-001"))
  saved = data.DataState.read_from(folder, process=0, processes=1)
  assert saved.position == 7
  iterator = iterate(7, saved)
  assert toy_runs.take_rows(iterator, 9) == toy_runs.expected_rows(7, 9)
  iterator.close()
  (folder / "train_ds-000-of-001.index").write_bytes(b"")
  iterator = iterate(7, saved)
  assert toy_runs.take_rows(iterator, 9) == toy_runs.expected_rows(7, 9)
  iterator.close()
  assert "Cannot use the data iterator state" in caplog.text
  # Upstream saves the state of step 0 after reading a batch.
  first = (tmp_path / "checkpoint_7").rename(tmp_path / "checkpoint_0") / "dataset"
  assert data.DataState.read_from(first, process=0, processes=1) is None


@pytest.mark.parametrize("step", [0, 4, 10])
def test_upstream_s_reader_stands_at_the_step_of_our_state(tmp_path, step):
  iterator = iterate(0, snapshot_steps={4})
  toy_runs.take_rows(iterator, 12)
  iterator.state(step).copy_to(tmp_path, process=0, processes=1)
  iterator.close()
  theirs = iter(toy_runs.shuffled_dataset())
  tf.train.Checkpoint(ds=theirs).read(str(tmp_path / "train_ds-000-of-001")).assert_consumed()
  rows = [np.asarray(next(theirs)["inputs"])[:, 0].tolist() for _ in range(5)]
  assert rows == toy_runs.expected_rows(step, 5)


def test_a_run_that_starts_at_a_later_step_restarts_its_data_and_resumes(tmp_path):
  first = iterate(1000, data.DataState(1000, None))
  assert toy_runs.take_rows(first, 3) == toy_runs.expected_rows(0, 3)
  first.state(1003).copy_to(tmp_path, process=0, processes=1)
  first.close()
  second = iterate(1003, data.DataState.read_from(tmp_path, process=0, processes=1))
  assert toy_runs.take_rows(second, 20) == toy_runs.expected_rows(3, 20)
  assert second.state(1020).position == 1020
  second.close()


def test_processes_have_their_folders_where_upstream_looks(tmp_path, caplog):
  iterator = iterate(0)
  iterator.state(0).copy_to(tmp_path, process=1, processes=2)
  iterator.close()
  assert (tmp_path / "process_1-of-2" / "train_ds-001-of-002.index").is_file()
  assert data.DataState.read_from(tmp_path, process=1, processes=2).position == 0
  assert not caplog.records
  assert data.DataState.read_from(tmp_path, process=0, processes=2) is None
  for process, count in ((0, 1), (2, 3)):
    assert data.DataState.read_from(tmp_path, process, count) is None
    assert f"not of {count} processes" in caplog.text
