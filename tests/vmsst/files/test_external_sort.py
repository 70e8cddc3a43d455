import numpy as np
import pytest

from vmsst.files import external_sort


@pytest.mark.parametrize("count", [0, 1, 7, 500])
def test_records_are_sorted_and_few_are_in_memory(tmp_path, monkeypatch, count):
  monkeypatch.setattr(external_sort, "_RECORDS", 64)
  rng = np.random.default_rng(count)
  record_N3 = rng.integers(0, 4, size=(count, 3)).astype(np.uint64)
  record_N3[:, 2] = rng.integers(0, 1 << 63, size=count)
  record_N3[::5] = np.array([2, 1, 256], np.uint64)  # Equal ones, whose last byte is 0.
  with external_sort.Records(3, tmp_path) as records:
    for start in range(0, count, 11):
      records.add(record_N3[start : start + 11])
    blocks = list(records.sorted())
  assert [row for block in blocks for row in block.tolist()] == sorted(record_N3.tolist())
  assert max(map(len, blocks), default=0) <= 64 + 64
  assert not list(tmp_path.iterdir())


def test_scores_become_numbers_in_the_opposite_order_and_back():
  score_N = np.array([0.5, -np.inf, np.inf, -0.0, 0.0, 1e-310, -2.5, 3.0, -1e300])
  number_N = external_sort.descending(score_N)
  np.testing.assert_array_equal(
    np.argsort(number_N, kind="stable"), np.argsort(-score_N, kind="stable")
  )
  np.testing.assert_array_equal(external_sort.scores(number_N), score_N)
