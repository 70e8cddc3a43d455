"""`vmsst vocab` and `vmsst data`: prepare bitext for training."""

import argparse
from typing import Any

from vmsst.cli.command import Command, finite_number


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
  add(
    "--model-type",
    choices=("unigram", "bpe"),
    default="unigram",
    help="SentencePiece algorithm (default %(default)s)",
  )
  add(
    "--character-coverage",
    type=finite_number,
    default=0.9995,
    metavar="SHARE",
    help="share of characters that get their own pieces (default %(default)s)",
  )
  add("--byte-fallback", action="store_true", help="encode rare characters as bytes")
  add("--lowercase", action="store_true", help="lower-case the text first")
  add(
    "--pretokenize",
    action="store_true",
    help="split the text into words by the rules of its language, before --lowercase",
  )
  add(
    "--max-sentences",
    type=int,
    metavar="N",
    help="use at most N sentences, sampled evenly from the files (default: all)",
  )
  add(
    "--languages",
    nargs=2,
    metavar="CODE",
    help="languages of the two sides (default: from file names)",
  )


def _vocab_train(args: argparse.Namespace) -> None:
  from vmsst.text import vocabulary_training

  report = vocabulary_training.train_vocabulary(
    args.input,
    args.output,
    size=args.size,
    model_type=args.model_type,
    character_coverage=args.character_coverage,
    byte_fallback=args.byte_fallback,
    lowercase=args.lowercase,
    pretokenize=args.pretokenize,
    max_sentences=args.max_sentences,
    languages=tuple(args.languages) if args.languages else None,
  )
  for name, (used, total) in report.sentences_by_file.items():
    print(f"{used:>10,} of {total:,} sentences  {name}")
  print(f"{report.path}: {report.size:,} {args.model_type} pieces (0 padding, 1 EOS, 2 unknown)")
  for option in ("lowercase", "pretokenize"):
    if getattr(args, option):
      print(f"Use it with SentencePieceVocabulary.{option} = True.")


def _bitext_arguments(parser: argparse.ArgumentParser) -> None:
  """Adds the common arguments of commands that derive files from bitext with an encoder."""
  add = parser.add_argument
  add(
    "encoder",
    metavar="RUN",
    help="MODEL_DIR of an encoder, or one of its checkpoint_<step> folders",
  )
  add(
    "output",
    metavar="FOLDER",
    help="output folder (local, gs:// or s3://); finished files are skipped",
  )
  add("patterns", nargs="+", metavar="PATTERN", help="bitext files, as in training; quote patterns")
  add(
    "--languages",
    nargs=2,
    metavar="CODE",
    help="languages of the two sides (default: from file names)",
  )
  add(
    "--fields",
    nargs=2,
    metavar="NAME",
    help="names of the two fields of JSONL files (default: language codes)",
  )
  add(
    "--batch-size",
    type=int,
    default=128,
    metavar="N",
    help="sentences per batch (default %(default)s)",
  )
  add("--refresh", action="store_true", help="make all files again, e.g. with another encoder")


def _mine_negatives_arguments(parser: argparse.ArgumentParser) -> None:
  _bitext_arguments(parser)
  parser.add_argument(
    "--count",
    type=int,
    default=3,
    metavar="K",
    help="number of hard negatives per pair (default %(default)s)",
  )


def _bitext_options(args: argparse.Namespace) -> dict[str, Any]:
  return {
    "languages": tuple(args.languages) if args.languages else None,
    "fields": tuple(args.fields) if args.fields else None,
    "batch_size": args.batch_size,
    "refresh": args.refresh,
  }


def _mine_negatives(args: argparse.Namespace) -> None:
  from vmsst.mining import hard_negative_mining

  made = hard_negative_mining.mine_files(
    args.encoder, args.patterns, args.output, count=args.count, **_bitext_options(args)
  )
  for path, counts in made.items():
    print(f"{path}: {counts['negatives']:,} hard negatives of {counts['pairs']:,} pairs")


def _embed_bitext(args: argparse.Namespace) -> None:
  from vmsst.vectors import bitext_vectors

  made = bitext_vectors.embed_files(
    args.encoder, args.patterns, args.output, **_bitext_options(args)
  )
  for path, counts in made.items():
    print(f"{path}: {counts['lines']:,} pairs of vectors of dimension {counts['dimension']}")


COMMANDS: dict[tuple[str, ...], Command] = {
  ("data", "embed"): Command(
    "embed bitext files with a teacher, to distill it into a student",
    _bitext_arguments,
    _embed_bitext,
    resumable=True,
    inputs=("encoder", "patterns"),
    output_folder="output",
    urls=("encoder", "patterns", "output"),
  ),
  ("data", "mine-negatives"): Command(
    "mine hard negatives for bitext files: plausible but wrong translations",
    _mine_negatives_arguments,
    _mine_negatives,
    resumable=True,
    inputs=("encoder", "patterns"),
    output_folder="output",
    urls=("encoder", "patterns", "output"),
  ),
  ("vocab", "train"): Command(
    "train a SentencePiece vocabulary on bitext or text files",
    _vocab_train_arguments,
    _vocab_train,
    inputs=("input",),
    output_file="output",
    patience=24 * 60,  # SentencePiece does not tell how far it is
    urls=("input", "output"),
  ),
}
