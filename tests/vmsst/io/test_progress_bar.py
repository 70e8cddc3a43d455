import subprocess
import sys

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
