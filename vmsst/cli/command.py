"""The type of a subcommand, and helpers that several subcommands share."""

import argparse
import contextlib
import dataclasses
import pathlib
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator

from vmsst import errors

ENCODER_HELP = (
  "a run's MODEL_DIR, one of its checkpoint_<step>, an import or export (local, gs:// or s3://), "
  "or a sentence-transformers folder"
)


@dataclasses.dataclass(frozen=True)
class Command:
  """A subcommand.

  Attributes:
    help: One line for `--help`.
    add_arguments: Declares the arguments.
    run: Runs the command; raises InputError for errors a user can fix.
    resumable: Whether an interrupted command resumes when it is rerun.
  """

  help: str
  add_arguments: Callable[[argparse.ArgumentParser], None]
  run: Callable[[argparse.Namespace], None]
  resumable: bool = False


def read_lines(path: str) -> list[str]:
  """Returns the lines of a UTF-8 file, or of standard input for "-"; only newlines end a line."""
  content = sys.stdin.buffer.read() if path == "-" else pathlib.Path(path).read_bytes()
  try:
    lines = content.decode().split("\n")
  except UnicodeDecodeError as error:
    line = content.count(b"\n", 0, error.start) + 1
    name = "standard input" if path == "-" else path
    raise errors.InputError(f"{name}:{line}: not UTF-8") from None
  return [line.removesuffix("\r") for line in (lines if lines[-1] else lines[:-1])]


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
    yield str(kept)


def at_least_1(text: str) -> int:
  """Parses an argument that is an integer above 0."""
  value = int(text)
  if value < 1:
    raise argparse.ArgumentTypeError(f"{text} is below 1")
  return value
