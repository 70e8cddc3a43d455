"""What jobs of all clusters have: a command, names, variables, and how a stopped process is told
from one that finished.
"""

import re
import shlex
from collections.abc import Mapping, Sequence

from vmsst.errors import InputError

STOPPED = 75
"""Exit status of a process that was asked to stop: the same command goes on from there."""

# `t5x train` writes a checkpoint at SIGTERM and exits with 0, as at its end. A scheduler has to
# know the one from the other. A signal may come before `pid` is known, and it ends `wait` early.
TASK = f"""\
stopped=
trap 'stopped=1; kill -TERM "$pid" 2>/dev/null' TERM
"$@" &
pid=$!
[ -z "$stopped" ] || kill -TERM "$pid"
wait "$pid"
status=$?
while kill -0 "$pid" 2>/dev/null; do
  wait "$pid"
  status=$?
done
[ -z "$stopped" ] || status={STOPPED}
exit "$status"
"""
"""A POSIX shell script that runs its arguments, and gives `STOPPED` once it got SIGTERM."""

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def quoted(command: Sequence[str]) -> str:
  """The command as one line for a shell, every word quoted where it needs to be."""
  return shlex.join(command)


def check(name: str, value: str, pattern: str, what: str) -> None:
  """Raises an InputError where `value` is not what the option `name` takes."""
  if not re.fullmatch(pattern, value):
    raise InputError(f"{name}={value!r}: {what}")


def check_command(command: Sequence[str]) -> None:
  """Raises an InputError for a command that is empty or that no shell can be given."""
  if not command:
    raise InputError("give the command to run behind --, such as: -- t5x train --gin_file=...")
  if any("\0" in word for word in command):
    raise InputError("the command contains a NUL character")


def variables(assignments: Sequence[str]) -> dict[str, str]:
  """`NAME=VALUE` texts as a mapping.

  Raises:
    InputError: one of them is not of this form, or a name is given twice.
  """
  found: dict[str, str] = {}
  for assignment in assignments:
    name, equals, value = assignment.partition("=")
    if not equals or not _VARIABLE.fullmatch(name):
      raise InputError(f"--env={assignment!r}: write NAME=VALUE, the name of letters, digits and _")
    if name in found:
      raise InputError(f"--env: {name} is given twice")
    found[name] = value
  return found


def setup_lines(code: str) -> list[str]:
  """Lines that run the user's shell code, and end the script where it fails."""
  return ["{", code, "} || exit"] if code.strip() else []


def exports(environment: Mapping[str, str]) -> list[str]:
  """Lines of a shell script that set the variables."""
  return [f"export {name}={shlex.quote(value)}" for name, value in environment.items()]
