"""Reads one text per line of a file: the line, a TSV column, or a JSON Lines value."""

from collections.abc import Iterator

from vmsst import errors
from vmsst.files import input_files, text_files


def default_field(path: str, number: int = 0) -> str | None:
  """Returns the column or key of the texts in a file, by its extension, or None for whole lines.

  Args:
    path: `.tsv`: the first column, or the second; `.jsonl`: "text", or "source" and "target".
    number: 0 for the only texts; 1 or 2 for one side of pairs.
  """
  name = path.removesuffix(".gz")
  if name.endswith(".tsv"):
    return str(max(number, 1))
  if name.endswith(".jsonl"):
    return ("text", "source", "target")[number]
  return None


def read_texts(path: str, field: str | None = None) -> Iterator[str]:
  """Yields one text for each line of a plain or gzipped UTF-8 file, including empty lines.

  Args:
    path: The file.
    field: A number is a TSV column, counted from 1; anything else is a key of the JSON object in
      each line; None: whole lines.

  Raises:
    InputError: the file cannot be read, or a line lacks the column, or is not a JSON object with a
      string at this key.
  """
  lines = text_files.read_lines(path)
  if field is None:
    return lines
  if field.isdecimal():
    return _column(path, lines, int(field))
  return _value(path, lines, field)


def _column(path: str, lines: Iterator[str], column: int) -> Iterator[str]:
  if column < 1:
    raise errors.InputError(f"{path}: column {column}: columns are counted from 1")
  for number, line in enumerate(lines, 1):
    columns = line.split("\t")
    if len(columns) < column:
      raise errors.InputError(
        f"{path}:{number}: {len(columns)} columns, but the text must be in column {column}"
      )
    yield columns[column - 1]


def _value(path: str, lines: Iterator[str], key: str) -> Iterator[str]:
  for number, line in enumerate(lines, 1):
    record = input_files.parse_json(line, f"{path}:{number}")
    value = record.get(key) if isinstance(record, dict) else None
    if not input_files.is_text(value):
      raise errors.InputError(f"{path}:{number}: not a JSON object with a string {key!r}")
    yield str(value)
