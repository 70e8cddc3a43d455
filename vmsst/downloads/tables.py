"""Tables as benchmarks read them, out of the tables that others publish."""

import csv
import pathlib
from collections.abc import Iterator, Mapping

from vmsst import errors
from vmsst.files import atomic_files, text_files

PART = "@part"
"""In the place of a column: the name of the part that a row is of."""


def join(
  parts: Mapping[str, pathlib.Path],
  columns: Mapping[str, str],
  path: pathlib.Path,
  *,
  quoted: bool,
  header: bool,
) -> None:
  """Writes one table, its fields parted by TABs, of the rows of several.

  Every run of white space in a field becomes a space.

  Args:
    parts: Tables by name, in their order, .csv or .tsv, each with a line of names of its columns.
    columns: The columns to write, and the column of each in the parts, or `PART`.
    path: Where to.
    quoted: Whether fields of the parts are in quotes where they have some.
    header: Whether its first line has the names of its columns.

  Raises:
    InputError: a part lacks a column, has a row of another length, or none.
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
  separator = "," if path.suffix == ".csv" else "\t"
  if not quoted:
    for line in text_files.read_lines(str(path)):
      yield line.split(separator)
    return
  with open(path, encoding="utf-8-sig", newline="") as stream:
    try:
      yield from csv.reader(stream, delimiter=separator, strict=True)
    except (csv.Error, UnicodeDecodeError) as error:
      raise errors.InputError(f"{path}: no table in quotes and UTF-8: {error}") from None
