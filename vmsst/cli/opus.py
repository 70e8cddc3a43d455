"""`vmsst data build`: builds a training dataset from OPUS releases on disk."""

import argparse

from vmsst import errors
from vmsst.bitext import dataset_shards
from vmsst.cli import engines
from vmsst.cli.command import Command

_PLACES = "(local, gs:// or s3://)"


def _build_arguments(parser: argparse.ArgumentParser) -> None:
  add = parser.add_argument
  add(
    "--recipe",
    required=True,
    metavar="NAME|FILE",
    help="recipe: vmsst, ems, soft_contrastive, or your own YAML file",
  )
  add("--input", required=True, metavar="FOLDER", help=f"folder of OPUS releases {_PLACES}")
  add(
    "--held-out",
    required=True,
    metavar="FOLDER",
    help=f"folder of evaluation sets {_PLACES}, whose sentences are excluded",
  )
  add(
    "--output",
    required=True,
    metavar="FOLDER",
    help=f"TFDS data folder {_PLACES} for the dataset opus_bitext/NAME",
  )
  add(
    "--work",
    metavar="FOLDER",
    help="local folder for intermediate files, kept for other recipes (default: a folder in "
    "--output, removed at the end; required if --output is not local)",
  )
  add(
    "--format",
    choices=dataset_shards.FORMATS,
    default=dataset_shards.FORMATS[0],
    help="format of the shards: tfrecord, or array_record for training in which every host reads "
    "its share, with --gin_file=data/sharded.gin (default: tfrecord)",
  )
  engines.add_arguments(parser, local_workers=None, gpus=False)


def _build(args: argparse.Namespace) -> None:
  with errors.requires("opus", "building a dataset"):
    from vmsst.tasks.opus import builder

  folder = builder.build(
    args.recipe,
    args.input,
    args.held_out,
    args.output,
    work=args.work,
    engine=engines.chosen(args),
    file_format=args.format,
  )
  print(f"{folder}: described in {builder.DATA_CARD}")


COMMANDS: dict[tuple[str, ...], Command] = {
  ("data", "build"): Command(
    "build a training dataset from OPUS releases, without duplicates and evaluation sentences",
    _build_arguments,
    _build,
    resumable=True,
    inputs=("input", "held_out", "recipe"),
    output_folder="output",
    urls=("input", "held_out", "recipe", "output"),
    patience=24 * 60,  # a file of the largest corpora
  ),
}
