"""Converts published tables to the format that the benchmarks read."""

import csv
import pathlib
from collections.abc import Iterator, Mapping
from typing import TextIO

from vmsst import errors
from vmsst.io import input_files
from vmsst.jobs import atomic_files

PART = "@part"
"""Stands for a column that contains the name of a row's part."""

_LINE_CHARACTERS = 1 << 24


def join(
  parts: Mapping[str, pathlib.Path],
  columns: Mapping[str, str],
  path: pathlib.Path,
  *,
  quoted: bool,
  header: bool,
) -> None:
  """Writes the rows of several tables to one TAB-separated table.

  White space in a field is normalized to single spaces.

  Args:
    parts: TAB-separated tables by name, in order, each with a header line.
    columns: Maps each column to write to a column of the parts, or to `PART`.
    path: The output file.
    quoted: Whether fields of the parts may be in quotes.
    header: Whether to write a header line.

  Raises:
    InputError: a part lacks a column, has no rows, or a row has the wrong number of fields.
  """
  with atomic_files.atomic_text(path) as out:
    if header:
      out.write("\t".join(columns) + "\n")
    for name, source in parts.items():
      rows = _rows(source, quoted)
      names = next(rows, [])
      if lacking := [x for x in columns.values() if x not in (PART, *names)]:
        raise errors.InputError(f"{source}:1: no column {', '.join(lacking)}")
      number = 1
      for number, row in enumerate(rows, 2):
        if len(row) != len(names):
          raise errors.InputError(f"{source}: row {number} has {len(row)} fields, not {len(names)}")
        cells = dict(zip(names, row, strict=True))
        fields = [name if x == PART else " ".join(cells[x].split()) for x in columns.values()]
        out.write("\t".join(fields) + "\n")
      if number == 1:
        raise errors.InputError(f"{source}: no rows")


def _rows(path: pathlib.Path, quoted: bool) -> Iterator[list[str]]:
  input_files.check(path)
  with open(path, encoding="utf-8-sig", newline="") as stream:
    lines = _short_lines(stream, path)
    try:
      yield from csv.reader(
        lines,
        delimiter="\t",
        quoting=csv.QUOTE_MINIMAL if quoted else csv.QUOTE_NONE,
        strict=True,
      )
    except (csv.Error, UnicodeDecodeError) as error:
      raise errors.InputError(f"{path}: not a table in UTF-8: {error}") from None


def _short_lines(stream: TextIO, path: pathlib.Path) -> Iterator[str]:
  """Yields lines with their ends; raises InputError for one that could fill the memory."""
  while line := stream.readline(_LINE_CHARACTERS + 1):
    if len(line) > _LINE_CHARACTERS:
      raise errors.InputError(f"{path}: a line has more than {_LINE_CHARACTERS:,} characters")
    yield line
