"""Signals, streams and error messages of a command."""

import os
import signal
import subprocess
import sys

import pytest

# Runs a body as a command. `ready` reports that the test can send a signal.
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
with command_process.process("it", owns_process=True) as process:
{body}
sys.exit(process.status)
"""


def start(folder, body):
  """Starts a Python process that runs a body as a command."""
  lines = "".join(f"  {line}\n" for line in body.splitlines())
  code, pipes = _COMMAND.format(body=lines), {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
  return subprocess.Popen([sys.executable, "-c", code], cwd=folder, **pipes)


_OWNED = "from vmsst.jobs import outputs\nwith outputs.ownership('out'):"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize(
  ("body", "status", "message"),
  [
    # While a library is imported, the signal ends the process.
    ("import slow", lambda number: -number, ""),
    (f"process.hint = '; rerun'\n{_OWNED} ready()", lambda n: 128 + n, "it: {}; rerun\n"),
    # Libraries drop exceptions, or raise others.
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


@pytest.mark.skipif(sys.platform != "linux", reason="huge pages are requested on Linux")
@pytest.mark.parametrize(
  ("module", "arguments", "message"),
  [
    ("vmsst.launch.main", ["train", "--gin.A='b c'"], "set --gin_file"),
    ("vmsst.cli", ["finetune", "no encoder", "pairs.tsv", "out"], "no encoder"),
  ],
)
def test_training_restarts_with_huge_pages(module, arguments, message, tmp_path):
  code = (
    "import os, signal\n"
    "blocked = lambda: signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, [])\n"
    "print(os.getpid(), os.environ.get('GLIBC_TUNABLES', ''), blocked(), flush=True)\n"
    f"from {module} import main\n"
    "assert not blocked()\n"
    "main()"
  )
  environment = {name: value for name, value in os.environ.items() if name != "GLIBC_TUNABLES"}
  command = [sys.executable, "-c", code, *arguments]
  done = subprocess.run(
    command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False
  )
  numbers, found = zip(*(line.split(" ", 1) for line in done.stdout.splitlines()), strict=True)
  assert found == (" False", "glibc.malloc.hugetlb=1 True")
  assert len(set(numbers)) == 1
  assert message in done.stderr


_HELP = "import argparse\nargparse.ArgumentParser().parse_args(['--help'])"

_FULL = "it: error: [Errno 28] No space left on device\n"


@pytest.mark.parametrize(
  ("streams", "body", "status", "output", "message"),
  [
    ("2>/dev/null", "raise OSError('no')", 1, "", ""),
    (">/dev/full", "print('x')", 1, "", _FULL),
    ("", _HELP, 0, "usage", ""),
    ("<&-", "print('x')", 0, "x\n", ""),
    ("| head -1", "for _ in range(99999): print('x')", 1, "x\n", ""),
  ],
)
def test_output_that_is_not_written_is_an_error(streams, body, status, output, message, tmp_path):
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
  assert done.stderr == message


def test_messages_are_one_line_without_control_characters_and_credentials(tmp_path):
  name = r"caf\udce9 \x1b]0;title\x07 a\nit: error: forged s3://key:se/cret@b https://h/x?sig=4f"
  process = start(tmp_path, f'print("caf\\udce9")\nraise OSError("{name}")')
  assert process.communicate(timeout=60) == (
    b"caf\\udce9\n",
    rb"it: error: caf\udce9 \x1b]0;title\x07 a\nit: error: forged s3://***@b https://h/x?sig=***"
    b"\n",
  )
  assert process.returncode == 1


def test_a_caller_gets_its_signal_handlers_back():
  from vmsst.jobs import command_process

  before = [*map(signal.getsignal, (signal.SIGINT, signal.SIGTERM))]
  with command_process.process("it", owns_process=False) as process:
    raise OSError("no")
  assert process.status == 1
  with pytest.raises(ZeroDivisionError), command_process.process("it", owns_process=False):
    raise ZeroDivisionError
  assert [*map(signal.getsignal, (signal.SIGINT, signal.SIGTERM))] == before
