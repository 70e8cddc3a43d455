"""Records of files with one JSON object a line; errors are InputError with file and line."""

import pathlib
from collections.abc import Iterator
from typing import Any

from vmsst import errors
from vmsst.files import input_files, text_files


def records(path: pathlib.Path) -> Iterator[tuple[str, dict[str, Any]]]:
  """The object of every line of a plain or gzipped file, and `file:line` of it."""
  for number, line in enumerate(text_files.read_lines(str(path)), 1):
    place = f"{path}:{number}"
    yield place, parse(line, place)


def parse(line: str, place: str) -> dict[str, Any]:
  """The object that a line holds; raises InputError, with the place, if it holds none."""
  record = input_files.parse_json(line, place)
  if not isinstance(record, dict):
    raise errors.InputError(f"{place}: not a JSON object but {type(record).__name__}")
  return record


def text(record: dict[str, Any], name: str, place: str) -> str:
  """A field that has to be text; raises InputError if it is missing or something else."""
  value = record.get(name)
  if not input_files.is_text(value):
    raise errors.InputError(f"{place}: no text under {name!r}; it has {', '.join(record)}")
  return str(value)
