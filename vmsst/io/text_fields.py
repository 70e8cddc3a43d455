"""Reads one text per line of a file: the line, a TSV column, or a JSON Lines value."""

import contextlib
import itertools
import os
import re
import unicodedata
from collections.abc import Iterable, Iterator

from vmsst import errors
from vmsst.io import archives, input_files, text_files

# Control and format characters and spaces; and fillers, which count as letters and marks.
_BLANK = {"Cc", "Cf", "Zl", "Zp", "Zs"}
SEPARATORS = str.maketrans("\t\n\r", "   ")
"""Turns what cannot be in a field of a TSV file into spaces."""
# Decimal commas, separators of thousands, fractions, percentages and exponents, in any digits.
_NUMBER = re.compile(
  r"(?i)[-+\u2212]?([.,\u066b]?\d[\d\s.,'\u2019/_\u066b]*(e[-+\u2212]?\d+)?%?|nan|inf(inity)?)"
)
_SAMPLE = 1_000
_FILLERS = {*"\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0", *map(chr, range(0xFE00, 0xFE10))}


def is_blank(text: str) -> bool:
  """Returns whether a text has no visible character: such lines are never mined or found."""
  return all(unicodedata.category(x) in _BLANK or x in _FILLERS for x in text)


def is_number(text: str) -> bool:
  """Returns whether a text is a number in any notation: -.5, 1e-3, 95 %, "1.234,5", 1/2, nan."""
  return _NUMBER.fullmatch(text.strip()) is not None


def begin_with_scores(lines: Iterable[str]) -> bool:
  """Returns whether the first column of a TSV file has scores, as in the output of `vmsst mine`.

  True if at least 80% of the first 1,000 lines with a TAB begin with a number.
  """
  cells = []
  with contextlib.suppress(archives.DamagedError):  # The reader of all lines reports it.
    for line in itertools.islice(lines, _SAMPLE):
      cell, tab, _ = line.partition("\t")
      cells += [cell] if tab else []
  return bool(cells) and sum(map(is_number, cells)) >= 0.8 * len(cells)


def default_field(path: str, number: int = 0) -> str | None:
  """Returns the column or key of the texts in a file, by its extension, or None for whole lines.

  Args:
    path: `.tsv`, and any other file of pairs: the first column, or the second, after a column of
      scores; `.jsonl`: "text", or "source" and "target".
    number: 0 for the only texts; 1 or 2 for one side of pairs.

  Raises:
    InputError: a file with columns cannot be read.
  """
  name = path.removesuffix(".gz")
  if name.endswith(".jsonl"):
    return ("text", "source", "target")[number]
  if not number and not name.endswith(".tsv"):
    return None
  return str(max(number, 1) + begin_with_scores(text_files.read_lines(path)))


def read_texts(path: str, field: str | None = None, digest: str | None = None) -> Iterator[str]:
  """Yields one text for each line of a plain or gzipped UTF-8 file, including empty lines.

  Args:
    path: The file.
    field: A number is a TSV column, counted from 1; anything else, and any field of a `.jsonl`
      file, is a key of the JSON object in each line; None: whole lines.
    digest: As in `text_files.read_lines`.

  Raises:
    InputError: the file cannot be read or has another digest, it is .csv, or .json without a
      field, or a line lacks
      the column or is not a JSON object with a string at this key.
  """
  return texts(text_files.read_lines(path, digest), path, field)


def texts(lines: Iterable[str], name: str, field: str | None, first: int = 1) -> Iterator[str]:
  """Yields the texts of lines.

  Args:
    lines: The lines.
    name: Name of the file, for messages.
    field: As in `read_texts`.
    first: Number of the first line.

  Raises:
    InputError: see `read_texts`.
  """
  kind = os.path.splitext(name.removesuffix(".gz"))[1].lower()
  if kind == ".csv" or (kind == ".json" and field is None):
    raise errors.InputError(f"{name}: {kind} files are not read; write one text per line, or .tsv")
  if field is not None and ((kind == ".tsv" and not field.isdecimal()) or field == "0"):
    raise errors.InputError(f"{name}: {field!r} is not the number of a column, from 1")
  column = 0 if field is None or kind == ".jsonl" or not field.isdecimal() else int(field)
  for number, line in enumerate(lines, first):
    if field is None:
      yield line
    elif column:
      columns = line.split("\t")
      if len(columns) < column:
        raise errors.InputError(
          f"{name}:{number}: no column {column} in {input_files.shown(line)}; separate columns by "
          "a TAB (numbers in column 1 are taken for scores)"
        )
      yield columns[column - 1]
    else:
      record = input_files.parse_json(line, f"{name}:{number}")
      value = record.get(field) if isinstance(record, dict) else None
      if not input_files.is_text(value):
        raise errors.InputError(f"{name}:{number}: not a JSON object with a string {field!r}")
      yield str(value)
