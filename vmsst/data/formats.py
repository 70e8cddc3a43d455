"""Parsers of bitext formats, one for each; a fault policy decides what happens to bad content.

    for item in formats.parse_tsv("x.tsv", formats.COUNT):
      ...  # a Row, or the Fault of a line that was left out

Training uses STOP: the first fault is an error. Dataset builds use COUNT: faults are yielded, to be
counted, and everything else is read.
"""

import codecs
import dataclasses
import functools
import itertools
import numbers
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar
from xml.etree import ElementTree
from xml.parsers import expat

from vmsst import errors, languages
from vmsst.data import dataset_shards
from vmsst.io import archives, input_files, text_files
from vmsst.languages import Language

_GRADES = {"label", "score"}  # even if they are texts, such as "0" or "relevant"
_IDS = {"id", "idx", "index"}  # numbers that are no grades
# TMX elements in a segment whose content is markup of the original document, not text.
_TMX_MARKUP = frozenset({"bpt", "ept", "it", "ph", "ut"})
_UNIT_START = re.compile(r"(?=<tu[\s>])")
_UNIT_END = re.compile(r"</tu\s*>")
_UNIT_CHARACTERS = 4 << 20  # A file with a longer unit is not TMX.
_XML_LANG = "{http://www.w3.org/XML/1998/namespace}lang"
_MARKS = (
  (codecs.BOM_UTF8, "utf-8-sig"),
  (codecs.BOM_UTF16_LE, "utf-16"),
  (codecs.BOM_UTF16_BE, "utf-16"),
)
_DECLARED_ENCODING = re.compile(rb"<\?xml[^>]*\bencoding\s*=\s*[\"']([\w.-]+)")

T = TypeVar("T")


class Row(NamedTuple):
  """The texts of one pair.

  Attributes:
    number: Its line, from 1; in TMX the number of its `<tu>`.
    texts: Source and target, followed by the hard negatives that were asked for.
    further: Number of further columns, or of further texts of a record.
    grade: Score or label of the pair: the column before or after the texts, or a number of the
      record; None for pairs without one.
  """

  number: int
  texts: tuple[str, ...]
  further: int = 0
  grade: str | None = None


class Fault(NamedTuple):
  """Something in a file that was left out.

  Attributes:
    place: `FILE:LINE` or `FILE`; the file is `x.zip/MEMBER` in an archive.
    what: The reason, in the same words for every fault of its kind.
  """

  place: str
  what: str


@dataclasses.dataclass(frozen=True)
class FaultPolicy:
  """How parsers read files and what they do about faults.

  Attributes:
    stops: Whether the first fault raises InputError; otherwise, faults are yielded.
    lines: Yields the lines of a file, with `archives.BadLine` in place of those that are left out.
    chunks: Yields the content of a file in pieces.
    longest_side: A TMX unit with a side of more characters is a fault.
  """

  stops: bool
  lines: Callable[[str], Iterator[str]]
  chunks: Callable[[str], Iterator[bytes]]
  longest_side: int

  def fault(self, location: str, what: str, error: str = "") -> Fault:
    """Returns a fault to yield; a policy that stops raises InputError with `error` or `what`."""
    if self.stops:
      raise errors.InputError(f"{location}: {error or what}")
    return Fault(location, what)


STOP = FaultPolicy(True, text_files.read_lines, text_files.read_chunks, sys.maxsize)
"""Raises InputError at the first fault."""
COUNT = FaultPolicy(
  False,
  lambda path: archives.lines(archives.file_chunks(path)),
  archives.file_chunks,
  archives.LINE_BYTES,
)
"""Yields every fault and reads the rest."""


def parse(
  kind: str,
  paths: Sequence[str],
  pair: tuple[Language, Language],
  policy: FaultPolicy,
  *,
  fields: Sequence[str] | None = None,
  negatives: int = 0,
) -> Iterator[Row | Fault]:
  """Yields the rows of a bitext, as the function of its format does.

  Args:
    kind: "moses", "tsv" or "tmx"; or, with the policy `STOP`, "jsonl" or "tfrecord".
    paths: The file, or the two files of a Moses pair.
    pair: The languages of the two sides.
    policy: What to do about faults.
    fields: JSONL only; see `record_rows`.
    negatives: Number of hard negatives in each row of a TSV or JSONL file.
  """
  path = paths[0]
  match kind:
    case "moses":
      return parse_moses([(path, policy.lines(path)) for path in paths], policy)
    case "tsv":
      return parse_tsv(path, policy, negatives)
    case "tmx":
      return parse_tmx(path, *pair, policy)
    case "jsonl":
      lines = enumerate(policy.lines(path), 1)
      records = ((f"{path}:{n}", input_files.parse_json(line, f"{path}:{n}")) for n, line in lines)
      return record_rows(records, *pair, fields, negatives)
    case _:
      shard = dataset_shards.Records(path)
      return (Row(number + 1, shard.pair(number)) for number in range(len(shard)))


def parse_moses(
  sides: Sequence[tuple[str, Iterator[str]]], policy: FaultPolicy
) -> Iterator[Row | Fault]:
  """Yields the rows of two texts whose lines with the same number translate each other.

  Args:
    sides: Name and lines of each side.
    policy: What to do about faults.

  Raises:
    InputError: the first fault, if the policy stops.
  """
  for number in itertools.count(1):
    texts: list[str | None] = []
    for location, lines in sides:
      try:
        texts.append(next(lines, None))
      except archives.DamagedError as error:
        yield policy.fault(f"{location}:{number}", str(error))
        return
    first, second = texts
    if first is None or second is None:
      if first is not second:
        shorter, longer = (side[0] for side in (sides if first is None else sides[::-1]))
        yield policy.fault(
          f"{shorter}:{number - 1}",
          "ends before the other side: they may be misaligned",
          f"ends here with {number - 1} lines, but {longer} has more; align the two files line by "
          "line",
        )
      return
    if isinstance(first, archives.BadLine):
      yield policy.fault(f"{sides[0][0]}:{number}", str(first))
    elif isinstance(second, archives.BadLine):
      yield policy.fault(f"{sides[1][0]}:{number}", str(second))
    else:
      yield Row(number, (first, second))


def parse_tsv(path: str, policy: FaultPolicy, negatives: int = 0) -> Iterator[Row | Fault]:
  """Yields the rows of a TSV file: source TAB target, and the hard negatives of the source.

  A column of scores before the pair, as `vmsst mine` writes it, becomes the grade of each row (see
  `text_files.begin_with_scores`), or else the column after the texts does. Further columns are
  ignored. A policy that stops also requires the same number of columns on every line. It skips
  empty lines.

  Raises:
    InputError: the first fault, if the policy stops.
  """
  expected = 0
  number = 0
  try:
    scores = int(text_files.begin_with_scores(policy.lines(path)))
    width = scores + 2 + negatives
    for number, line in enumerate(policy.lines(path), 1):
      if isinstance(line, archives.BadLine):
        yield policy.fault(f"{path}:{number}", str(line))
        continue
      if not line and policy.stops:
        continue
      columns = line.split("\t")
      expected = expected or max(len(columns), width)
      scored = not scores or text_files.is_number(columns[0])
      same = len(columns) == expected or not policy.stops
      if not scored or not same or len(columns) < width:
        score, why = ("score TAB ", ", since column 1 has numbers") if scores else ("", "")
        more = f" TAB {negatives} hard negatives" if negatives else ""
        shown = input_files.shown(line)
        count = f"{len(columns)} columns" if scored else "no score"
        count = count if len(columns) > 1 else "no TAB"
        yield policy.fault(
          f"{path}:{number}",
          "the line has too few columns, or no score where most lines have one",
          f"{count} in {shown}, where {expected} columns are expected{why}; write {score}source "
          f"TAB target{more}, with the same number of columns on every line",
        )
        continue
      grade = columns[0] if scores else next(iter(columns[width:]), None)
      yield Row(number, tuple(columns[scores:width]), len(columns) - width, grade)
  except archives.DamagedError as error:
    yield policy.fault(f"{path}:{number + 1}", str(error))


def record_rows(
  records: Iterable[tuple[str, Any]],
  source: Language,
  target: Language,
  fields: Sequence[str] | None = None,
  negatives: int = 0,
) -> Iterator[Row]:
  """Yields the rows of records.

  Args:
    records: Place of each record, for messages, and the object, or an object with it at its key
      "translation".
    source: Language of the first side.
    target: Language of the second side.
    fields: Names of the two fields, for pairs with grades; None: codes of the languages, or, if
      both are undetermined, the text fields of the first record, in its order: a pair and its hard
      negatives.
    negatives: Number of hard negatives in each row, for undetermined languages.

  Raises:
    InputError: a record is not such an object, or has a grade, and `fields` is None.
  """
  graded = fields is not None
  further = 0
  for number, (location, record) in enumerate(records, 1):
    if not isinstance(record, Mapping):
      raise errors.InputError(f"{location}: not a JSON object; write one object per line")
    grades = _grades(record)
    if isinstance(record.get("translation"), Mapping):
      record = record["translation"]
      grades |= _grades(record)
    if grades and not graded:
      raise errors.InputError(
        f"{location}: numbers or labels, {grades}; if they grade the pairs, remove pairs that do "
        "not belong together; then remove these fields"
      )
    if fields is None and source == target == languages.UNDETERMINED:
      names = [name for name, value in record.items() if isinstance(value, str)]
      fields, further = names[: 2 + negatives], len(names[2 + negatives :])
      if len(fields) < 2 + negatives:
        raise errors.InputError(
          f"{location}: the text fields are {fields}; {2 + negatives} are expected: a pair"
          f"{f' and {negatives} hard negatives' if negatives else ''}"
        )
    if fields:
      sides = [(name, record.get(name)) for name in fields]
    else:
      by_language = {language_or_none(key): record[key] for key in record}
      sides = [(side.name, _side(by_language, side)) for side in (source, target)]
    for name, text in sides:
      if not input_files.is_text(text):
        raise errors.InputError(
          f"{location}: {name!r} has no text, or half of a surrogate pair; the fields are "
          f"{sorted(record)}"
        )
    texts = tuple(str(text) for _, text in sides)
    yield Row(number, texts, further, next(iter(grades.values()), None))


def _grades(record: Mapping[str, Any]) -> dict[str, str]:
  """Returns the fields of a record that may grade its pair."""
  return {
    name: str(value)
    for name, value in record.items()
    if (isinstance(value, numbers.Number) and name not in _IDS) or name in _GRADES
  }


def parse_tmx(
  path: str, source: Language, target: Language, policy: FaultPolicy
) -> Iterator[Row | Fault]:
  """Yields the rows of a TMX file: every `<tu>` with one of the languages.

  The texts have single spaces; a missing side is "". Each unit is parsed on its own, so that an
  ill-formed one costs no other, and no document type definition is read: an entity that XML does
  not define itself is a fault.

  Raises:
    InputError: the first fault, if the policy stops.
  """
  line, number, rest = 1, 0, ""
  try:
    for chunk in _decoded(path, policy):
      *pieces, rest = _UNIT_END.split(rest + chunk)
      for piece in pieces:
        before, *units = _UNIT_START.split(piece)
        location = line + (before.count("\n") if units else 0)
        for unit in units or [before]:
          number += 1
          yield from _unit_row(unit, number, (path, location), (source, target), policy)
          location += unit.count("\n")
        line += piece.count("\n")
      if len(rest) > _UNIT_CHARACTERS:
        yield policy.fault(f"{path}:{line}", f"a unit of more than {_UNIT_CHARACTERS >> 20} MB")
        return
  except archives.DamagedError as error:
    yield policy.fault(f"{path}:{line}", str(error))
    return
  if _UNIT_START.search(rest) or "</tmx" not in rest:
    last = line + rest.count("\n")
    yield policy.fault(f"{path}:{last}", "truncated: there is no </tmx> after the last unit")


def _unit_row(
  unit: str,
  number: int,
  location: tuple[str, int],
  pair: tuple[Language, Language],
  policy: FaultPolicy,
) -> Iterator[Row | Fault]:
  """Yields the row of a unit without its end tag, or its fault; nothing for other languages."""
  path, line = location
  if "\ufffd" in unit:
    yield policy.fault(f"{path}:{line}", "a character that cannot be decoded")
    return
  sides: dict[Language | None, str] = {}
  try:
    for variant in ElementTree.fromstring(f"{unit}</tu>").iter("tuv"):
      language = language_or_none(variant.get(_XML_LANG) or variant.get("lang") or "")
      segment = variant.find("seg")
      if segment is not None and language is not None:
        for element in segment.iter():
          if element.tag in _TMX_MARKUP:
            after = element.tail
            element.clear()
            element.tail = after
        sides.setdefault(language, " ".join("".join(segment.itertext()).split()))
  except ElementTree.ParseError as error:
    reason = expat.ErrorString(error.code)
    yield policy.fault(
      f"{path}:{line + error.position[0] - 1}",
      f"ill-formed XML: {reason}",
      f"not well-formed XML: {reason}; repair it",
    )
    return
  if max(map(len, sides.values()), default=0) > policy.longest_side:
    yield policy.fault(f"{path}:{line}", "a side of the unit is too long")
    return
  first, second = (_side(sides, language) or "" for language in pair)
  if first or second:
    yield Row(number, (first, second))


def _decoded(path: str, policy: FaultPolicy) -> Iterator[str]:
  """Yields the text of an XML file in pieces, with U+FFFD for what cannot be decoded.

  Raises:
    archives.DamagedError: the encoding is unknown, or it is UTF-16 without a byte order mark.
  """
  decoder = None
  try:
    for chunk in policy.chunks(path):
      if decoder is None:
        encoding = next((name for mark, name in _MARKS if chunk.startswith(mark)), "")
        declared = _DECLARED_ENCODING.match(chunk)
        encoding = encoding or (declared[1].decode() if declared else "utf-8")
        decoder = codecs.getincrementaldecoder(encoding)("replace")
      yield decoder.decode(chunk)
  except (LookupError, UnicodeError) as error:  # of a whole file; characters are replaced
    raise archives.DamagedError(str(error)) from None


def _side(by_language: dict[Language | None, T], wanted: Language) -> T | None:
  """Returns the value of a language, or else of the same language in another script."""
  if wanted in by_language:
    return by_language[wanted]
  kin = (key for key in by_language if key and key.iso639_3 == wanted.iso639_3)
  return by_language.get(next(kin, wanted))


@functools.lru_cache(maxsize=1 << 12)  # A file may contain any number of codes.
def language_or_none(code: str) -> Language | None:
  """Returns the language of a code; None if it is not known."""
  try:
    return languages.language(code)
  except ValueError:
    return None
