import os
import subprocess
import sys

from vmsst.io import progress_bar

_LONG_WORK = """
from vmsst.io import progress_bar
progress_bar.LINE_SECONDS = 1e-9
for where in ("terminal", "anywhere", "nowhere"):
  with progress_bar.shown(where):
    for _ in progress_bar.Bar(range(3), desc=where): pass
"""


def test_commands_print_lines_of_progress_where_there_is_no_terminal():
  lines = subprocess.run(
    [sys.executable, "-c", _LONG_WORK], capture_output=True, text=True
  ).stderr.split("\n")
  assert [line.partition(":")[0] for line in lines] == [*["anywhere"] * 3, ""]
  assert "\r" not in "".join(lines)


# Makes progress for longer than the time limit, then opens a FIFO that nobody writes to.
_HANGS = """
import sys, time
from vmsst.io import progress_bar
with progress_bar.watchdog(minutes=60):
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
    # 2.4 s is much longer than a step, so the test passes on a busy machine.
    env={**os.environ, progress_bar.VARIABLE: "0.04"},
    capture_output=True,
    text=True,
    timeout=60,
  )
  assert (done.returncode, done.stdout) == (1, "worked\n")
  assert 'File "<string>", line 10 in <module>' in done.stderr
  assert done.stderr.startswith("Timeout (0:00:02.4")
