import numpy as np
import pytest

from vmsst import errors
from vmsst.io import npy_files


def test_windows_become_the_file_that_numpy_would_write(tmp_path):
  array = np.arange(24, dtype=np.float32).reshape(4, 2, 3)
  rows = array.reshape(8, 3)
  npy_files.write(tmp_path / "a.npy", array.shape, (rows[:5], rows[5:]))
  np.save(tmp_path / "b.npy", array)
  assert (tmp_path / "a.npy").read_bytes() == (tmp_path / "b.npy").read_bytes()
  found = npy_files.open_mapped(tmp_path / "a.npy", (4, 2, "D"))
  assert isinstance(found, np.memmap)
  np.testing.assert_array_equal(found, array)
  with pytest.raises(ValueError, match="vector 2 contains a value that is not finite"):
    npy_files.write(tmp_path / "c.npy", (3, 3), (rows[:2], [[1, np.inf, 1]]))
  for shard, message in (
    ([[1, 2, 3], [1, np.nan, 3]], "vector 1 contains a value that is not finite as float16"),
    ([[1, 2, 1e5]], "vector 0 contains"),  # too large for float16
    (rows[:2, :2], r"the shape must be \[N, 3\], not \(2, 2\)"),
  ):
    with pytest.raises(errors.InputError, match=message):
      npy_files.write(tmp_path / "d.npy", (2, 3), [shard], "float16")


@pytest.mark.parametrize(
  "array", [np.zeros([2, 3]), np.zeros([2, 4], "f4"), np.zeros([2, 3], "f4", "F")]
)
def test_other_arrays_and_files_are_an_error(array, tmp_path):
  np.save(tmp_path / "x.npy", array)
  with pytest.raises(errors.InputError, match=r"x\.npy: vectors must be float32 \[N, 3\] in C"):
    npy_files.open_mapped(tmp_path / "x.npy", ("N", 3))
  (tmp_path / "x.npy").write_bytes(b"something else")
  with pytest.raises(errors.InputError, match=r"x\.npy: not a NumPy file of vectors"):
    npy_files.open_mapped(tmp_path / "x.npy", ("N", 3))


def test_arrays_are_read_by_name(tmp_path):
  path = tmp_path / "x.npz"
  np.savez(path, a=np.arange(3), b=np.eye(2))
  arrays = npy_files.read(path)
  np.testing.assert_array_equal(arrays["a"], np.arange(3))
  np.testing.assert_array_equal(arrays["b"], np.eye(2))
