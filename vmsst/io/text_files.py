"""Reads plain or gzipped (`.gz`) text files; errors name the file and the line.

`read_lines` yields lines. `read_texts` yields one text per line: the whole line, one TSV column, or
one value in a JSON object. `cut` divides files into spans of lines, so that each process can read
its own span.
"""

import contextlib
import functools
import gzip
import hashlib
import io
import itertools
import os
import pathlib
import re
import unicodedata
import zlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar, cast

from vmsst import errors, storage
from vmsst.io import archives, input_files

_Record = TypeVar("_Record")
LINE_BYTES = 1 << 26  # maximum length of a line; longer lines raise InputError
_CHUNK_BYTES = 1 << 16
new_digest = functools.partial(hashlib.blake2b, digest_size=16)
"""Creates a hash object for the uncompressed content of a text file."""


def read_lines(path: str, digest: str | None = None) -> Iterator[str]:
  """Yields the lines of a plain or gzipped UTF-8 text file, without line endings.

  Lines end with LF. A byte order mark at the start of the file and all CR characters are removed.

  Args:
    path: The file.
    digest: Expected hash of the content, computed with `new_digest`. If omitted, the content is not
      checked.

  Raises:
    InputError: If the file cannot be read, is truncated, is not UTF-8, or contains a line longer
      than `LINE_BYTES`. If the content does not match `digest`, the error is raised after the last
      line.
  """
  for number, raw in enumerate(read_chunks(path, lines=True, digest=digest), 1):
    yield _decode(raw, path, number)


def check_not_empty(path: str) -> None:
  """Raises InputError if a text file cannot be read or is empty. Does not check `-` and pipes."""
  is_pipe = path == "-" or pathlib.Path(path).is_fifo()
  if not is_pipe and next(read_lines(path), None) is None:
    raise errors.InputError(f"{path}: empty; pass a file with at least one line")


def read_chunks(
  path: str, *, lines: bool = False, offset: int = 0, digest: str | None = None
) -> Iterator[bytes]:
  """Yields the content of a plain or gzipped file in chunks; raises errors like `read_lines`.

  Args:
    path: The file.
    lines: Whether each chunk is one line, including the line ending.
    offset: Position of the first byte to read.
    digest: As in `read_lines`.
  """
  number, current = 0, new_digest()
  with contextlib.ExitStack() as stack:
    try:
      stream = stack.enter_context(storage.open_binary(path))
    except OSError as error:
      raise errors.InputError(f"{path}: cannot be opened: {input_files.reason(error)}") from None
    if path.endswith(".gz"):
      # BufferedReader.readline is written in C and much faster than GzipFile.readline.
      unpacked = cast(io.RawIOBase, gzip.GzipFile(fileobj=stream))
      stream = stack.enter_context(io.BufferedReader(unpacked))
    if offset:  # Do not seek to 0, because pipes cannot seek.
      stream.seek(offset)
    while True:
      try:
        chunk = stream.readline(LINE_BYTES + 1) if lines else stream.read(_CHUNK_BYTES)
      # Reading from an object store can raise InputError.
      except (EOFError, zlib.error, OSError, errors.InputError) as error:
        raise errors.InputError(
          f"{path}: cannot be read after line {number}: {error}; copy it again if it is damaged"
        ) from None
      if not chunk:
        break
      if len(chunk) > LINE_BYTES:
        raise errors.InputError(
          f"{path}:{number + 1}: line longer than {LINE_BYTES >> 20} MB, so this is not a text file"
        )
      number += chunk.count(b"\n")
      if digest:
        current.update(chunk)
      yield chunk
  if digest and current.hexdigest() != digest:
    raise errors.InputError(f"{path} has changed since it was first read; start over")


def _decode(raw: bytes, path: str, number: int) -> str:
  """Decodes a line and removes its line ending; raises InputError if the line is not UTF-8."""
  try:
    text = raw.decode("utf-8")
  except UnicodeDecodeError as error:
    raise errors.InputError(
      f"{path}:{number}: not UTF-8: byte 0x{raw[error.start]:02x} at byte {error.start + 1} of "
      "the line; convert the file (iconv -f ... -t UTF-8)"
    ) from None
  if number == 1:
    text = text.removeprefix("\ufeff")
  return text.removesuffix("\n").replace("\r", "")


# --------------------------------------------------------------------------------------------
# One text per line

# Unicode categories of control characters, format characters and spaces.
_BLANK = {"Cc", "Cf", "Zl", "Zp", "Zs"}
SEPARATORS = str.maketrans("\t\n\r", "   ")
"""Translation table that replaces the characters that a TSV field cannot contain with spaces."""
# Matches numbers in any script, with decimal commas, thousands separators, fractions, percent
# signs or exponents.
_NUMBER = re.compile(
  r"(?i)[-+\u2212]?([.,\u066b]?\d[\d\s.,'\u2019/_\u066b]*(e[-+\u2212]?\d+)?%?|nan|inf(inity)?)"
)
_SAMPLE = 1_000
# Invisible characters that Unicode classifies as letters or marks.
_FILLERS = {*"\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0", *map(chr, range(0xFE00, 0xFE10))}


def is_blank(text: str) -> bool:
  """Returns whether a text has no visible characters. Mining and search never return such texts."""
  return all(unicodedata.category(x) in _BLANK or x in _FILLERS for x in text)


def is_number(text: str) -> bool:
  """Returns whether a text is a number in any notation: -.5, 1e-3, 95 %, "1.234,5", 1/2 or nan."""
  return _NUMBER.fullmatch(text.strip()) is not None


def begin_with_scores(lines: Iterable[str]) -> bool:
  """Returns whether the first column of a TSV file contains scores, as in `vmsst mine` output.

  Only the first 1,000 lines are examined. The function returns True if at least 80% of the lines
  that contain a TAB begin with a number.
  """
  cells = []
  with contextlib.suppress(archives.DamagedError):  # The caller reports damage later.
    for line in itertools.islice(lines, _SAMPLE):
      cell, tab, _ = line.partition("\t")
      cells += [cell] if tab else []
  return bool(cells) and sum(map(is_number, cells)) >= 0.8 * len(cells)


def default_field(path: str, number: int = 0) -> str | None:
  """Returns the default column or key for the texts in a file, or None if each line is a text.

  In a `.jsonl` file, the key is "text", or "source" and "target" for pairs. In a `.tsv` file, and
  in all other files with pairs, the first text is in column 1, or in column 2 if column 1 contains
  scores.

  Args:
    path: The file.
    number: 0 if each line contains one text; 1 for the source of a pair, 2 for the target.

  Raises:
    InputError: If the file has columns and cannot be read. Files without columns are not read.
  """
  name = path.removesuffix(".gz")
  if name.endswith(".jsonl"):
    return ("text", "source", "target")[number]
  if not number and not name.endswith(".tsv"):
    return None
  return str(max(number, 1) + begin_with_scores(read_lines(path)))


def read_texts(path: str, field: str | None = None, digest: str | None = None) -> Iterator[str]:
  """Yields one text for each line of a plain or gzipped UTF-8 file, including empty lines.

  Args:
    path: The file.
    field: A column number in a TSV file, counted from 1, or a key in the JSON object on each line.
      In a `.jsonl` file, a number is also treated as a key. If omitted, each line is a text.
    digest: As in `read_lines`.

  Raises:
    InputError: If the file cannot be read, does not match the digest, is a `.csv` file, or is a
      `.json` file and `field` is omitted. If a line lacks the column, or is not a JSON object with
      a string under the key.
  """
  return texts(read_lines(path, digest), path, field)


def texts(lines: Iterable[str], name: str, field: str | None, first: int = 1) -> Iterator[str]:
  """Extracts a text from each line.

  Args:
    lines: The lines.
    name: Name of the file, for messages.
    field: As in `read_texts`.
    first: Number of the first line.

  Raises:
    InputError: See `read_texts`.
  """
  kind = os.path.splitext(name.removesuffix(".gz"))[1].lower()
  if kind == ".csv" or (kind == ".json" and field is None):
    raise errors.InputError(
      f"{name}: {kind} files are not supported; write one text per line, or a .tsv file"
    )
  if field is not None and ((kind == ".tsv" and not field.isdecimal()) or field == "0"):
    raise errors.InputError(f"{name}: {field!r} is not a column number; count columns from 1")
  column = 0 if field is None or kind == ".jsonl" or not field.isdecimal() else int(field)
  for number, line in enumerate(lines, first):
    if field is None:
      yield line
    elif column:
      columns = line.split("\t")
      if len(columns) < column:
        raise errors.InputError(
          f"{name}:{number}: no column {column} in {input_files.shown(line)}; separate columns "
          "with a TAB (if column 1 contains numbers, vmsst reads them as scores)"
        )
      yield columns[column - 1]
    else:
      record = input_files.parse_json(line, f"{name}:{number}")
      value = record.get(field) if isinstance(record, dict) else None
      if not input_files.is_text(value):
        raise errors.InputError(f"{name}:{number}: not a JSON object with a string {field!r}")
      yield str(value)


def read_records(path: str | os.PathLike[str], kind: type[_Record]) -> Iterator[_Record]:
  """Decodes the JSON object on each line of a JSON Lines file; see `records`."""
  return records(read_lines(os.fspath(path)), kind, os.fspath(path))


def records(
  lines: Iterable[str], kind: type[_Record], name: str, first: int = 1
) -> Iterator[_Record]:
  """Decodes the JSON object on each line.

  Args:
    lines: The lines.
    kind: Type to which msgspec converts each object.
    name: Name of the file, for messages.
    first: Number of the first line.

  Raises:
    InputError: If a line is not JSON, or its object does not match the type.
  """
  import msgspec  # A late import keeps `--help` fast.

  decoder = msgspec.json.Decoder(kind)
  for number, line in enumerate(lines, first):
    try:
      yield decoder.decode(line)
    except (ValueError, RecursionError) as error:
      raise errors.InputError(f"{name}:{number}: {error}") from None


# --------------------------------------------------------------------------------------------
# Spans of lines


class Span(NamedTuple):
  """Consecutive lines of a text file.

  Attributes:
    name: The text file, for messages.
    first: Number of the first line, from 1.
    lines: Number of lines.
    path: File to read the lines from. After `unpack`, this is the uncompressed copy of a gzipped
      file.
    offset: Position of the first byte.
    digest: Hash of the bytes in the span.
  """

  name: str
  first: int
  lines: int
  path: str
  offset: int
  digest: str

  def __str__(self) -> str:
    return f"{self.name}, lines {self.first:,} to {self.first + self.lines - 1:,}"

  def read(self) -> list[str]:
    """Returns the lines without line endings, like `read_lines`.

    Raises:
      InputError: If the file cannot be read, has changed, is not UTF-8, or contains a line that is
        too long.
    """
    lines = itertools.islice(read_chunks(self.path, lines=True, offset=self.offset), self.lines)
    raw = list(lines)
    if new_digest(b"".join(raw)).hexdigest() != self.digest:
      raise errors.InputError(f"{self.name} has changed since it was first read; start over")
    return [_decode(line, self.name, number) for number, line in enumerate(raw, self.first)]


class Cut(NamedTuple):
  """The spans of one or more text files, in order.

  Attributes:
    spans: The spans. Each span lies within one file.
    identity: JSON object that identifies the texts. Its keys are `name`, `lines` (the number of
      lines) and `digest` (a hash of the concatenated texts). A file and its gzipped copy have the
      same digest.
  """

  spans: list[Span]
  identity: dict[str, Any]


def cut(paths: Sequence[str], lines: int) -> Cut:
  """Divides text files into spans of at most `lines` lines. Reads each file once.

  Args:
    paths: UTF-8 text files, plain or gzipped. For gzipped files, call `unpack` before `Span.read`.
    lines: Maximum lines per span.

  Raises:
    InputError: If a file cannot be read, a line is too long, or all files are empty.
  """
  spans: list[Span] = []
  total, raw = new_digest(), b"\n"
  for path in paths:
    input_files.check(path)  # Pipes are rejected, because spans are read again later.
    if not raw.endswith(b"\n"):
      total.update(b"\n")
    raw_lines = read_chunks(path, lines=True)
    first, offset = 1, 0
    while True:
      digest, start, count = new_digest(), offset, 0
      for raw in itertools.islice(raw_lines, lines):
        total.update(raw)
        digest.update(raw)
        offset += len(raw)
        count += 1
      if not count:
        break
      spans.append(Span(path, first, count, storage.absolute(path), start, digest.hexdigest()))
      first += count
  if not spans:
    raise errors.InputError(f"{', '.join(paths)}: empty; pass a file with at least one line")
  names = list(dict.fromkeys(span.name for span in spans))
  name = f"{names[0]} and {len(names) - 1} more" if len(names) > 1 else names[0]
  lines = sum(span.lines for span in spans)
  return Cut(spans, {"name": name, "lines": lines, "digest": total.hexdigest()})


def unpack(spans: Sequence[Span], folder: str) -> list[Span]:
  """Unpacks gzipped files into a folder. Returns the spans with the paths of the unpacked copies.

  Args:
    spans: The spans.
    folder: Folder for the copies, local or in an object store. The caller removes the folder.
  """
  copies: dict[str, str] = {}
  for path in dict.fromkeys(span.name for span in spans if span.name.endswith(".gz")):
    copies[path] = copy = os.path.join(folder, f"lines-{len(copies):05d}.txt")
    if storage.is_url(copy):
      opened = storage.filesystem(copy).open(copy, "wb")
    else:
      os.makedirs(folder, exist_ok=True)
      opened = open(copy, "wb")  # noqa: SIM115  # closed below
    with opened as stream:
      stream.writelines(read_chunks(path))
  return [x._replace(path=copies.get(x.name, x.path)) for x in spans]
