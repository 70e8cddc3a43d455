"""The `vmsst` command. Each subcommand wraps one library function.

`COMMANDS` is the table of subcommands. Subcommands import the library when they run, so that
`--help` is fast.
"""

from vmsst.jobs import command_process

with command_process.default_interrupt():
  import argparse
  import logging
  from collections.abc import Sequence

  import vmsst
  from vmsst.arrays import devices
  from vmsst.cli import data, evaluation, models, texts
  from vmsst.cli.command import Command, summary


def gin_dir() -> None:
  """Print the folder of the shipped gin files."""
  print(vmsst.gin_dir())


COMMANDS: dict[tuple[str, ...], Command] = {
  ("gin-dir",): Command(gin_dir),
  **data.COMMANDS,
  **models.COMMANDS,
  **texts.COMMANDS,
  **evaluation.COMMANDS,
}
"""Subcommands by name, one to three words."""

# If a command reports no progress for this many minutes, it ends. The limit is long, because
# vocabulary training never reports progress.
_PATIENCE = 24 * 60.0
_GROUPS = {
  ("data",): "Prepare bitext for training",
  ("data", "download"): "List and download OPUS releases and evaluation sets",
  ("export",): "Export encoders to other libraries",
  ("import",): "Import released encoders",
  ("vocab",): "Train vocabularies",
}


def build_parser() -> argparse.ArgumentParser:
  """Returns the parser of all `COMMANDS`."""
  parser = argparse.ArgumentParser(
    prog="vmsst",
    description="Train, evaluate and use multilingual sentence encoders.",
    epilog="Paths can be local or in an object store (gs:// or s3://).",
  )
  parser.add_argument("--version", action="version", version=f"vmsst {vmsst.__version__}")
  levels: dict[tuple[str, ...], argparse._SubParsersAction] = {}
  levels[()] = parser.add_subparsers(required=True, metavar="COMMAND")
  for words, help in {
    **_GROUPS,
    **{words: summary(command.function) for words, command in COMMANDS.items()},
  }.items():
    child = levels[words[:-1]].add_parser(words[-1], help=help, description=f"{help}.")
    if words in _GROUPS:
      levels[words] = child.add_subparsers(required=True, metavar="COMMAND")
    else:
      COMMANDS[words].declare(child)
      child.add_argument("--quiet", action="store_true", help="show no progress")
      child.set_defaults(command=COMMANDS[words])
  return parser


def main(argv: Sequence[str] | None = None) -> int:
  """Runs a command line and returns the exit status.

  If `argv` is omitted, this function uses the arguments of this process and, for `finetune`,
  re-executes the process with huge pages.
  """
  with command_process.process("vmsst", owns_process=argv is None) as process:
    args = build_parser().parse_args(argv)
    if args.command.resumable:
      process.hint = "; rerun the same command to resume"
    if argv is None and args.command is COMMANDS[("finetune",)]:
      command_process.restart_with_huge_pages()
    from vmsst.io import progress_bar  # a slow import that `--help` does not need

    if argv is None:
      logging.basicConfig(format="vmsst: note: %(message)s")
    devices.enable_compilation_cache()
    progress = progress_bar.shown("nowhere" if args.quiet else "anywhere")
    with progress, progress_bar.watchdog(_PATIENCE):
      args.command(args)
  return process.status
