"""`vmsst vocab` and `vmsst data`: what is made of bitext before training."""

import argparse
from typing import Any

from vmsst.cli.command import Command


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
    "--pretokenize",
    action="store_true",
    help="split the text into words first, by the rules of its language (before --lowercase)",
  )
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
  print(f"{report.path}: {report.size:,} {args.model_type} pieces (0 padding, 1 end, 2 unknown)")
  for option in ("lowercase", "pretokenize"):
    if getattr(args, option):
      print(f"Use it with SentencePieceVocabulary.{option} = True.")


def _bitext_arguments(parser: argparse.ArgumentParser) -> None:
  """Declares what the commands have in common that make files of bitext with an encoder."""
  add = parser.add_argument
  add("encoder", metavar="RUN", help="an encoder's MODEL_DIR or one checkpoint_<step> of it")
  add("output", metavar="FOLDER", help="folder to make; what is finished in it is not made again")
  add("patterns", nargs="+", metavar="PATTERN", help="bitext files, as in training; quote patterns")
  add(
    "--languages",
    nargs=2,
    metavar="CODE",
    help="languages of the two sides, where file names do not tell",
  )
  add("--fields", nargs=2, metavar="NAME", help="the two fields of JSONL files")
  add("--batch-size", type=int, default=128, metavar="N", help="default %(default)s")
  add("--refresh", action="store_true", help="make all files again, as with another encoder")


def _mine_negatives_arguments(parser: argparse.ArgumentParser) -> None:
  _bitext_arguments(parser)
  parser.add_argument(
    "--count", type=int, default=3, metavar="K", help="of each pair (default %(default)s)"
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
    print(f"{path}: {counts['negatives']:,} wrong translations of {counts['pairs']:,} pairs")


def _embed_bitext(args: argparse.Namespace) -> None:
  from vmsst.vectors import bitext_vectors

  made = bitext_vectors.embed_files(
    args.encoder, args.patterns, args.output, **_bitext_options(args)
  )
  for path, counts in made.items():
    print(f"{path}: {counts['lines']:,} pairs of vectors, {counts['dimension']} wide")


COMMANDS: dict[tuple[str, ...], Command] = {
  ("data", "embed"): Command(
    "write an encoder's vectors of bitext files, for a student to learn from",
    _bitext_arguments,
    _embed_bitext,
    resumable=True,
  ),
  ("data", "mine-negatives"): Command(
    "write bitext files with wrong translations that an encoder finds near the right ones",
    _mine_negatives_arguments,
    _mine_negatives,
    resumable=True,
  ),
  ("vocab", "train"): Command(
    "train a SentencePiece vocabulary on bitext or text files", _vocab_train_arguments, _vocab_train
  ),
}
