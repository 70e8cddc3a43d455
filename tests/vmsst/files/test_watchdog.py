import os
import subprocess
import sys

import pytest

from vmsst import errors
from vmsst.files import watchdog

# Works for five limits, then opens a FIFO that nobody writes to.
_HANGS = """
import sys, time
from vmsst.files import progress_bar, watchdog
with watchdog.watching("a command", minutes=60):
  with progress_bar.Bar(total=10, disable=True) as bar:
    for _ in range(10):
      time.sleep(0.15)
      bar.update()
  print("worked", flush=True)
  open(sys.argv[1]).read()
"""


def test_a_command_that_hangs_ends_with_its_stack_traces(tmp_path):
  os.mkfifo(tmp_path / "fifo")
  done = subprocess.run(
    [sys.executable, "-c", _HANGS, tmp_path / "fifo"],
    env={**os.environ, watchdog.VARIABLE: "0.005"},  # 0.3 s
    capture_output=True,
    text=True,
    timeout=60,
  )
  assert (done.returncode, done.stdout) == (1, "worked\n")
  assert 'File "<string>", line 10 in <module>' in done.stderr
  assert done.stderr.splitlines()[-1].startswith("a command: error: no progress for 0.005 minutes")


@pytest.mark.parametrize("value", ["-1", "nan", "inf", "an hour"])
def test_other_limits_than_minutes_are_refused(monkeypatch, value):
  monkeypatch.setenv(watchdog.VARIABLE, value)
  with (
    pytest.raises(errors.InputError, match=f"{watchdog.VARIABLE} is '{value}'"),
    watchdog.watching("a command", minutes=1),
  ):
    pass


@pytest.mark.slow
def test_a_run_whose_data_hangs_ends(tmp_path):
  os.mkfifo(tmp_path / "x.de-en.tsv")
  arguments = ["--gin_file=quickstart.gin", "--gin_file=data/files.gin"]
  arguments.append(f"--gin.PATTERNS=['{tmp_path / '*.tsv'}']")
  arguments.append(f"--gin.MODEL_DIR='{tmp_path / 'run'}'")
  done = subprocess.run(
    [sys.executable, "-m", "vmsst.launch.main", "train", *arguments],
    env={**os.environ, watchdog.VARIABLE: "0.2"},
    capture_output=True,
    text=True,
    timeout=300,
  )
  assert done.returncode == 1
  assert "Thread 0x" in done.stderr
  assert "t5x: error: no progress for 0.2 minutes" in done.stderr.splitlines()[-1]
