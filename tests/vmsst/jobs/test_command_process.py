"""Signals, streams and hanging file systems of a command."""

import os
import re
import signal
import subprocess
import sys

import pytest

from vmsst import errors
from vmsst.io import watchdog

# Runs a body as a command does; `ready` reports that a signal may come.
_COMMAND = """
import sys, time
from vmsst.jobs import command_process
def wait():
  for _ in range(600):  # A signal just before a sleep does not shorten it.
    time.sleep(0.1)
def ready():
  sys.__stdout__.write("ready\\n")
  sys.__stdout__.flush()
  wait()
with command_process.CommandProcess("it", owns_process=True) as process:
{body}
sys.exit(process.status)
"""


def start(folder, body, **options):
  """Starts a Python process that runs a body as a command."""
  lines = "".join(f"  {line}\n" for line in body.strip().splitlines())
  code = _COMMAND.format(body=lines)
  outputs = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
  return subprocess.Popen([sys.executable, "-c", code], cwd=folder, **outputs)


def run(folder, body, **options):
  """Runs a body as a command; returns its exit status, standard output and standard error."""
  process = start(folder, body, **options)
  output, messages = process.communicate(timeout=60)
  return process.returncode, output, messages


_OWNED = "from vmsst.jobs import work_folders\nwith work_folders.owned('out'):"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize(
  ("body", "status", "message"),
  [
    # While a library is imported, the signal ends the process.
    ("import slow", lambda number: -number, ""),
    (f"{_OWNED} ready()", lambda number: 128 + number, "it: {}\n"),
    ("ready()", lambda number: 128 + number, "it: {}\n"),
    ("process.hint = '; rerun'\nready()", lambda number: 128 + number, "it: {}; rerun\n"),
    # Libraries drop exceptions, or raise others.
    ("try: ready()\nexcept BaseException: pass", lambda n: 128 + n, "it: {}\n"),
    ("try: ready()\nexcept BaseException as e: kept = e", lambda n: 128 + n, "it: {}\n"),
    ("try: ready()\nexcept BaseException as e: int('x')", lambda n: 128 + n, "it: {}\n"),
  ],
)
def test_a_signal_ends_a_command_with_one_line(number, body, status, message, tmp_path):
  (tmp_path / "slow.py").write_text("import __main__\n__main__.ready()\n")
  process = start(tmp_path, body)
  assert process.stdout.readline() == b"ready\n"
  process.send_signal(number)
  _, shown = process.communicate(timeout=60)
  name = {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated"}[number]
  assert (process.returncode, shown.decode()) == (status(number), message.format(name))
  assert {path.name for path in tmp_path.iterdir()} <= {"slow.py", "__pycache__"}


@pytest.mark.parametrize("module", ["vmsst.cli", "vmsst.launch.main"])
def test_ctrl_c_ends_the_import_of_a_command(module, tmp_path):
  """The first import after the signal handler is set takes long."""
  (tmp_path / "argparse.py").write_text("import time\nprint('ready', flush=True)\ntime.sleep(60)\n")
  code = f"import sys; sys.path.insert(0, '.'); import {module}"
  with subprocess.Popen(
    [sys.executable, "-c", code], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE
  ) as process:
    assert process.stdout.readline() == b"ready\n"
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=60)[1] == b""
  assert process.returncode == -signal.SIGINT


_WRITES_FILE = """
from vmsst.io import progress_bar
for _ in progress_bar.Bar(range(3), disable=False): pass
print('done')
open('file', 'w').write('content')
"""

_HELP = "import argparse\nargparse.ArgumentParser().parse_args(['--help'])"

_LINES = """
from vmsst.cli import shared_options
shared_options.write_lines(iter(['x'] * 9))
"""

_FULL = "it: error: [Errno 28] No space left on device: 'standard output'\n"

_CLOSED = "it: error: [Errno 9] Bad file descriptor: 'standard output'\n"


@pytest.mark.parametrize(
  ("streams", "body", "status", "output", "message"),
  [
    # A file must not become standard error, nor a progress bar fail.
    ("2>&-", _WRITES_FILE, 0, "done\n", ""),
    ("2>/dev/full", _WRITES_FILE, 0, "done\n", ""),
    ("2>&-", "print('x')\nraise OSError('no')", 1, "x\n", ""),
    ("2>/dev/full", "raise OSError('no')", 1, "", ""),
    (">&-", "print('x')", 1, "", _CLOSED),
    (">&-", "raise OSError('no')", 1, "", "it: error: no\n"),
    (">/dev/full", "print('x')", 1, "", _FULL),
    (">/dev/full", "print('x' * 99999)", 1, "", _FULL),
    (">/dev/full", _HELP, 1, "", _FULL),
    (">/dev/full", _LINES, 1, "", _FULL),
    (">&-", _LINES, 1, "", _CLOSED),
    ("", _HELP, 0, "usage", ""),
    ("<&-", "print('x')", 0, "x\n", ""),
    ("| head -1", "for _ in range(99999): print('x')", 1, "x\n", ""),
  ],
)
def test_closed_and_full_streams_do_not_change_the_outcome(
  streams, body, status, output, message, tmp_path
):
  if "/dev/full" in streams and not os.path.exists("/dev/full"):
    pytest.skip("no /dev/full")
  (tmp_path / "command.py").write_text(
    _COMMAND.format(body="".join(f"  {line}\n" for line in body.splitlines()))
  )
  done = subprocess.run(
    ["bash", "-c", f"'{sys.executable}' command.py {streams}; exit ${{PIPESTATUS[0]}}"],
    cwd=tmp_path,
    capture_output=True,
    text=True,
    timeout=60,
  )
  assert done.returncode == status
  assert done.stdout.startswith(output)
  assert done.stderr.startswith(message)
  assert (done.stderr.count("\n") == 1) if message else ("Traceback" not in done.stderr)
  if body == _WRITES_FILE:
    assert (tmp_path / "file").read_text() == "content"


_NAME = r"""caf\udce9 \x1b]0;title\x07 \x9b2J \r\ud800"""
_FORGED = r"""a\nit: error: forged\n s3://key:se/cret@bucket https://h/x?sig=4f"""

_SHOWN = r"caf\xe9 \x1b]0;title\x07 \x9b2J \x0d\ud800"


@pytest.mark.parametrize(
  ("body", "stream", "status"),
  [
    ("print(name)", 1, 0),
    ("print(name, file=sys.stderr)", 2, 0),
    ("raise OSError(name)", 2, 1),
    ("from vmsst import errors\nraise errors.InputError(name)", 2, 1),
    ("raise RuntimeError(name)", 2, 1),
    ("import warnings\nwarnings.warn(name)", 2, 0),
    ("from absl import logging\nlogging.warning(name)", 2, 0),
    ("import logging\nlogging.warning(name)", 2, 0),
    (
      "from vmsst.io import progress_bar\n"
      "for _ in progress_bar.Bar(range(3), desc=name, position=1, disable=False): pass",
      2,
      0,
    ),
  ],
)
def test_names_cannot_control_a_terminal(body, stream, status, tmp_path):
  done = run(tmp_path, f'name = "{_NAME}"\n{body}')
  assert done[0] == status
  assert _SHOWN in done[stream].decode()
  shown = done[stream].replace(b"\x1b[A", b"")  # of the progress bar
  assert not {*range(8), *range(11, 13), *range(14, 32), 0x7F} & {*shown}


@pytest.mark.parametrize(
  "body",
  [
    "raise OSError(name)",
    "from vmsst import errors\nraise errors.InputError(name)",
    "print(f'it: note: {name}', file=sys.stderr)",
    "import logging\nlogging.basicConfig(format='it: note: %(message)s')\nlogging.warning(name)",
    "import argparse\nargparse.ArgumentParser(prog='it', usage='').parse_args([name])",
  ],
)
def test_a_message_is_one_line_without_credentials(body, tmp_path):
  _, _, messages = run(tmp_path, f'name = "{_FORGED}"\n{body}')
  lines = messages.decode().splitlines()
  assert [line[:3] for line in lines if line not in ("", "usage: ")] == ["it:"]
  assert not {"key", "se/cret", "4f"} & {*re.split(r"[:@=]", lines[-1])}
  assert lines[-1].endswith(r"a\x0ait: error: forged\x0a s3://***@bucket https://h/x?sig=***")


_LONG_WORK = """
from vmsst.io import progress_bar
progress_bar.LINE_SECONDS = 1e-9
for where in ("terminal", "anywhere", "nowhere"):
  with progress_bar.shown(where):
    for _ in progress_bar.Bar(range(3), desc=where): pass
"""


def test_commands_print_lines_of_progress_where_there_is_no_terminal(tmp_path):
  lines = run(tmp_path, _LONG_WORK)[2].decode().split("\n")
  assert [line.partition(":")[0] for line in lines] == [*["anywhere"] * 3, ""]
  assert "\r" not in "".join(lines)


def test_text_is_escaped_for_the_encoding_of_a_stream_and_bytes_are_kept(tmp_path):
  body = "print('\u00e9')\nsys.stdout.flush()\nsys.stdout.buffer.write(b'\\x1b\\xe9')"
  environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
  assert run(tmp_path, body, env=environment) == (0, b"\\xe9\n\x1b\xe9", b"")


def test_a_caller_gets_its_streams_and_signal_handlers_back():
  from vmsst.jobs import command_process

  before = sys.stdout, sys.stderr, *map(signal.getsignal, (signal.SIGINT, signal.SIGTERM))
  with command_process.CommandProcess("it", owns_process=False) as process:
    assert sys.stdout is not before[0]
    raise OSError("no")
  assert process.status == 1
  with pytest.raises(ZeroDivisionError), command_process.CommandProcess("it", owns_process=False):
    raise ZeroDivisionError
  after = sys.stdout, sys.stderr, *map(signal.getsignal, (signal.SIGINT, signal.SIGTERM))
  assert after == before


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
    env={
      **os.environ,
      watchdog.VARIABLE: "0.04",
    },  # 2.4 s: much longer than a step, for a busy machine
    capture_output=True,
    text=True,
    timeout=60,
  )
  assert (done.returncode, done.stdout) == (1, "worked\n")
  assert 'File "<string>", line 10 in <module>' in done.stderr
  assert done.stderr.startswith("Timeout (0:00:02.4")


@pytest.mark.parametrize("value", ["-1", "nan", "inf", "an hour"])
def test_other_limits_than_minutes_are_refused(monkeypatch, value):
  monkeypatch.setenv(watchdog.VARIABLE, value)
  with (
    pytest.raises(errors.InputError, match=f"{watchdog.VARIABLE} is '{value}'"),
    watchdog.watching(minutes=1),
  ):
    pass
