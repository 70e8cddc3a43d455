"""The type of a subcommand, and helpers that several subcommands share."""

import argparse
import contextlib
import dataclasses
import pathlib
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence

from vmsst import errors
from vmsst.files import outputs, text_files

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
    patience: Minutes without progress after which the command ends; see `files.watchdog`.
  """

  help: str
  add_arguments: Callable[[argparse.ArgumentParser], None]
  run: Callable[[argparse.Namespace], None]
  resumable: bool = False
  inputs: Sequence[str] = ()
  output_file: str | None = None
  output_folder: str | None = None
  patience: float = 60.0

  def __call__(self, args: argparse.Namespace) -> None:
    """Checks the paths, runs the command, and removes the empty folders that a failure leaves."""
    file, folder = (
      None if name is None else getattr(args, name)
      for name in (self.output_file, self.output_folder)
    )
    outputs.check(self._inputs(args), file=file, folder=folder)
    with outputs.no_empty_folders(file or folder or outputs.STANDARD):
      self.run(args)

  def _inputs(self, args: argparse.Namespace) -> Iterator[str]:
    for name in self.inputs:
      value = getattr(args, name)
      if isinstance(value, str):
        yield value
      elif value is not None:
        yield from value


def read_lines(path: str) -> list[str]:
  """Returns the lines of a UTF-8 file, plain or gzipped, or of standard input for "-"."""
  with local_file(path) as local:
    return list(text_files.read_lines(local))


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
    try:
      yield str(kept)
    except errors.InputError as error:
      raise errors.InputError(str(error).replace(str(kept), kept.name)) from None


def at_least_1(text: str) -> int:
  """Parses an argument that is an integer above 0."""
  value = int(text)
  if value < 1:
    raise argparse.ArgumentTypeError(f"{text} is below 1")
  return value
