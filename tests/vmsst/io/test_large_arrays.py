import line_files
import numpy as np
import pytest

from vmsst.io import large_arrays


def test_scores_become_numbers_in_the_opposite_order_and_back():
  score_N = np.array([0.5, -np.inf, np.inf, -0.0, 0.0, 1e-310, -2.5, 3.0, -1e300])
  number_N = large_arrays.descending_keys(score_N)
  np.testing.assert_array_equal(
    np.argsort(number_N, kind="stable"), np.argsort(-score_N, kind="stable")
  )
  np.testing.assert_array_equal(large_arrays.scores(number_N), score_N)


@pytest.mark.parametrize("most", [0, 1 << 20])
def test_arrays_are_those_of_numpy_in_memory_and_in_files(monkeypatch, tmp_path, most):
  monkeypatch.setattr(large_arrays, "_IN_MEMORY", most)
  monkeypatch.setattr(large_arrays, "_WRITTEN", bytes(100))
  monkeypatch.setattr(large_arrays.tempfile, "tempdir", str(tmp_path))
  for value, dtype in ((0, np.uint8), (-np.inf, np.float32), (True, bool), (-1, np.int64)):
    array_NK = large_arrays.full((37, 5), value, dtype)
    np.testing.assert_array_equal(array_NK, np.full((37, 5), value, dtype), strict=True)
    array_NK[3:5] = 1  # It can be changed.
    assert array_NK[4, 4] == 1
  for count in (0, 1, 1000):
    row_N = np.arange(count, dtype=np.float64)
    found_N = large_arrays.concatenate(iter(np.array_split(row_N, 7)), np.int64)
    np.testing.assert_array_equal(found_N, row_N.astype(np.int64), strict=True)
  assert not list(tmp_path.iterdir())


def test_large_arrays_take_no_memory_of_their_own(monkeypatch):
  monkeypatch.setattr(large_arrays, "_IN_MEMORY", 1000)
  array_N = large_arrays.full(1001, 0, np.uint8)
  joined_N = large_arrays.concatenate([np.zeros(1001)], np.uint8)
  for array in (array_N, joined_N):
    with open("/proc/self/maps", encoding="utf-8") as maps:
      start = f"{array.ctypes.data:x}-"
      (line,) = (line for line in maps if line.startswith(start))
    assert "(deleted)" in line  # A file without a name.


def test_a_full_disk_is_an_error_before_the_array_is_used():
  with line_files.largest_file(1 << 21), pytest.raises(OSError, match="File too large"):
    large_arrays.full(1 << 22, 0, np.uint8)
