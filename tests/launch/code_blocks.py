"""Extracts the code blocks of a Markdown page and runs them with stand-ins for slow commands."""

import dataclasses
import os
import pathlib
import re
import shlex
import subprocess
import sys
import sysconfig
from collections.abc import Iterator, Mapping

import commands

# Small models spend most time compiling.
QUICK_TO_COMPILE = " --xla_backend_optimization_level=0"

_FENCE = re.compile(r"^```(\S*)[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclasses.dataclass(frozen=True)
class Block:
  """A fenced block.

  Attributes:
    language: Text after the fence, or "".
    text: Its lines.
    line: Number of its first line in the page.
    before: The paragraph before it.
  """

  language: str
  text: str
  line: int
  before: str


def blocks(path: pathlib.Path) -> list[Block]:
  """Returns the fenced blocks of a page, in order."""
  page = path.read_text(encoding="utf-8")
  return [
    Block(
      found[1],
      found[2],
      page.count("\n", 0, found.start()) + 2,
      page[: found.start()].strip().split("\n\n")[-1],
    )
    for found in _FENCE.finditer(page)
  ]


def commands_of(block: Block) -> str:
  """Returns the typed lines of a shell block: all, or those after "$ " and their continuations."""
  lines = block.text.splitlines()
  if not block.text.startswith("$ "):
    return block.text
  typed, goes_on = [], False
  for line in lines:
    if line.startswith("$ ") or goes_on:
      typed.append(line.removeprefix("$ "))
      goes_on = line.endswith(("\\", "|", "&&"))
  return "\n".join(typed) + "\n"


def calls(text: str) -> Iterator[list[str]]:
  """Returns the words of each command in a shell block, without assignments and redirections."""
  text = re.sub(r"(?m)(?:^|\s)#.*$", "", text.replace("\\\n", " "))
  lexer = shlex.shlex(text, posix=True, punctuation_chars="|&;()<>\n")
  lexer.whitespace, lexer.commenters = " \t", ""
  lexer.whitespace_split = True
  words: list[str] = []
  skip = False
  for word in [*lexer, ";"]:
    if set(word) <= set("|&;()\n"):
      if words:
        yield words
      words, skip = [], False
    elif set(word) <= set("<>"):
      skip = True
    elif skip or (not words and re.match(r"\w+=", word)):
      skip = False
    else:
      words.append(word)


def shown(block: Block) -> list[str]:
  """Returns the lines of a shell block that are output."""
  typed = commands_of(block).splitlines()
  return [x for x in block.text.splitlines() if x.removeprefix("$ ") not in typed]


def environment() -> dict[str, str]:
  """Returns the environment of the commands."""
  outside = commands.environment()
  return {**outside, "XLA_FLAGS": outside["XLA_FLAGS"] + QUICK_TO_COMPILE}


def bash(
  text: str, folder: pathlib.Path, replace: Mapping[str, str], stand_ins: Mapping[str, str]
) -> str:
  """Returns the standard output of a shell block; fails if one of its commands fails.

  Args:
    text: The block.
    folder: Working directory.
    replace: Paths on the page, and the paths to use instead.
    stand_ins: Shell scripts to run instead of commands, by name of the command.
  """
  for place, other in replace.items():
    text = text.replace(place, other)
  programs = folder / ".stand_ins"
  programs.mkdir(exist_ok=True)
  for name, script in stand_ins.items():
    (programs / name).write_text(f"#!/bin/bash\n{script}\n", encoding="utf-8")
    (programs / name).chmod(0o755)
  path = f"{programs}:{sysconfig.get_path('scripts')}:{os.environ['PATH']}"
  done = subprocess.run(
    ["bash", "-euo", "pipefail", "-c", text],
    cwd=folder,
    env={**environment(), "PATH": path},
    stdin=subprocess.DEVNULL,
    capture_output=True,
    text=True,
    timeout=300,
  )
  assert done.returncode == 0, f"{text}\n{done.stdout}\n{done.stderr}"
  return done.stdout


def python(text: str, folder: pathlib.Path, replace: Mapping[str, str]) -> str:
  """Returns the output of a Python block, run in a separate process; fails if it fails."""
  for place, other in replace.items():
    text = text.replace(place, other)
  done = subprocess.run(
    [sys.executable, "-W", "error", "-c", text],
    cwd=folder,
    env=environment(),
    stdin=subprocess.DEVNULL,
    capture_output=True,
    text=True,
    timeout=300,
  )
  assert done.returncode == 0, f"{text}\n{done.stdout}\n{done.stderr}"
  return done.stdout
