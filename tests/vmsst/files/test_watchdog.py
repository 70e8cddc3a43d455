import os
import subprocess
import sys

import pytest

from vmsst import errors
from vmsst.files import watchdog

# Works for more than the limit, then opens a FIFO that nobody writes to.
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
    env={**os.environ, watchdog.VARIABLE: "0.02"},  # 1.2 s
    capture_output=True,
    text=True,
    timeout=60,
  )
  assert (done.returncode, done.stdout) == (1, "worked\n")
  assert 'File "<string>", line 10 in <module>' in done.stderr
  assert done.stderr.splitlines()[-1].startswith("a command: error: no progress for 0.02 minutes")


@pytest.mark.parametrize("value", ["-1", "nan", "inf", "an hour"])
def test_other_limits_than_minutes_are_refused(monkeypatch, value):
  monkeypatch.setenv(watchdog.VARIABLE, value)
  with (
    pytest.raises(errors.InputError, match=f"{watchdog.VARIABLE} is '{value}'"),
    watchdog.watching("a command", minutes=1),
  ):
    pass


@pytest.mark.parametrize(
  ("module", "arguments"),
  [
    ("vmsst.launch.main", ["train", "--gin_file=quickstart.gin"]),
    ("vmsst.cli", ["embed", "no_run", "texts.txt", "vectors"]),
  ],
)
def test_commands_are_watched(tmp_path, module, arguments):
  (tmp_path / "texts.txt").touch()
  done = subprocess.run(
    [sys.executable, "-m", module, *arguments],
    env={**os.environ, watchdog.VARIABLE: "0.0005"},  # 30 ms, less than an import of JAX
    capture_output=True,
    text=True,
    timeout=60,
    cwd=tmp_path,
  )
  assert done.returncode == 1
  name = {"vmsst.cli": "vmsst"}.get(module, "t5x")
  assert done.stderr.splitlines()[-1].startswith(f"{name}: error: no progress for 0.0005 minutes")
