"""What a subcommand is, and what several of them share."""

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
  "a run's MODEL_DIR, one checkpoint_<step> of it, an import or export (local, gs:// or s3://), or "
  "a folder of sentence-transformers"
)


@dataclasses.dataclass(frozen=True)
class Command:
  """A subcommand.

  Attributes:
    help: One line.
    add_arguments: Declares its arguments.
    run: Does the work; raises InputError where the user can put something right.
    resumable: Whether it goes on where it was interrupted when it is called again.
  """

  help: str
  add_arguments: Callable[[argparse.ArgumentParser], None]
  run: Callable[[argparse.Namespace], None]
  resumable: bool = False


def read_lines(path: str) -> list[str]:
  """Lines of a UTF-8 file, or of standard input where that is "-"; only a newline ends one."""
  content = sys.stdin.buffer.read() if path == "-" else pathlib.Path(path).read_bytes()
  try:
    lines = content.decode().split("\n")
  except UnicodeDecodeError as error:
    line = content.count(b"\n", 0, error.start) + 1
    name = "standard input" if path == "-" else path
    raise errors.InputError(f"{name}, line {line}: not UTF-8") from None
  return [line.removesuffix("\r") for line in (lines if lines[-1] else lines[:-1])]


@contextlib.contextmanager
def local_file(path: str) -> Iterator[str]:
  """The file, or one that holds what comes from standard input where `path` is "-"."""
  if path != "-":
    yield path
    return
  with tempfile.TemporaryDirectory(prefix="vmsst-") as folder:
    kept = pathlib.Path(folder, "standard input")
    with kept.open("wb") as stream:
      shutil.copyfileobj(sys.stdin.buffer, stream)
    yield str(kept)


def at_least_1(text: str) -> int:
  """An argument that is a whole number above 0."""
  value = int(text)
  if value < 1:
    raise argparse.ArgumentTypeError(f"{text} is below 1")
  return value
