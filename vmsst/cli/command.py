"""The type of a subcommand, and helpers that several subcommands share."""

import argparse
import contextlib
import dataclasses
import math
import pathlib
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence

from vmsst import errors
from vmsst.files import outputs, storage, text_files, work_folders

ENCODER_HELP = (
  "a run's MODEL_DIR, one of its checkpoint_<step>, an import or export (local, gs:// or s3://), a "
  "sentence-transformers folder, or a name on the Hugging Face Hub (owner/name)"
)


@dataclasses.dataclass(frozen=True)
class Command:
  """A subcommand.

  Attributes:
    help: One line for `--help`.
    add_arguments: Declares the arguments.
    run: Runs the command; raises InputError for errors a user can fix.
    resumable: Whether an interrupted command resumes when it is rerun.
    inputs: Names of the arguments with files, folders or patterns to read.
    output_file: Name of the argument with the file to write.
    output_folder: Name of the argument with the folder to write to.
    atomic: Whether the folder appears at once and is locked by who writes it; see
      `files.work_folders.atomic_folder`.
    patience: Minutes without progress after which the command ends; see `files.watchdog`.
    urls: Names of those arguments that may be in an object store; URLs in others are an error.
  """

  help: str
  add_arguments: Callable[[argparse.ArgumentParser], None]
  run: Callable[[argparse.Namespace], None]
  resumable: bool = False
  inputs: Sequence[str] = ()
  output_file: str | None = None
  output_folder: str | None = None
  atomic: bool = False
  patience: float = 60.0
  urls: Sequence[str] = ("encoder",)

  def __call__(self, args: argparse.Namespace) -> None:
    """Checks the paths, locks the output, runs the command; a failure leaves no empty folders."""
    file, folder = (
      None if name is None else getattr(args, name)
      for name in (self.output_file, self.output_folder)
    )
    for name in filter(None, (*self.inputs, self.output_file, self.output_folder)):
      for path in _values(args, name) if name not in self.urls else ():
        storage.check_local(path, name.upper())
    inputs = [path for name in self.inputs for path in _values(args, name)]
    outputs.check(inputs, file=file, folder=folder)
    output = file or folder or outputs.STANDARD
    locked = output != outputs.STANDARD and not self.atomic
    with (
      outputs.no_empty_folders(output),
      work_folders.owned(output, is_folder=not file) if locked else contextlib.nullcontext(),
    ):
      self.run(args)


def _values(args: argparse.Namespace, name: str) -> Sequence[str]:
  """Returns the paths that are given for an argument."""
  value = getattr(args, name)
  return [value] if isinstance(value, str) else value or []


def read_lines(path: str) -> list[str]:
  """Returns the lines of a UTF-8 file, plain or gzipped, or of standard input for "-".

  Raises:
    InputError: the file cannot be read or is empty.
  """
  with local_file(path) as local:
    lines = list(text_files.read_lines(local))
    if not lines:
      raise errors.InputError(f"{local}: empty; give a text with at least one line")
    return lines


@contextlib.contextmanager
def local_file(path: str) -> Iterator[str]:
  """Yields the path, or for "-" that of a temporary file with the content of standard input."""
  if path != "-":
    yield path
    return
  with tempfile.TemporaryDirectory(prefix="vmsst-") as folder:
    kept = pathlib.Path(folder, "standard input")
    with kept.open("wb") as stream:
      shutil.copyfileobj(sys.stdin.buffer, stream)
    with storage.naming(str(kept), kept.name):
      yield str(kept)


def backend_argument(parser: argparse.ArgumentParser) -> None:
  """Adds --backend, of commands that compute vectors."""
  parser.add_argument(
    "--backend",
    choices=("jax", "openvino"),
    default="jax",
    help="what computes vectors: jax; or, faster on CPUs and in float32, openvino "
    "(default: %(default)s)",
  )


def finite_number(text: str) -> float:
  """Parses an argument that is a finite number."""
  value = float(text)
  if not math.isfinite(value):
    raise argparse.ArgumentTypeError(f"{text} is not a finite number")
  return value


def at_least_1(text: str) -> int:
  """Parses an argument that is an integer above 0."""
  value = int(text)
  if value < 1:
    raise argparse.ArgumentTypeError(f"{text} is below 1")
  return value
