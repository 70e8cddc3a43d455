import os

import line_files
import pytest

from vmsst.jobs import locks


def test_a_lock_keeps_others_out_and_leaves_nothing(tmp_path):
  path = str(tmp_path / "lock")
  with (
    locks.held(path),
    pytest.raises(locks.InUseError, match=rf"process {os.getpid()} on "),
    locks.held(path),
  ):
    pass
  assert list(tmp_path.iterdir()) == []
  (tmp_path / "lock").symlink_to(tmp_path / "foreign")
  with pytest.raises(OSError, match="symbolic"), locks.held(path):
    pass
  assert not (tmp_path / "foreign").exists()
  full = locks.held(str(tmp_path / "full"))
  with line_files.largest_file(0), pytest.raises(OSError, match="File too large"), full:
    pass
  assert not (tmp_path / "full").exists()
