"""Parts that the jobs of all clusters share: commands, variables and templates."""

import pathlib
import re
import shlex
from collections.abc import Mapping, Sequence

from vmsst.errors import InputError

STOPPED = 75
"""Exit status of a process that got SIGTERM; rerun its command to resume."""


def template(name: str) -> str:
  """Returns the text of a file in `templates/`."""
  return (pathlib.Path(__file__).parent / "templates" / name).read_text(encoding="utf-8")


TASK = template("task.sh")
"""A POSIX shell script that runs its arguments and exits with `STOPPED` after SIGTERM.

`t5x train` writes a checkpoint at SIGTERM and exits with 0, as at its end; schedulers have to
distinguish the two.
"""


def assigned(**values: str | int | Sequence[str]) -> list[str]:
  """Returns lines of a bash script that set variables; a sequence becomes an array."""
  return [
    f"{name}={shlex.quote(str(value))}"
    if isinstance(value, str | int)
    else f"{name}=({shlex.join(value)})"
    for name, value in values.items()
  ]


def prepared(environment: Mapping[str, str], setup: str, command: Sequence[str]) -> list[str]:
  """Returns lines of a POSIX shell script: variables, setup code, and the command as "$@"."""
  lines = [f"export {name}={shlex.quote(value)}" for name, value in environment.items()]
  if setup.strip():
    lines += ["{", setup, "} || exit"]
  return [*lines, f"set -- {shlex.join(command)}"]


def check(name: str, value: str, pattern: str, problem: str) -> None:
  """Raises an InputError if the value of the option `name` does not match the pattern."""
  if not re.fullmatch(pattern, value):
    raise InputError(f"{name}={value!r}: {problem}")


def check_command(command: Sequence[str]) -> None:
  """Raises an InputError if the command is empty or contains a NUL character."""
  if not command:
    raise InputError("no command; give it after --, such as: -- t5x train --gin_file=...")
  if any("\0" in word for word in command):
    raise InputError("the command contains a NUL character; remove it")


def pairs(option: str, texts: Sequence[str], name_pattern: str = ".+") -> dict[str, str]:
  """Returns `NAME=VALUE` texts as a mapping.

  Args:
    option: The option that has them, for messages.
    texts: The texts.
    name_pattern: Regular expression of a whole name.

  Raises:
    InputError: A text is not of this form, or a name is given twice.
  """
  found: dict[str, str] = {}
  for text in texts:
    name, equals, value = text.partition("=")
    if not equals or not re.fullmatch(name_pattern, name):
      raise InputError(f"{option}={text!r}: write NAME=VALUE, with a name like {name_pattern}")
    if name in found:
      raise InputError(f"{option}: {name} is given twice; give it once")
    found[name] = value
  return found


def variables(texts: Sequence[str]) -> dict[str, str]:
  """Returns the variables of `--env`; see `pairs`."""
  return pairs("--env", texts, "[A-Za-z_][A-Za-z0-9_]*")
