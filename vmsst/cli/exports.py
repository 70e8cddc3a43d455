"""`vmsst export`: encoders for other programs."""

import argparse

from vmsst.cli.command import Command

_ENCODER_HELP = "a run's MODEL_DIR, one checkpoint_<step> of it, an imported encoder or an export"


def _folder_arguments(parser: argparse.ArgumentParser) -> None:
  parser.add_argument("encoder", metavar="ENCODER", help=_ENCODER_HELP)
  parser.add_argument("output", metavar="OUT", help="folder to make")


def _sentence_transformers_arguments(parser: argparse.ArgumentParser) -> None:
  _folder_arguments(parser)
  parser.add_argument(
    "--words-given",
    action="store_true",
    help="texts will have been split into words before they are encoded: for vocabularies that do "
    "so by the rules of a language, as that of EMS, which no tokenizer.json can",
  )


def _sentence_transformers(args: argparse.Namespace) -> None:
  from vmsst.exports import sentence_transformers_folder as export

  print(
    export.describe(
      export.export_sentence_transformers(args.encoder, args.output, words_given=args.words_given)
    )
  )


def _safetensors(args: argparse.Namespace) -> None:
  from vmsst.exports import safetensors_folder

  folder = safetensors_folder.export_safetensors(args.encoder, args.output)
  print(f"vmsst.load({str(folder)!r}) opens it")


def _stablehlo(args: argparse.Namespace) -> None:
  from vmsst.exports import stablehlo as export

  print(export.describe(export.export_stablehlo(args.encoder, args.output)))


COMMANDS: dict[tuple[str, ...], Command] = {
  ("export", "sentence-transformers"): Command(
    "write an encoder as a folder that SentenceTransformer opens",
    _sentence_transformers_arguments,
    _sentence_transformers,
  ),
  ("export", "safetensors"): Command(
    "write an encoder alone, as plain files that vmsst.load opens", _folder_arguments, _safetensors
  ),
  ("export", "stablehlo"): Command(
    "write an encoder as a function that JAX calls without this library",
    _folder_arguments,
    _stablehlo,
  ),
}
