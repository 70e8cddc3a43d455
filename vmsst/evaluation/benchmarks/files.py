"""Finds benchmark files, plain or gzipped, and reads their lines and fields.

Error messages name the file and, if possible, the line.
"""

import contextlib
import math
from collections.abc import Iterator, Mapping
from typing import TypeVar

from vmsst import errors, languages, storage
from vmsst.io import text_files

_Record = TypeVar("_Record")


def files_in(folder: storage.Path, *patterns: str) -> list[storage.Path]:
  """Returns the files that match any of the glob patterns, sorted.

  If a file exists both plain and gzipped, only the plain file is returned.

  Args:
    folder: Folder to search.
    patterns: Glob patterns without `.gz`.

  Raises:
    InputError: If no file matches any pattern.
  """
  paths = {
    plain_name(path): path
    for end in (".gz", "")
    for pattern in patterns
    for path in storage.find(folder, pattern + end)
  }
  if not paths:
    raise errors.InputError(f"{folder} contains no {' or '.join(patterns)}")
  return sorted(paths.values())


def plain_or_gzipped(path: storage.Path) -> storage.Path:
  """Returns `path` if it exists, or else `path` with `.gz`; raises InputError if neither exists."""
  gzipped = path.with_name(path.name + ".gz")
  for candidate in (path, gzipped):
    if storage.is_file(candidate):
      return candidate
  raise errors.InputError(f"neither {path} nor {gzipped.name} exists")


def plain_name(path: storage.Path) -> str:
  """Returns the file name without `.gz`."""
  return path.name.removesuffix(".gz")


def table(path: storage.Path, columns: int | None = None) -> Iterator[list[str]]:
  """Yields the TAB-separated fields of each line.

  Args:
    path: The file.
    columns: Expected number of fields (default: the number in the first line).

  Raises:
    InputError: If a line does not have the expected number of fields.
  """
  for number, line in enumerate(text_files.read_lines(str(path)), 1):
    row = line.split("\t")
    columns = columns or len(row)
    if len(row) != columns:
      raise errors.InputError(f"{path}:{number}: the line has {len(row)} fields, not {columns}")
    yield row


def column(path: storage.Path) -> list[str]:
  """Returns all lines of a file with one text per line."""
  return [text for (text,) in table(path, 1)]


def read_aligned(*paths: storage.Path) -> list[list[str]]:
  """Returns the lines of aligned files; raises InputError if the line counts differ or are 0."""
  columns = [column(path) for path in paths]
  for path, texts in zip(paths, columns, strict=True):
    if len(texts) != len(columns[0]) or not texts:
      raise errors.InputError(
        f"{paths[0]} has {len(columns[0])} lines and {path} has {len(texts)}, but the files "
        "must be aligned; copy both files again"
      )
  return columns


def by_label(paths: Mapping[str, storage.Path]) -> dict[str, list[str]]:
  """Returns the lines of aligned files by label; see `read_aligned`."""
  return dict(zip(paths, read_aligned(*paths.values()), strict=True))


def number(field: str, path: storage.Path, line: int) -> float:
  """Parses a field as a number; raises InputError if it is not a finite number."""
  with contextlib.suppress(ValueError):
    if math.isfinite(value := float(field)):
      return value
  raise errors.InputError(f"{path}:{line}: {field!r} is not a score; use a number")


def known_code(code: str, path: storage.Path) -> str:
  """Returns `code`; raises an InputError that names the file if the code is unknown."""
  try:
    languages.language(code)
  except errors.InputError as error:
    raise errors.InputError(f"{path}: {error}") from None
  return code
