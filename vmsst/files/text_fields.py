"""Texts in the lines of files: whole lines, a column of a TSV, or a value of JSON Lines."""

from collections.abc import Iterator

from vmsst import errors
from vmsst.files import input_files, text_files


def default_field(path: str, number: int = 0) -> str | None:
  """Where the texts of a file are by the end of its name: a column, a key, or None: whole lines.

  Args:
    path: `.tsv`: the first column, or the second; `.jsonl`: "text", or "source" and "target".
    number: 0 for the file's texts; 1 or 2 for one side of its pairs.
  """
  name = path.removesuffix(".gz")
  if name.endswith(".tsv"):
    return str(max(number, 1))
  if name.endswith(".jsonl"):
    return ("text", "source", "target")[number]
  return None


def read_texts(path: str, field: str | None = None) -> Iterator[str]:
  """Yields one text for each line of a plain or gzipped UTF-8 file, empty ones too.

  Args:
    path: The file.
    field: A number counts the columns of a TSV from 1, anything else is a key of JSON Lines, each
      of which holds a JSON object; None: whole lines.

  Raises:
    InputError: the file cannot be read, or a line has no such column, or is no JSON object with a
      string under this key.
  """
  lines = text_files.read_lines(path)
  if field is None:
    return lines
  if field.isdecimal():
    return _column(path, lines, int(field))
  return _value(path, lines, field)


def _column(path: str, lines: Iterator[str], column: int) -> Iterator[str]:
  if column < 1:
    raise errors.InputError(f"column {column} of {path}: columns are counted from 1")
  for number, line in enumerate(lines, 1):
    columns = line.split("\t")
    if len(columns) < column:
      raise errors.InputError(
        f"{path}:{number}: {len(columns)} columns, and the text is to be in column {column}"
      )
    yield columns[column - 1]


def _value(path: str, lines: Iterator[str], key: str) -> Iterator[str]:
  for number, line in enumerate(lines, 1):
    record = input_files.parse_json(line, f"{path}:{number}")
    value = record.get(key) if isinstance(record, dict) else None
    if not input_files.is_text(value):
      raise errors.InputError(f"{path}:{number}: no JSON object with a string {key!r}")
    yield str(value)
