"""The `vmsst` command. Each subcommand is a thin shell over a function of the library.

`COMMANDS` is the table of subcommands. What a subcommand needs is imported when it runs, so that
`--help` is instant.
"""

import argparse
import dataclasses
import sys
from collections.abc import Callable, Sequence

import vmsst
from vmsst import errors


@dataclasses.dataclass(frozen=True)
class Command:
  """A subcommand.

  Attributes:
    help: One line.
    add_arguments: Declares its arguments.
    run: Does the work; raises InputError where the user can put something right.
  """

  help: str
  add_arguments: Callable[[argparse.ArgumentParser], None]
  run: Callable[[argparse.Namespace], None]


def _no_arguments(parser: argparse.ArgumentParser) -> None:
  del parser


def _gin_dir(args: argparse.Namespace) -> None:
  del args
  print(vmsst.gin_dir())


def _vocab_train_arguments(parser: argparse.ArgumentParser) -> None:
  add = parser.add_argument
  add(
    "--input",
    required=True,
    nargs="+",
    action="extend",
    metavar="PATTERN",
    help="bitext files (as in training) or plain .txt files; quote patterns",
  )
  add("--output", required=True, metavar="FILE", help="model file to write")
  add("--size", type=int, default=32_000, help="number of pieces (default %(default)s)")
  add("--model-type", choices=("unigram", "bpe"), default="unigram")
  add(
    "--character-coverage",
    type=float,
    default=0.9995,
    metavar="SHARE",
    help="share of characters with pieces of their own (default %(default)s)",
  )
  add("--byte-fallback", action="store_true", help="write rare characters as bytes")
  add("--lowercase", action="store_true", help="lower-case the text first")
  add(
    "--max-sentences",
    type=int,
    metavar="N",
    help="use at most N sentences, drawn evenly over the files",
  )
  add(
    "--languages",
    nargs=2,
    metavar="CODE",
    help="languages of the two sides, where file names do not tell",
  )


def _vocab_train(args: argparse.Namespace) -> None:
  from vmsst import vocab_training

  report = vocab_training.train_vocabulary(
    args.input,
    args.output,
    size=args.size,
    model_type=args.model_type,
    character_coverage=args.character_coverage,
    byte_fallback=args.byte_fallback,
    lowercase=args.lowercase,
    max_sentences=args.max_sentences,
    languages=tuple(args.languages) if args.languages else None,
  )
  for name, (used, total) in report.sentences_by_file.items():
    print(f"{used:>10,} of {total:,} sentences  {name}")
  print(f"{report.path}: {report.size:,} {args.model_type} pieces (0 padding, 1 end, 2 unknown)")
  if args.lowercase:
    print("Use it with SentencePieceVocabulary.lowercase = True.")


COMMANDS: dict[tuple[str, ...], Command] = {
  ("gin-dir",): Command("print the folder of the shipped gin files", _no_arguments, _gin_dir),
  ("vocab", "train"): Command(
    "train a SentencePiece vocabulary on bitext or text files", _vocab_train_arguments, _vocab_train
  ),
}
"""Subcommands by the words that call them."""

_GROUPS = {"vocab": "train vocabularies"}


def build_parser() -> argparse.ArgumentParser:
  """The parser of all of `COMMANDS`."""
  parser = argparse.ArgumentParser(
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
    own.set_defaults(run=command.run)
  return parser


def main(argv: Sequence[str] | None = None) -> int:
  """Runs the command line; returns the exit status."""
  args = build_parser().parse_args(argv)
  try:
    args.run(args)
  except (errors.InputError, FileNotFoundError) as error:
    print(f"vmsst: error: {error}", file=sys.stderr)
    return 1
  return 0


if __name__ == "__main__":
  sys.exit(main())
