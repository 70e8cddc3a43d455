import io

import numpy as np
import pytest

from vmsst import errors
from vmsst.vectors import npy_files


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("shape", [(0, 3), (7, 3), (10**9, 1024), (4, 2, 3)])
def test_headers_are_numpy_s_and_of_one_size(shape, dtype):
  header = npy_files.header(shape, dtype)
  assert len(header) == 128
  stream = io.BytesIO(header)
  assert np.lib.format.read_magic(stream) == (1, 0)
  expected = shape, False, np.dtype(dtype).newbyteorder("<")
  assert np.lib.format.read_array_header_1_0(stream) == expected


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


@pytest.mark.parametrize(
  "array",
  [
    np.zeros([2, 3]),
    np.zeros(3, "f4"),
    np.zeros([2, 4], "f4"),
    np.zeros([2, 3], "f4", "F"),
  ],
)
def test_other_arrays_and_files_are_an_error(array, tmp_path):
  np.save(tmp_path / "x.npy", array)
  with pytest.raises(
    errors.InputError, match=r"x\.npy: vectors must be float32 \[N, 3\] in C order"
  ):
    npy_files.open_mapped(tmp_path / "x.npy", ("N", 3))
  (tmp_path / "x.npy").write_bytes(b"something else")
  with pytest.raises(errors.InputError, match=r"x\.npy: not a NumPy file of vectors"):
    npy_files.open_mapped(tmp_path / "x.npy", ("N", 3))
