"""What the readers of benchmarks share: finding files, plain or gzipped, and reading their fields.

All errors are `errors.InputError` and name the file, and the line where there is one.
"""

import math
import pathlib
from collections.abc import Iterator

from vmsst import errors, languages
from vmsst.files import text_files


def files_in(folder: pathlib.Path, *patterns: str, source: str = "") -> list[pathlib.Path]:
  """The files of a folder that match one of the glob patterns, as they are or with `.gz`, sorted.

  Args:
    folder: To look in.
    patterns: Without `.gz`.
    source: Where such files come from, for people; it is part of the error.

  Raises:
    InputError: there is none, or one is there both plain and gzipped.
  """
  found = {path for each in patterns for end in ("", ".gz") for path in folder.glob(each + end)}
  if not found:
    raise errors.InputError(_with_source(f"{folder} holds no {' or '.join(patterns)}", source))
  for path in found:
    gzipped = path.with_name(path.name + ".gz")
    if gzipped in found:
      raise errors.InputError(f"{path} and {gzipped} are both there: remove one of them")
  return sorted(found)


def plain_or_gzipped(path: pathlib.Path, *, source: str = "") -> pathlib.Path:
  """A file, or the one of its name with `.gz`; raises InputError, with `source`, if none exists."""
  gzipped = path.with_name(path.name + ".gz")
  for each in (path, gzipped):
    if each.is_file():
      return each
  raise errors.InputError(_with_source(f"neither {path} nor {gzipped.name} exists", source))


def plain_name(path: pathlib.Path) -> str:
  """The name of a file without `.gz`."""
  return path.name.removesuffix(".gz")


def table(path: pathlib.Path, columns: int | None = None) -> Iterator[list[str]]:
  """The fields, parted by TABs, of each line: `columns`, or as many as the first line has."""
  for number, line in enumerate(text_files.read_lines(str(path)), 1):
    row = line.split("\t")
    columns = columns or len(row)
    if len(row) != columns:
      raise errors.InputError(f"{path}:{number}: {len(row)} fields, not {columns}")
    yield row


def column(path: pathlib.Path) -> list[str]:
  """The lines of a file that has one text a line."""
  return [text for (text,) in table(path, 1)]


def aligned(*paths: pathlib.Path) -> list[list[str]]:
  """The lines of files whose lines belong together; raises InputError if their numbers differ."""
  columns = [column(path) for path in paths]
  for path, texts in zip(paths, columns, strict=True):
    if not texts:
      raise errors.InputError(f"{path} is empty")
    if len(texts) != len(columns[0]):
      raise errors.InputError(
        f"{paths[0]} has {len(columns[0])} lines and {path} has {len(texts)}: they have to be "
        "translations line by line; copy both again"
      )
  return columns


def number(field: str, path: pathlib.Path, line: int) -> float:
  """A field as a number; raises InputError if it is empty, no number or not finite."""
  try:
    value = float(field)
  except ValueError:
    value = math.nan
  if not math.isfinite(value):
    raise errors.InputError(f"{path}:{line}: {field!r} is no score: a number is needed there")
  return value


def known_code(code: str, path: pathlib.Path) -> str:
  """The code of a language out of the name of a file; raises InputError if it is unknown."""
  try:
    languages.language(code)
  except errors.InputError as error:
    raise errors.InputError(f"{path}: {error}") from None
  return code


def _with_source(message: str, source: str) -> str:
  return f"{message}; {source}" if source else message
