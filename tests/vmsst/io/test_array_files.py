import line_files
import numpy as np
import pytest

from vmsst import errors
from vmsst.io import array_files


def test_windows_become_the_file_that_numpy_would_write(tmp_path):
  array = np.arange(24, dtype=np.float32).reshape(4, 2, 3)
  rows = array.reshape(8, 3)
  array_files.write(tmp_path / "a.npy", array.shape, (rows[:5], rows[5:]))
  np.save(tmp_path / "b.npy", array)
  assert (tmp_path / "a.npy").read_bytes() == (tmp_path / "b.npy").read_bytes()
  found = array_files.open_mapped(tmp_path / "a.npy", (4, 2, "D"))
  assert isinstance(found, np.memmap)
  np.testing.assert_array_equal(found, array)
  for shard, message in (
    ([[1, 2, 3], [1, np.nan, 3]], "vector 1 contains a value that is not finite as float16"),
    ([[1, 2, 1e5]], "vector 0 contains"),  # too large for float16
    (rows[:2, :2], r"the shape must be \[N, 3\], not \(2, 2\)"),
  ):
    with pytest.raises(errors.InputError, match=message):
      array_files.write(tmp_path / "d.npy", (2, 3), [shard], "float16")


@pytest.mark.parametrize(
  "array", [np.zeros([2, 3]), np.zeros([2, 4], "f4"), np.zeros([2, 3], "f4", "F")]
)
def test_other_arrays_and_files_are_an_error(array, tmp_path):
  np.save(tmp_path / "x.npy", array)
  with pytest.raises(errors.InputError, match=r"x\.npy: vectors must be float32 \[N, 3\] in C"):
    array_files.open_mapped(tmp_path / "x.npy", ("N", 3))
  (tmp_path / "x.npy").write_bytes(b"something else")
  with pytest.raises(errors.InputError, match=r"x\.npy: not a NumPy file with vectors"):
    array_files.open_mapped(tmp_path / "x.npy", ("N", 3))


def test_scores_become_numbers_in_the_opposite_order_and_back():
  score_N = np.array([0.5, -np.inf, np.inf, -0.0, 0.0, 1e-310, -2.5, 3.0, -1e300])
  number_N = array_files.descending_keys(score_N)
  np.testing.assert_array_equal(
    np.argsort(number_N, kind="stable"), np.argsort(-score_N, kind="stable")
  )
  np.testing.assert_array_equal(array_files.scores(number_N), score_N)


@pytest.mark.parametrize("most", [0, 1 << 20])
def test_arrays_are_those_of_numpy_in_memory_and_in_files(monkeypatch, tmp_path, most):
  monkeypatch.setattr(array_files, "_IN_MEMORY", most)
  monkeypatch.setattr(array_files, "_WRITTEN", bytes(100))
  monkeypatch.setattr(array_files.tempfile, "tempdir", str(tmp_path))
  for value, dtype in ((0, np.uint8), (-np.inf, np.float32), (True, bool), (-1, np.int64)):
    array_NK = array_files.full((37, 5), value, dtype)
    np.testing.assert_array_equal(array_NK, np.full((37, 5), value, dtype), strict=True)
    array_NK[3:5] = 1  # The array is writable.
    assert array_NK[4, 4] == 1
  for count in (0, 1, 1000):
    row_N = np.arange(count, dtype=np.float64)
    found_N = array_files.concatenate(iter(np.array_split(row_N, 7)), np.int64)
    np.testing.assert_array_equal(found_N, row_N.astype(np.int64), strict=True)
  assert not list(tmp_path.iterdir())


def test_large_arrays_take_no_memory_of_their_own(monkeypatch):
  monkeypatch.setattr(array_files, "_IN_MEMORY", 1000)
  array_N = array_files.full(1001, 0, np.uint8)
  joined_N = array_files.concatenate([np.zeros(1001)], np.uint8)
  for array in (array_N, joined_N):
    with open("/proc/self/maps", encoding="utf-8") as maps:
      start = f"{array.ctypes.data:x}-"
      (line,) = (line for line in maps if line.startswith(start))
    assert "(deleted)" in line  # A file without a name.


def test_a_full_disk_is_an_error_before_the_array_is_used():
  with line_files.largest_file(1 << 21), pytest.raises(OSError, match="File too large"):
    array_files.full(1 << 22, 0, np.uint8)
