"""The folder of a run: one writer, and errors that name it."""

import errno
import subprocess
import sys

import commands
import memory_store
import pytest

from vmsst import storage
from vmsst.errors import InputError
from vmsst.train import model_dir

HOLDER = """
import sys, time
from vmsst.train import model_dir
with model_dir.opened("MODEL_DIR", sys.argv[1], claim=True):
  print("holds", flush=True)
  time.sleep(600)
"""


def test_two_runs_cannot_share_a_local_folder(tmp_path):
  folder = str(tmp_path / "locked")
  options = {"env": commands.environment(), "stdout": subprocess.PIPE, "text": True}
  with subprocess.Popen([sys.executable, "-c", HOLDER, folder], **options) as holder:
    assert holder.stdout.readline() == "holds\n"
    opened = model_dir.opened("MODEL_DIR", folder, claim=True)
    with pytest.raises(InputError, match=f"{folder} is being written by another command"), opened:
      pass
    holder.kill()
  with model_dir.opened("MODEL_DIR", folder, claim=True) as check:  # the first was killed
    check()
  assert storage.names(folder) == set()


def test_a_run_that_starts_later_takes_over_a_folder_in_a_store(monkeypatch):
  memory_store.installed(monkeypatch)
  with model_dir.opened("MODEL_DIR", "gs://bucket/run", claim=True) as check_first:
    check_first()
    with model_dir.opened("MODEL_DIR", "gs://bucket/run", claim=True) as check_second:
      check_second()
      with pytest.raises(InputError, match="gs://bucket/run now belongs to another run"):
        check_first()
    storage.remove("gs://bucket/run/run_id")
    with pytest.raises(InputError, match="another run"):
      check_second()


@pytest.mark.parametrize(
  ("folder", "message"),
  [
    ("relative/run", "must be an absolute path, got 'relative/run'"),
    ("s3://bucket/run", "s3://bucket/run: checkpoints cannot be written to s3://"),
  ],
)
def test_a_folder_that_cannot_be_used_is_named(folder, message):
  with pytest.raises(InputError, match=message), model_dir.opened("MODEL_DIR", folder, claim=True):
    pass


def test_a_full_disk_is_named_with_the_folder(tmp_path):
  opened = model_dir.opened("MODEL_DIR", str(tmp_path))
  with pytest.raises(InputError, match=f"{tmp_path}: No space left on device; fix"), opened:
    raise RuntimeError("TensorStore: No space left on device [28]")
  opened = model_dir.opened("MODEL_DIR", str(tmp_path))
  with pytest.raises(InputError, match="/x/events: No space left"), opened:
    raise OSError(errno.ENOSPC, "No space left on device", "/x/events")
