"""Data iterator states, read and written as upstream T5X does."""

import dataclasses
import json
import logging

import numpy as np
import pytest
import shuffled_rows
import tensorflow as tf
import toy_runs

from vmsst import errors
from vmsst.launch.runtime import data, partitioning
from vmsst.tasks import sharded_batches

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


@pytest.fixture(scope="module")
def lanes_of(tmp_path_factory):
  """A function that returns the dataset of some lanes."""
  cfg = toy_runs.sharded_config(tmp_path_factory.mktemp("shards"))
  converter = toy_runs.ToyModel.FEATURE_CONVERTER_CLS
  whole = sharded_batches.get_sharded_batches(cfg, 0, 1, converter)

  def make(first=0, count=8):
    return dataclasses.replace(whole, start=whole.start.take(first, count))

  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(sharded_batches, "READ_AHEAD", 64)
    patch.setattr(sharded_batches, "_CHUNK", 16)
    yield make


def _started(dataset, step=0, saved=None, period=10):
  iterator = data.TrainIterator(dataset, PARTITIONER, snapshot_period=period)
  iterator.start(step, saved)
  return iterator


def _rows(iterator, count):
  return [np.asarray(next(iterator)["inputs"]).tolist() for _ in range(count)]


def _taken(batches, first, count):
  """Rows of batches, without the padding of the other rows."""
  return [[[x for x in row if x] for row in batch[first : first + count]] for batch in batches]


def test_lanes_are_saved_at_every_step_and_resume_without_reading_again(
  lanes_of, tmp_path, monkeypatch, caplog
):
  caplog.set_level(logging.INFO)
  first = _started(lanes_of())
  expected = _rows(first, 90)
  state = first.state(83)
  assert state.position == 83
  state.copy_to(tmp_path, process=0, processes=1)
  first.close()
  # Each of four processes reads it, and reads no row before.
  starts = []
  start = sharded_batches.ShardedIterator._start
  monkeypatch.setattr(
    sharded_batches.ShardedIterator,
    "_start",
    lambda self, state: (starts.append(state.passed), start(self, state)),
  )
  saved = data.DataState.read_from(tmp_path, process=3, processes=4)
  later = _started(lanes_of(6, 2), 83, saved)
  assert _taken(_rows(later, 7), 0, 2) == _taken(expected[83:], 6, 2)
  later.close()
  assert starts[-1] == tuple(state.lanes["passed"][6:])
  assert "Skipping" not in caplog.text


def test_lanes_of_several_processes_are_joined(lanes_of, tmp_path):
  for process in range(2):
    iterator = _started(lanes_of(4 * process, 4))
    _rows(iterator, 9)
    saved = dataclasses.replace(iterator.state(7), whole=False)
    saved.copy_to(tmp_path, process, 2)
    iterator.close()
  data.DataState.join_lanes(tmp_path)
  assert [path.name for path in tmp_path.rglob("*")] == ["train_ds-000-of-001.json"]
  whole = _started(lanes_of())
  expected = _rows(whole, 9)
  assert data.DataState.read_from(tmp_path, 0, 3) == whole.state(7)
  whole.close()
  resumed = _started(lanes_of(), 7, data.DataState.read_from(tmp_path, 0, 1))
  assert _rows(resumed, 2) == expected[7:]
  resumed.close()


def test_states_of_other_kinds_are_replayed(lanes_of, tmp_path, caplog):
  lanes, rows = _started(lanes_of()), iterate(0)
  expected = _rows(lanes, 6)
  shuffled_rows.take(rows, 6)
  for name, iterator in (("lanes", lanes), ("rows", rows)):
    iterator.state(4).copy_to(tmp_path / name, 0, 1)
    iterator.close()
  again = _started(lanes_of(), 5, data.DataState.read_from(tmp_path / "rows", 0, 1))
  assert _rows(again, 1) == expected[5:]
  again.close()
  theirs = iterate(5, data.DataState.read_from(tmp_path / "lanes", 0, 1))
  assert shuffled_rows.take(theirs, 3) == shuffled_rows.expected(5, 3)
  theirs.close()
  assert "of sharded batches; this run reads others" in caplog.text


@pytest.mark.parametrize("lanes", [3, {"passed": [1]}, {}])
def test_a_damaged_state_of_lanes_is_named(tmp_path, lanes):
  path = tmp_path / "train_ds-000-of-001.json"
  path.write_text(json.dumps({"batches": 3, "saved": False, "whole_batches": True, "lanes": lanes}))
  with pytest.raises(errors.InputError, match=rf"{path} is damaged; delete the folder"):
    data.DataState.read_from(tmp_path, 0, 1)
