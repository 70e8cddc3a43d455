"""`vmsst import`: weights of other libraries' models."""

import argparse

from vmsst.cli.command import Command


def _import_bert_arguments(parser: argparse.ArgumentParser) -> None:
  add = parser.add_argument
  add("folder", help="Hugging Face folder (config.json, weights, tokenizer.json)")
  add("output", help="folder to make, for vmsst.load and for training to start from")
  add(
    "--prefix",
    metavar="TEXT",
    help="text before every sentence (default: the model's prompt, or 'query: ' for an E5 without)",
  )
  add(
    "--pooling",
    choices=("mean", "cls", "pooler"),
    help="pooling of token states (default: as in sentence-transformers' files, or mean)",
  )


def _import_bert(args: argparse.Namespace) -> None:
  from vmsst.checkpoints.importers import bert, weight_tables

  imported = bert.import_bert(args.folder, args.output, prefix=args.prefix, pooling=args.pooling)
  print(weight_tables.describe(imported))


def _import_ems_arguments(parser: argparse.ArgumentParser) -> None:
  add = parser.add_argument
  add("file", help="EMS_model.pt, or its state dict as .safetensors")
  add("output", help="folder to make, for vmsst.load and for training to start from")
  add(
    "--vocabulary",
    required=True,
    metavar="FILE",
    help="SentencePiece model of the release (62languages_bpe_60000.model)",
  )
  add("--heads", type=int, metavar="N", help="attention heads (default: width / 64)")


def _import_ems(args: argparse.Namespace) -> None:
  from vmsst.checkpoints.importers import ems, weight_tables

  imported = ems.import_ems(
    args.file, args.output, vocabulary=args.vocabulary, num_heads=args.heads
  )
  print(weight_tables.describe(imported))


def _import_mt5_arguments(parser: argparse.ArgumentParser) -> None:
  parser.add_argument("folder", help="mT5 as a Hugging Face folder (config.json and weights)")
  parser.add_argument(
    "output",
    help="folder to make, for training to start from and, with spiece.model, for vmsst.load",
  )


def _import_mt5(args: argparse.Namespace) -> None:
  from vmsst.checkpoints.importers import mt5, weight_tables

  print(weight_tables.describe(mt5.import_mt5(args.folder, args.output)))


def _import_vmsst_arguments(parser: argparse.ArgumentParser) -> None:
  add = parser.add_argument
  add("folder", help="VMSST as a Hugging Face folder (config.json and weights)")
  add("output", help="folder to make, for vmsst.load and for training to start from")
  add(
    "--vocabulary",
    metavar="FILE",
    help="mT5's SentencePiece model (default: spiece.model in the folder)",
  )


def _import_vmsst(args: argparse.Namespace) -> None:
  from vmsst.checkpoints.importers import vmsst_release, weight_tables

  imported = vmsst_release.import_vmsst(args.folder, args.output, vocabulary=args.vocabulary)
  print(weight_tables.describe(imported))


COMMANDS: dict[tuple[str, ...], Command] = {
  ("import", "bert"): Command(
    "import XLM-R, mBERT, multilingual E5 or LaBSE as an encoder, to use or to train further",
    _import_bert_arguments,
    _import_bert,
    inputs=("folder",),
    output_folder="output",
    atomic=True,
    urls=("folder", "output"),
  ),
  ("import", "ems"): Command(
    "import the released EMS as an encoder, to use or to train further",
    _import_ems_arguments,
    _import_ems,
    inputs=("file", "vocabulary"),
    output_folder="output",
    atomic=True,
    urls=("file", "vocabulary", "output"),
  ),
  ("import", "mt5"): Command(
    "import mT5 as a checkpoint for training to start from",
    _import_mt5_arguments,
    _import_mt5,
    inputs=("folder",),
    output_folder="output",
    atomic=True,
    urls=("folder", "output"),
  ),
  ("import", "vmsst"): Command(
    "import the released VMSST as an encoder, to use or to train further",
    _import_vmsst_arguments,
    _import_vmsst,
    inputs=("folder", "vocabulary"),
    output_folder="output",
    atomic=True,
    urls=("folder", "vocabulary", "output"),
  ),
}
