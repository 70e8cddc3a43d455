"""`vmsst import`: other models' parameters."""

import argparse

from vmsst.cli.command import Command, at_least_1


def _import_bert_arguments(parser: argparse.ArgumentParser) -> None:
  add = parser.add_argument
  add("folder", help="Hugging Face folder (config.json, safetensors, tokenizer.json)")
  add("output", help="folder to make, which vmsst.load opens and training starts from")
  add(
    "--prefix",
    metavar="TEXT",
    help="what is put before every sentence (default: the model's prompt; 'query: ' for E5)",
  )
  add(
    "--pooling",
    choices=("mean", "cls", "pooler"),
    help="how token states become a vector (default: as sentence-transformers' files say, or mean)",
  )


def _import_bert(args: argparse.Namespace) -> None:
  from vmsst.checkpoints.importers import bert

  print(
    bert.describe(
      bert.import_bert(args.folder, args.output, prefix=args.prefix, pooling=args.pooling)
    )
  )


def _import_ems_arguments(parser: argparse.ArgumentParser) -> None:
  add = parser.add_argument
  add("file", help="EMS_model.pt, or its state dict as .safetensors")
  add("output", help="folder to make, which vmsst.load opens and training starts from")
  add(
    "--vocabulary",
    required=True,
    metavar="FILE",
    help="SentencePiece model of the release (62languages_bpe_60000.model)",
  )
  add("--heads", type=int, metavar="N", help="attention heads (default: width / 64)")


def _import_ems(args: argparse.Namespace) -> None:
  from vmsst.checkpoints.importers import ems

  print(
    ems.describe(
      ems.import_ems(args.file, args.output, vocabulary=args.vocabulary, num_heads=args.heads)
    )
  )


def _import_mt5_arguments(parser: argparse.ArgumentParser) -> None:
  parser.add_argument(
    "folder", help="Hugging Face folder (config.json, safetensors) or T5X checkpoint of mT5"
  )
  parser.add_argument("output", help="folder to make, with checkpoint_0 in it")


def _import_mt5(args: argparse.Namespace) -> None:
  from vmsst.checkpoints.importers import mt5

  print(mt5.describe(mt5.import_mt5(args.folder, args.output)))


def _import_vmsst_arguments(parser: argparse.ArgumentParser) -> None:
  add = parser.add_argument
  add(
    "source",
    help="Hugging Face folder of VMSST, its state dict (.safetensors, .bin), or its T5X checkpoint",
  )
  add("output", help="folder to make, which vmsst.load opens and training starts from")
  add(
    "--vocabulary",
    metavar="FILE",
    help="mT5's SentencePiece model (default: spiece.model beside the source)",
  )
  add(
    "--projection",
    metavar="NAME",
    help="tensor behind the mean of the tokens (default: what is called so, or the only one)",
  )
  add(
    "--max-length",
    type=at_least_1,
    default=512,
    metavar="N",
    help="tokens of a sentence (default %(default)s, as in the release; it was trained on 32)",
  )


def _import_vmsst(args: argparse.Namespace) -> None:
  from vmsst.checkpoints.importers import vmsst_release

  print(
    vmsst_release.describe(
      vmsst_release.import_vmsst(
        args.source,
        args.output,
        vocabulary=args.vocabulary,
        projection=args.projection,
        max_length=args.max_length,
      )
    )
  )


COMMANDS: dict[tuple[str, ...], Command] = {
  ("import", "bert"): Command(
    "write XLM-R, mBERT, multilingual E5 or LaBSE as an encoder, to use or to train on",
    _import_bert_arguments,
    _import_bert,
  ),
  ("import", "ems"): Command(
    "write the released EMS as an encoder, to use or to train on",
    _import_ems_arguments,
    _import_ems,
  ),
  ("import", "mt5"): Command(
    "write mT5's parameters as a checkpoint that training starts from",
    _import_mt5_arguments,
    _import_mt5,
  ),
  ("import", "vmsst"): Command(
    "write the released VMSST as an encoder, to use or to train on",
    _import_vmsst_arguments,
    _import_vmsst,
  ),
}
