"""Data iterator states, read and written as upstream T5X does."""

import numpy as np
import pytest
import shuffled_rows
import tensorflow as tf

from vmsst.launch.runtime import data, partitioning

PARTITIONER = partitioning.PjitPartitioner(num_partitions=1)


def iterate(step, saved=None, **options):
  """Returns a started iterator over the dataset of shuffled_rows."""
  iterator = data.TrainIterator(shuffled_rows.shuffled_dataset(), PARTITIONER, snapshot_period=10)
  iterator.start(step, saved, **options)
  return iterator


def test_a_state_without_our_json_is_that_of_its_checkpoint(tmp_path):
  folder = tmp_path / "checkpoint_7" / "dataset"
  theirs = iter(shuffled_rows.shuffled_dataset())
  for _ in range(7):
    next(theirs)
  tf.train.Checkpoint(ds=theirs).write(str(folder / "train_ds-000-of-001"))
  saved = data.DataState.read_from(folder, process=0, processes=1)
  assert saved.position == 7
  iterator = iterate(7, saved)
  assert shuffled_rows.take(iterator, 9) == shuffled_rows.expected(7, 9)
  iterator.close()
  # Upstream saves the state of step 0 after reading a batch.
  first = (tmp_path / "checkpoint_7").rename(tmp_path / "checkpoint_0") / "dataset"
  assert data.DataState.read_from(first, process=0, processes=1) is None


@pytest.mark.parametrize("step", [0, 4, 10])
def test_upstream_s_reader_stands_at_the_step_of_our_state(tmp_path, step):
  iterator = iterate(0, snapshot_steps={4})
  shuffled_rows.take(iterator, 12)
  iterator.state(step).copy_to(tmp_path, process=0, processes=1)
  iterator.close()
  theirs = iter(shuffled_rows.shuffled_dataset())
  tf.train.Checkpoint(ds=theirs).read(str(tmp_path / "train_ds-000-of-001")).assert_consumed()
  rows = [np.asarray(next(theirs)["inputs"])[:, 0].tolist() for _ in range(5)]
  assert rows == shuffled_rows.expected(step, 5)


def test_a_run_that_starts_at_a_later_step_restarts_its_data_and_resumes(tmp_path):
  first = iterate(1000, data.DataState(1000, None))
  assert shuffled_rows.take(first, 3) == shuffled_rows.expected(0, 3)
  first.state(1003).copy_to(tmp_path, process=0, processes=1)
  first.close()
  second = iterate(1003, data.DataState.read_from(tmp_path, process=0, processes=1))
  assert shuffled_rows.take(second, 20) == shuffled_rows.expected(3, 20)
  assert second.state(1020).position == 1020
  second.close()


def test_processes_have_their_folders_where_upstream_looks(tmp_path):
  iterator = iterate(0)
  iterator.state(0).copy_to(tmp_path, process=1, processes=2)
  iterator.close()
  assert (tmp_path / "process_1-of-2" / "train_ds-001-of-002.index").is_file()
  assert data.DataState.read_from(tmp_path, process=1, processes=2).position == 0
  assert data.DataState.read_from(tmp_path, process=0, processes=2) is None
