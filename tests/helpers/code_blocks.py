"""The code blocks of a Markdown page, and a shell in which they run without what takes long."""

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

# Compiling is most of what small models do.
QUICK_TO_COMPILE = " --xla_backend_optimization_level=0"

_FENCE = re.compile(r"^```(\S*)[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclasses.dataclass(frozen=True)
class Block:
  """A fenced block.

  Attributes:
    language: What stands behind the fence, or "".
    text: Its lines.
    line: Number of its first line in the page.
    before: The last paragraph in front of it.
  """

  language: str
  text: str
  line: int
  before: str


def blocks(path: pathlib.Path) -> list[Block]:
  """All fenced blocks of a page, in their order."""
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
  """The lines of a shell block that are typed: all, or those behind "$ " and what continues one."""
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
  """The words of each command in a block of shell, without assignments and redirections."""
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
  """The lines of a shell block that are what the commands print."""
  typed = commands_of(block).splitlines()
  return [x for x in block.text.splitlines() if x.removeprefix("$ ") not in typed]


def environment() -> dict[str, str]:
  """The environment of what runs here."""
  outside = commands.environment()
  return {**outside, "XLA_FLAGS": outside["XLA_FLAGS"] + QUICK_TO_COMPILE}


def bash(
  text: str, folder: pathlib.Path, replace: Mapping[str, str], stand_ins: Mapping[str, str]
) -> str:
  """What a block of shell prints to standard output; fails where one of its commands does.

  Args:
    text: The block.
    folder: To run in.
    replace: Places that the page names, and the places to use instead.
    stand_ins: By name of a command, what is run in its place, as a shell script.
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
  """What a block of Python prints, in a process of its own; fails where it does."""
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
