import os
import subprocess
import sys

import pytest

from vmsst import errors
from vmsst.io import watchdog

# Works for longer than the limit, then opens a FIFO that nobody writes to.
_HANGS = """
import sys, time
from vmsst.io import progress_bar, watchdog
with watchdog.watching(minutes=60):
  with progress_bar.Bar(total=5, disable=True) as bar:
    for _ in range(5):
      time.sleep(0.6)
      bar.update()
  print("worked", flush=True)
  open(sys.argv[1]).read()
"""


def test_a_command_that_hangs_ends_with_its_stack_traces(tmp_path):
  os.mkfifo(tmp_path / "fifo")
  done = subprocess.run(
    [sys.executable, "-c", _HANGS, tmp_path / "fifo"],
    # 2.4 s: much longer than a step, for a busy machine
    env={**os.environ, watchdog.VARIABLE: "0.04"},
    capture_output=True,
    text=True,
    timeout=60,
  )
  assert (done.returncode, done.stdout) == (1, "worked\n")
  assert 'File "<string>", line 10 in <module>' in done.stderr
  assert done.stderr.startswith("Timeout (0:00:02.4")


@pytest.mark.parametrize("value", ["nan", "an hour"])
def test_other_limits_than_minutes_are_refused(monkeypatch, value):
  monkeypatch.setenv(watchdog.VARIABLE, value)
  with pytest.raises(errors.InputError, match=f"{watchdog.VARIABLE} is '{value}'"):
    watchdog.watching(minutes=1).__enter__()
