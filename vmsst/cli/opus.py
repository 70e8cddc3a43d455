"""`vmsst data build`: a dataset for training from OPUS releases on disk."""

import argparse
import shlex

from vmsst.cli import command
from vmsst.cli.command import Command


def _build_arguments(parser: argparse.ArgumentParser) -> None:
  add = parser.add_argument
  add(
    "--recipe",
    required=True,
    metavar="NAME|FILE",
    help="vmsst, ems, soft_contrastive, or a YAML file of your own",
  )
  add("--input", required=True, metavar="FOLDER", help="folder of OPUS releases")
  add(
    "--held-out",
    required=True,
    metavar="FOLDER",
    help="folder of evaluation sets, whose sentences are left out",
  )
  add(
    "--output",
    required=True,
    metavar="FOLDER",
    help="TFDS data folder; the dataset is opus_bitext/NAME in it",
  )
  add(
    "--work",
    metavar="FOLDER",
    help="for what is made on the way, kept for other recipes (default: one in --output, removed "
    "at the end)",
  )
  add(
    "--workers",
    type=command.at_least_1,
    metavar="N",
    help="processes of this machine (default: one a core)",
  )
  add(
    "--runner",
    metavar="NAME",
    help="do the work by this runner of Apache Beam, such as DirectRunner or FlinkRunner",
  )
  add(
    "--beam-options",
    default="",
    metavar="FLAGS",
    help='flags of Beam in one argument: --beam-options="--parallelism=8 --flink_master=..."',
  )


def _build(args: argparse.Namespace) -> None:
  from vmsst.tasks.opus import builder

  folder = builder.build(
    args.recipe,
    args.input,
    args.held_out,
    args.output,
    work=args.work,
    workers=args.workers,
    beam_runner=args.runner,
    beam_options=shlex.split(args.beam_options),
  )
  print(f"{folder}: see {builder.DATA_CARD} in it")


COMMANDS: dict[tuple[str, ...], Command] = {
  ("data", "build"): Command(
    "build a dataset for training from OPUS releases, without duplicates and evaluation sentences",
    _build_arguments,
    _build,
    resumable=True,
  ),
}
