import numpy as np
import pytest

from vmsst import errors
from vmsst.tasks import global_order


def _rows(order, count, start=0):
  task_N, row_N = order.locate(np.arange(start, start + count))
  return list(zip(task_N.tolist(), row_N.tolist(), strict=True))


def test_an_epoch_has_every_row_once_and_each_another_order():
  counts = (70, 1, 30)
  order = global_order.GlobalOrder(counts, counts, seed=3)
  epochs = [_rows(order, 101, start) for start in (0, 101, 202)]
  whole = [(task, row) for task, count in enumerate(counts) for row in range(count)]
  assert all(sorted(epoch) == whole for epoch in epochs)
  assert len(set(map(tuple, epochs))) == 3
  assert epochs[0] != whole


def test_a_place_is_the_same_in_whatever_order_places_are_asked_for():
  order = global_order.GlobalOrder((50, 20), (3.5, 1.25), seed=1)
  rows = _rows(order, 3000)
  places = np.random.default_rng(0).permutation(3000)
  assert list(zip(*map(np.ndarray.tolist, order.locate(places)), strict=True)) == [
    rows[place] for place in places
  ]
  assert rows == _rows(global_order.GlobalOrder((50, 20), (3.5, 1.25), seed=1), 3000)
  assert rows != _rows(global_order.GlobalOrder((50, 20), (3.5, 1.25), seed=2), 3000)


def test_tasks_come_at_their_rates_in_no_pattern():
  order = global_order.GlobalOrder((10, 10, 10), (0.5, 0.25, 1.75), seed=0)
  task_N, row_N = order.locate(np.arange(8000))
  share = np.bincount(task_N) / 8000
  np.testing.assert_allclose(share, [0.2, 0.1, 0.7], atol=0.02)
  # Neither a row of the batches (every 64th place) nor a batch differs more than by chance.
  by_lane = (task_N.reshape(-1, 64) == 2).mean(axis=0)
  by_batch = (task_N.reshape(-1, 64) == 2).mean(axis=1)
  assert by_lane.std() == pytest.approx((0.21 / 125) ** 0.5, rel=0.35)
  assert by_batch.std() == pytest.approx((0.21 / 64) ** 0.5, rel=0.35)
  assert np.bincount(row_N).min() > 700


@pytest.mark.parametrize("count", [1, 2, 3, 16, 17, 100, 1000])
def test_a_permutation_is_one_and_like_any_other(count):
  index_N = np.arange(count)
  found = np.array(
    [
      global_order.permuted(index_N, np.full(count, count), np.uint64(5), np.full(count, epoch))
      for epoch in range(600)
    ]
  )
  assert (np.sort(found, axis=1) == index_N).all()
  if count > 2:
    # The number of fixed points of a random permutation: mean 1, variance 1.
    fixed = (found == index_N).sum(axis=1)
    assert fixed.mean() == pytest.approx(1, abs=0.2)
    assert fixed.var() == pytest.approx(1, abs=0.35)
    # Where the first index goes: uniform.
    spread = np.bincount(found[:, 0] // (count // 10 if count > 20 else 1))
    assert spread.min() > 600 / len(spread) * 0.5


def test_rates_are_exact_after_a_period():
  order = global_order.GlobalOrder((5, 5), (3, 13), seed=0)
  task_N, _ = order.locate(np.arange(16 * 5))
  for start in range(0, 80, 16):
    assert np.bincount(task_N[start : start + 16]).tolist() == [3, 13]
  rare = global_order.GlobalOrder((5, 5), (1e-9, 1.5), seed=0)
  assert rare.quotas == (1, 1 << 20)


def test_without_a_seed_rows_keep_their_order():
  order = global_order.GlobalOrder((3,), (3,), seed=None)
  assert _rows(order, 7) == [(0, row) for row in (0, 1, 2, 0, 1, 2, 0)]


@pytest.mark.parametrize("counts", [(), (5, 0), (1 << 50,)])
def test_counts_that_cannot_be_are_refused(counts):
  with pytest.raises(errors.InputError, match="each needs some"):
    global_order.GlobalOrder(counts, counts, seed=0)
