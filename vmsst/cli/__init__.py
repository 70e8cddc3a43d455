"""The `vmsst` command. Each subcommand is a thin layer over a function of the library.

`COMMANDS` is the table of subcommands. Each imports what it needs when it runs, so that `--help` is
instant.
"""

from vmsst.process import interrupts

with interrupts.default_interrupt():
  import argparse
  import difflib
  import re
  from collections.abc import Sequence
  from typing import Any, NoReturn

  import vmsst
  from vmsst.cli import (
    compilation_cache,
    downloads,
    evaluation,
    model_exports,
    model_imports,
    opus,
    texts,
    training_data,
  )
  from vmsst.cli.command import Command
  from vmsst.files import watchdog
  from vmsst.process import commands


def _no_arguments(parser: argparse.ArgumentParser) -> None:
  del parser


def _gin_dir(args: argparse.Namespace) -> None:
  del args
  print(vmsst.gin_dir())


COMMANDS: dict[tuple[str, ...], Command] = {
  ("gin-dir",): Command("print the folder of the shipped gin files", _no_arguments, _gin_dir),
  **training_data.COMMANDS,
  **opus.COMMANDS,
  **downloads.COMMANDS,
  **model_imports.COMMANDS,
  **model_exports.COMMANDS,
  **texts.COMMANDS,
  **evaluation.COMMANDS,
}
"""Subcommands by name, one or two words."""

_GROUPS = {
  "data": "prepare bitext for training",
  "export": "export encoders to other libraries",
  "import": "import parameters of other models",
  "vocab": "train vocabularies",
}


class _Parser(argparse.ArgumentParser):
  """A parser that accepts every negative number as a value, and suggests the right choice."""

  def __init__(self, *args: Any, **options: Any):
    super().__init__(*args, **options)
    self._negative_number_matcher = re.compile(r"-(\.?\d|inf|nan)", re.IGNORECASE)

  def error(self, message: str) -> NoReturn:
    """Exits with a message."""
    wrong = re.search(r"invalid choice: '(.*)' \(choose from (.*)\)", message)
    near = wrong and difflib.get_close_matches(wrong[1], re.findall(r"[\w-]+", wrong[2]), 1)
    super().error(f"{message}; did you mean {near[0]}?" if near else message)


def build_parser() -> argparse.ArgumentParser:
  """Returns the parser of all `COMMANDS`."""
  parser = _Parser(
    prog="vmsst", description="Train, evaluate and use multilingual sentence encoders."
  )
  parser.add_argument("--version", action="version", version=f"vmsst {vmsst.__version__}")
  top = parser.add_subparsers(required=True, metavar="COMMAND")
  groups: dict[str, argparse._SubParsersAction] = {}
  for words, command in COMMANDS.items():
    level = top
    if len(words) == 2:
      if words[0] not in groups:
        group = top.add_parser(words[0], help=_GROUPS[words[0]])
        groups[words[0]] = group.add_subparsers(required=True, metavar="COMMAND")
      level = groups[words[0]]
    own = level.add_parser(words[-1], help=command.help, description=command.help)
    command.add_arguments(own)
    own.set_defaults(command=command)
  return parser


def main(argv: Sequence[str] | None = None) -> int:
  """Runs the command line, by default that of the process; returns its exit status."""
  with commands.CommandProcess("vmsst", own=argv is None) as process:
    args = build_parser().parse_args(argv)
    if args.command.resumable:
      process.hint = "; rerun the same command to resume"
    compilation_cache.enable()
    with watchdog.watching("vmsst", args.command.patience):
      args.command(args)
  return process.status
