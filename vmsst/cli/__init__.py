"""The `vmsst` command. Each subcommand is a thin layer over a function of the library.

`COMMANDS` is the table of subcommands. Each imports what it needs when it runs, so that `--help` is
instant.
"""

import argparse
import contextlib
import os
import re
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import vmsst
from vmsst import errors
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
  """A parser that reads every negative number as a value, also -1e-3 and -inf."""

  def __init__(self, *args: Any, **options: Any):
    super().__init__(*args, **options)
    self._negative_number_matcher = re.compile(r"-(\.?\d|inf|nan)", re.IGNORECASE)


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


class _Terminated(KeyboardInterrupt):
  """SIGTERM, which ends a command as Ctrl-C does."""


@contextlib.contextmanager
def _sigterm_raises() -> Iterator[None]:
  """Raises `_Terminated` at SIGTERM, so that a command removes its temporary files."""

  def stop(number: int, frame: object) -> None:
    raise _Terminated

  in_main_thread = threading.current_thread() is threading.main_thread()
  if not in_main_thread or signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
    yield
    return
  signal.signal(signal.SIGTERM, stop)
  try:
    yield
  finally:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def main(argv: Sequence[str] | None = None) -> int:
  """Runs the command line and returns its exit status."""
  args = build_parser().parse_args(argv)
  compilation_cache.enable()
  try:
    with _sigterm_raises(), watchdog.watching("vmsst", args.command.patience):
      args.command(args)
  except BrokenPipeError:
    # The reader of the output has closed it. Without this Python complains when it flushes.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 1
  except (errors.InputError, OSError) as error:
    print(f"vmsst: error: {error}", file=sys.stderr)
    return 1
  except KeyboardInterrupt as stop:
    terminated = isinstance(stop, _Terminated)
    hint = "; rerun the same command to resume" if args.command.resumable else ""
    print(f"vmsst: {'terminated' if terminated else 'interrupted'}{hint}", file=sys.stderr)
    return 128 + (signal.SIGTERM if terminated else signal.SIGINT)
  return 0
