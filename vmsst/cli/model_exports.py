"""`vmsst export` and `vmsst push`: encoders for other programs and people."""

import argparse

from vmsst.cli.command import Command

_ENCODER_HELP = (
  "a run's MODEL_DIR, one of its checkpoint_<step> folders, an imported encoder or an export"
)


def _folder_arguments(parser: argparse.ArgumentParser) -> None:
  parser.add_argument("encoder", metavar="ENCODER", help=_ENCODER_HELP)
  parser.add_argument("output", metavar="OUT", help="folder to make")


def _tokenizer_arguments(parser: argparse.ArgumentParser) -> None:
  _folder_arguments(parser)
  _add_pretokenized(parser)


def _add_pretokenized(parser: argparse.ArgumentParser) -> None:
  parser.add_argument(
    "--pretokenized",
    action="store_true",
    help="texts will be split into words before they are encoded; required for a tokenizer.json "
    "if the vocabulary splits them by the rules of their language (EMS), which it cannot do",
  )


def _sentence_transformers(args: argparse.Namespace) -> None:
  from vmsst.exports import sentence_transformers_folder as export

  print(
    export.describe(
      export.export_sentence_transformers(args.encoder, args.output, pretokenized=args.pretokenized)
    )
  )


def _safetensors(args: argparse.Namespace) -> None:
  from vmsst.exports import safetensors_folder

  folder = safetensors_folder.export_safetensors(args.encoder, args.output)
  print(f"vmsst.load({str(folder)!r}) opens it")


def _onnx(args: argparse.Namespace) -> None:
  from vmsst.exports import onnx_folder as export

  print(
    export.describe(export.export_onnx(args.encoder, args.output, pretokenized=args.pretokenized))
  )


def _push_arguments(parser: argparse.ArgumentParser) -> None:
  add = parser.add_argument
  add("encoder", metavar="ENCODER", help=_ENCODER_HELP)
  add("repository", metavar="OWNER/NAME", help="repository, made if it is new")
  add(
    "--public",
    action="store_true",
    help="let everyone see a new repository, or upload to a public one (default: private)",
  )
  add("--revision", metavar="BRANCH", help="branch, made if it is new (default: main)")
  add("--commit-message", metavar="TEXT", help="message of the commit")
  add("--license", metavar="ID", help="license in the model card, such as apache-2.0")
  add(
    "--results",
    metavar="DIR",
    help="output folder of `vmsst eval`; the model card shows its averages next to published ones",
  )
  _add_pretokenized(parser)


def _push(args: argparse.Namespace) -> None:
  from vmsst.exports import hub_upload

  uploaded = hub_upload.push(
    args.encoder,
    args.repository,
    public=args.public,
    revision=args.revision,
    message=args.commit_message,
    license_id=args.license,
    results=args.results,
    pretokenized=args.pretokenized,
  )
  print(hub_upload.describe(uploaded))


COMMANDS: dict[tuple[str, ...], Command] = {
  ("export", "sentence-transformers"): Command(
    "export an encoder as a folder that SentenceTransformer opens",
    _tokenizer_arguments,
    _sentence_transformers,
    inputs=("encoder",),
    output_folder="output",
    atomic=True,
    urls=("encoder", "output"),
  ),
  ("export", "safetensors"): Command(
    "export an encoder alone, as plain files that vmsst.load opens",
    _folder_arguments,
    _safetensors,
    inputs=("encoder",),
    output_folder="output",
    atomic=True,
    urls=("encoder", "output"),
  ),
  ("export", "onnx"): Command(
    "export an encoder as an ONNX model with its tokenizer, for ONNX Runtime and OpenVINO",
    _tokenizer_arguments,
    _onnx,
    inputs=("encoder",),
    output_folder="output",
    atomic=True,
    urls=("encoder", "output"),
  ),
  ("push",): Command(
    "upload an encoder to the Hugging Face Hub, for vmsst.load and sentence-transformers",
    _push_arguments,
    _push,
    resumable=True,
    inputs=("encoder", "results"),
    urls=("encoder", "results"),
    patience=6 * 60,  # nothing shows the progress of an upload
  ),
}
