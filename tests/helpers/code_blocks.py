"""Extracts the code of Markdown pages and notebooks, and runs it with slow parts stubbed."""

import dataclasses
import os
import pathlib
import re
import shlex
import sys
import sysconfig
from collections.abc import Iterator, Mapping

import commands

_FENCE = re.compile(r"^```(\S*)[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclasses.dataclass(frozen=True)
class Block:
  """A fenced code block, the number of its first line and the paragraph before it."""

  language: str
  text: str
  line: int
  before: str


def blocks(path: pathlib.Path) -> list[Block]:
  """Returns all fenced blocks of a page, in order."""
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
  """Returns a shell block's input: all lines, or those after "$ " with their continuations."""
  lines = block.text.splitlines()
  if not block.text.startswith("$ "):
    return block.text
  typed, continues = [], False
  for line in lines:
    if line.startswith("$ ") or continues:
      typed.append(line.removeprefix("$ "))
      continues = line.endswith(("\\", "|", "&&"))
  return "\n".join(typed) + "\n"


def calls(text: str) -> Iterator[list[str]]:
  """Yields the words of each shell command, without assignments and redirections."""
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
  """Returns the lines of a shell block that show output."""
  typed = commands_of(block).splitlines()
  return [x for x in block.text.splitlines() if x.removeprefix("$ ") not in typed]


def bash(
  text: str, folder: pathlib.Path, replace: Mapping[str, str], stand_ins: Mapping[str, str]
) -> str:
  """Runs a shell block in a folder, with other paths and with scripts that replace commands."""
  for place, other in replace.items():
    text = text.replace(place, other)
  programs = folder / ".stand_ins"
  programs.mkdir(exist_ok=True)
  for name, script in stand_ins.items():
    (programs / name).write_text(f"#!/bin/bash\n{script}\n", encoding="utf-8")
    (programs / name).chmod(0o755)
  path = f"{programs}:{sysconfig.get_path('scripts')}:{os.environ['PATH']}"
  command = ["bash", "-euo", "pipefail", "-c", text]
  return commands.run(command, cwd=folder, variables={"PATH": path}).stdout


def python(text: str, folder: pathlib.Path, replace: Mapping[str, str]) -> str:
  """Runs a Python block in its own process and returns its output; fails if it fails."""
  for place, other in replace.items():
    text = text.replace(place, other)
  return commands.run([sys.executable, "-W", "error", "-c", text], cwd=folder).stdout
