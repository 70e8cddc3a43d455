"""Finds the files of benchmarks, plain or gzipped, and reads their fields.

Errors are `errors.InputError` and name the file and, if possible, the line.
"""

import math
from collections.abc import Iterator
from typing import Any

from vmsst import errors, languages, storage
from vmsst.io import input_files, text_files


def files_in(folder: storage.Path, *patterns: str, source: str = "") -> list[storage.Path]:
  """Returns the files of a folder that match a glob pattern, plain or with `.gz`, sorted.

  Args:
    folder: The folder.
    patterns: Without `.gz`.
    source: Source of the files, for the error message.

  Raises:
    InputError: there is no file, or one exists both plain and gzipped.
  """
  paths = {
    path
    for pattern in patterns
    for end in ("", ".gz")
    for path in storage.find(folder, pattern + end)
  }
  if not paths:
    raise errors.InputError(_with_source(f"{folder} has no {' or '.join(patterns)}", source))
  for path in paths:
    gzipped = path.with_name(path.name + ".gz")
    if gzipped in paths:
      raise errors.InputError(f"{path} and {gzipped} both exist: remove one of them")
  return sorted(paths)


def plain_or_gzipped(path: storage.Path, *, source: str = "") -> storage.Path:
  """Returns a file, or the same with `.gz`; raises InputError, with `source`, if none exists."""
  gzipped = path.with_name(path.name + ".gz")
  for candidate in (path, gzipped):
    if storage.is_file(candidate):
      return candidate
  raise errors.InputError(_with_source(f"neither {path} nor {gzipped.name} exists", source))


def plain_name(path: storage.Path) -> str:
  """Returns the name of a file without `.gz`."""
  return path.name.removesuffix(".gz")


def table(path: storage.Path, columns: int | None = None) -> Iterator[list[str]]:
  """Yields the TAB-separated fields of each line: `columns`, or as many as in the first line."""
  for number, line in enumerate(text_files.read_lines(str(path)), 1):
    row = line.split("\t")
    columns = columns or len(row)
    if len(row) != columns:
      raise errors.InputError(f"{path}:{number}: {len(row)} fields, not {columns}")
    yield row


def column(path: storage.Path) -> list[str]:
  """Returns the lines of a file with one text per line."""
  return [text for (text,) in table(path, 1)]


def aligned(*paths: storage.Path) -> list[list[str]]:
  """Returns the lines of aligned files; raises InputError if their numbers differ."""
  columns = [column(path) for path in paths]
  for path, texts in zip(paths, columns, strict=True):
    if not texts:
      raise errors.InputError(f"{path} is empty")
    if len(texts) != len(columns[0]):
      raise errors.InputError(
        f"{paths[0]} has {len(columns[0])} lines and {path} has {len(texts)}, but they must be "
        "aligned: copy both again"
      )
  return columns


def number(field: str, path: storage.Path, line: int) -> float:
  """Parses a field as a number; raises InputError if it is not a finite number."""
  try:
    value = float(field)
  except ValueError:
    value = math.nan
  if not math.isfinite(value):
    raise errors.InputError(f"{path}:{line}: {field!r} is not a score: give a number")
  return value


def known_code(code: str, path: storage.Path) -> str:
  """Returns a language code from a file's name; raises InputError if it is unknown."""
  try:
    languages.language(code)
  except errors.InputError as error:
    raise errors.InputError(f"{path}: {error}") from None
  return code


def _with_source(message: str, source: str) -> str:
  return f"{message}; {source}" if source else message


def records(path: storage.Path) -> Iterator[tuple[str, dict[str, Any]]]:
  """Yields `file:line` and the object of every line of a plain or gzipped file."""
  for number, line in enumerate(text_files.read_lines(str(path)), 1):
    location = f"{path}:{number}"
    yield location, parse(line, location)


def parse(line: str, location: str) -> dict[str, Any]:
  """Parses the JSON object in a line; raises InputError with the place if there is none."""
  record = input_files.parse_json(line, location)
  if not isinstance(record, dict):
    raise errors.InputError(f"{location}: not a JSON object but {type(record).__name__}")
  return record


def text(record: dict[str, Any], name: str, location: str) -> str:
  """Returns a text field; raises InputError if it is missing or is not a text."""
  value = record.get(name)
  if not input_files.is_text(value):
    raise errors.InputError(f"{location}: no text under {name!r}; it has {', '.join(record)}")
  return str(value)


def text_list(record: dict[str, Any], name: str, location: str) -> list[str]:
  """Returns a field with a text or a list of texts; raises InputError if it has neither."""
  value = record.get(name)
  texts = [value] if isinstance(value, str) else value
  if not isinstance(texts, list) or not texts or not all(isinstance(x, str) for x in texts):
    raise errors.InputError(f"{location}: {name!r} is neither a text nor a list of texts")
  return texts
