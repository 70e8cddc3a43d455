import numpy as np
import pytest

from vmsst import errors
from vmsst.files import npz_files


def test_arrays_by_name_and_broken_files(tmp_path):
  path = tmp_path / "x.npz"
  np.savez(path, a=np.arange(3), b=np.eye(2))
  b, a = npz_files.read(path, ["b", "a"])
  np.testing.assert_array_equal(a, np.arange(3))
  np.testing.assert_array_equal(b, np.eye(2))
  with pytest.raises(errors.InputError, match=r"x\.npz: broken .*: delete it and rerun"):
    npz_files.read(path, ["c"])
  path.write_bytes(path.read_bytes()[:-9])
  with pytest.raises(errors.InputError, match=r"x\.npz: broken .*: delete it and rerun"):
    npz_files.read(path, ["a"])
