"""Reads files with one JSON object per line; errors are InputError with file and line."""

from collections.abc import Iterator
from typing import Any

from vmsst import errors
from vmsst.io import input_files, storage, text_files


def records(path: storage.Path) -> Iterator[tuple[str, dict[str, Any]]]:
  """Yields `file:line` and the object of every line of a plain or gzipped file."""
  for number, line in enumerate(text_files.read_lines(str(path)), 1):
    place = f"{path}:{number}"
    yield place, parse(line, place)


def parse(line: str, place: str) -> dict[str, Any]:
  """Parses the JSON object in a line; raises InputError with the place if there is none."""
  record = input_files.parse_json(line, place)
  if not isinstance(record, dict):
    raise errors.InputError(f"{place}: not a JSON object but {type(record).__name__}")
  return record


def text(record: dict[str, Any], name: str, place: str) -> str:
  """Returns a text field; raises InputError if it is missing or is not a text."""
  value = record.get(name)
  if not input_files.is_text(value):
    raise errors.InputError(f"{place}: no text under {name!r}; it has {', '.join(record)}")
  return str(value)


def text_list(record: dict[str, Any], name: str, place: str) -> list[str]:
  """Returns a field with a text or a list of texts; raises InputError if it has neither."""
  value = record.get(name)
  found = [value] if isinstance(value, str) else value
  if not isinstance(found, list) or not found or not all(isinstance(x, str) for x in found):
    raise errors.InputError(f"{place}: {name!r} is neither a text nor a list of texts")
  return found
