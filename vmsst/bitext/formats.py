"""Parsers of bitext formats, one for each; a fault policy decides what happens to bad content.

    for item in formats.parse_tsv("x.tsv", formats.COUNT):
      ...  # a Row, or the Fault of a line that was left out

Training uses STOP: the first fault is an error. Dataset builds use COUNT: faults are yielded, to be
counted, and everything else is read.
"""

import collections
import dataclasses
import functools
import itertools
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar
from xml.parsers import expat

from vmsst import errors, languages
from vmsst.bitext import dataset_shards
from vmsst.files import archives, input_files, text_files, xml_files
from vmsst.languages import Language

# TMX elements in a segment whose content is markup of the original document, not text.
_TMX_MARKUP = frozenset({"bpt", "ept", "it", "ph", "ut"})
_TAG_BYTES = 16 << 20  # A file with a longer XML tag is not TMX.
_MOST_BREAKS = 1000  # A file that is ill-formed in more places is left.
_RESUMED = b"<tmx><body>"
_UNIT = re.compile(rb"<tu[\s>]")

T = TypeVar("T")


class Row(NamedTuple):
  """The texts of one pair.

  Attributes:
    number: Its line, from 1; in TMX the number of its `<tu>`.
    texts: Source and target, followed by the hard negatives that were asked for.
  """

  number: int
  texts: tuple[str, ...]


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

  def fault(self, place: str, what: str, error: str = "") -> Fault:
    """Returns a fault to yield; a policy that stops raises InputError with `error` or `what`."""
    if self.stops:
      raise errors.InputError(f"{place}: {error or what}")
    return Fault(place, what)


STOP = FaultPolicy(True, text_files.read_lines, text_files.read_chunks, sys.maxsize)
"""Raises InputError at the first fault."""
COUNT = FaultPolicy(
  False,
  lambda path: archives.lines(archives.file_chunks(path)),
  archives.file_chunks,
  archives.LINE_BYTES,
)
"""Yields every fault and reads the rest."""


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
    for place, lines in sides:
      try:
        texts.append(next(lines, None))
      except archives.DamagedError as error:
        yield policy.fault(f"{place}:{number}", str(error))
        return
    first, second = texts
    if first is None or second is None:
      if first is not second:
        yield _unequal(sides if first is None else sides[::-1], number - 1, policy)
      return
    if isinstance(first, archives.BadLine):
      yield policy.fault(f"{sides[0][0]}:{number}", str(first))
    elif isinstance(second, archives.BadLine):
      yield policy.fault(f"{sides[1][0]}:{number}", str(second))
    else:
      yield Row(number, (first, second))


def _unequal(sides: Sequence[tuple[str, Iterator[str]]], count: int, policy: FaultPolicy) -> Fault:
  """Returns the fault of a first side that ends after `count` lines, unlike the second."""
  (shorter, _), (longer, rest) = sides
  error = ""
  if policy.stops:
    error = (
      f"ends here with {count} lines, but {longer} has {count + 1 + sum(1 for _ in rest)}; "
      "align the two files line by line"
    )
  what = "ends before the other side: they may be misaligned"
  return policy.fault(f"{shorter}:{count}", what, error)


def parse_tsv(path: str, policy: FaultPolicy, negatives: int = 0) -> Iterator[Row | Fault]:
  """Yields the rows of a TSV file: source TAB target, and the hard negatives of the source.

  Further columns are ignored. A policy that stops also requires the same number of columns on every
  line.

  Raises:
    InputError: the first fault, if the policy stops.
  """
  wanted = 2 + negatives
  expected = 0
  number = 0
  try:
    for number, line in enumerate(policy.lines(path), 1):
      if isinstance(line, archives.BadLine):
        yield policy.fault(f"{path}:{number}", str(line))
        continue
      columns = line.split("\t")
      expected = expected or max(len(columns), wanted)
      if len(columns) < wanted or (policy.stops and len(columns) != expected):
        more = f" TAB {negatives} hard negatives" if negatives else ""
        yield policy.fault(
          f"{path}:{number}",
          "the line has one column where two are expected",
          f"{len(columns)} columns where {expected} are expected; write source TAB target{more}, "
          "with the same number of columns on every line",
        )
        continue
      yield Row(number, tuple(columns[:wanted]))
  except archives.DamagedError as error:
    yield policy.fault(f"{path}:{number + 1}", str(error))


def parse_jsonl(
  path: str, source: Language, target: Language, fields: tuple[str, str] | None = None
) -> Iterator[Row]:
  """Yields the rows of a JSON Lines file.

  Args:
    path: The file.
    source: Language of the first side.
    target: Language of the second side.
    fields: Names of the two fields; None: codes of the languages.

  Raises:
    InputError: a line is not such an object.
  """
  names = fields or (source.name, target.name)
  for number, line in enumerate(text_files.read_lines(path), 1):
    place = f"{path}:{number}"
    record = input_files.parse_json(line, place)
    if isinstance(record, dict) and isinstance(record.get("translation"), dict):
      record = record["translation"]
    if not isinstance(record, dict):
      raise errors.InputError(
        f"{place}: not a JSON object but {type(record).__name__}; write one object per line"
      )
    if fields:
      sides = [record.get(name) for name in fields]
    else:
      by_language = {language_or_none(key): record[key] for key in record}
      sides = [_side(by_language, side) for side in (source, target)]
    for name, text in zip(names, sides, strict=True):
      if not isinstance(text, str):
        raise errors.InputError(
          f"{place}: {name!r} has no text; the fields of the line are {sorted(record)}"
        )
      if not input_files.is_text(text):
        raise errors.InputError(
          f"{place}: {name!r} contains half of a surrogate pair; remove the line"
        )
    yield Row(number, tuple(map(str, sides)))


def parse_shard(path: str) -> Iterator[Row]:
  """Yields the rows of a file of a dataset of `vmsst data build`.

  Raises:
    InputError: the file is damaged, or an example lacks a side.
  """
  for number, example in enumerate(dataset_shards.read_examples(path), 1):
    if missing := [side for side in ("source", "target") if side not in example]:
      raise errors.InputError(
        f"{path}: record {number} has no {' and no '.join(missing)}; use a dataset of `vmsst data "
        "build`"
      )
    yield Row(number, (example["source"], example["target"]))


def parse_tmx(
  path: str, source: Language, target: Language, policy: FaultPolicy
) -> Iterator[Row | Fault]:
  """Yields the rows of a TMX file: every `<tu>` with one of the languages.

  The texts have single spaces; a missing side is "". Entities are never expanded: a document type
  definition in the file, or an entity that XML does not define itself, is a fault.

  Raises:
    InputError: the first fault, if the policy stops.
  """
  parser = _TmxParser(path, (source, target), policy)
  try:
    for chunk in policy.chunks(path):
      yield from parser.feed(chunk)
      if parser.done:
        return
    yield from parser.feed(b"", last=True)
  except archives.DamagedError as error:
    yield policy.fault(parser.place, str(error))


class _RefusedError(Exception):
  """A file has something that is refused; the message names it."""


class _TmxParser:
  """Parses a TMX file; after ill-formed XML, resumes at the next unit.

  Attributes:
    done: Whether the rest of the file is left out.
  """

  def __init__(self, path: str, pair: tuple[Language, Language], policy: FaultPolicy):
    self.done = False
    self._path = path
    self._pair = pair
    self._policy = policy
    self._encoding: str | None = None
    self._breaks = 0
    self._number = 0  # Units so far.
    self._found: collections.deque[Row | Fault] = collections.deque()
    self._start_parser(line=1)
    self._window = bytearray()  # The input of the parser, from its current event.
    self._index = 0  # Start of the window in the whole input of the parser.
    # While searching for the next unit: the current line and its content so far.
    self._searched: tuple[int, bytes] | None = None

  @property
  def place(self) -> str:
    """The current file and line."""
    return f"{self._path}:{self._searched[0] if self._searched else self._line}"

  def feed(self, data: bytes, last: bool = False) -> Iterator[Row | Fault]:
    """Yields the rows and faults in the next piece of the file."""
    while not self.done:
      if self._searched is not None:
        found = self._search(data)
        if found is None:
          return
        data = found
      fault = self._parse(data, last)
      yield from self._found
      self._found.clear()
      if fault is None:
        return
      yield fault
      data = b""

  def _start_parser(self, line: int) -> None:
    """Makes a parser for content that begins on a line and outside of a unit."""
    self._first_line = line
    self._sides: dict[Language | None, str] = {}
    self._language: Language | None = None
    self._text: list[str] | None = None
    self._length = 0
    self._longest = 0
    self._markup_depth = 0
    self._parser = expat.ParserCreate(self._encoding)
    self._parser.buffer_text = True
    self._parser.XmlDeclHandler = self._on_declaration
    self._parser.StartElementHandler = self._on_start
    self._parser.EndElementHandler = self._on_end
    self._parser.CharacterDataHandler = self._on_text
    self._parser.StartDoctypeDeclHandler = self._on_doctype
    self._parser.EntityDeclHandler = self._on_entity
    self._parser.SkippedEntityHandler = self._on_entity

  @property
  def _line(self) -> int:
    return self._first_line + self._parser.CurrentLineNumber - 1

  def _parse(self, data: bytes, last: bool) -> Fault | None:
    self._window += data
    try:
      self._parser.Parse(data, last)
    except expat.ExpatError as error:
      reason = expat.ErrorString(error.code)
      return self._break(f"ill-formed XML: {reason}", f"not well-formed XML: {reason}; repair it")
    except _RefusedError as error:
      self.done = not self._number  # It precedes the first unit.
      return self._break(
        "an entity or a document type definition, which are refused",
        f"the file has {error}, which is refused (entities can expand without limit); remove it",
      )
    except xml_files.PARSE_ERRORS as error:
      self.done = True
      return self._policy.fault(
        self.place,
        "an encoding that cannot be read",
        f"not well-formed XML: {error}; convert the file to UTF-8",
      )
    passed = self._parser.CurrentByteIndex - self._index
    if passed > 0:
      del self._window[:passed]
      self._index += passed
    if len(self._window) > _TAG_BYTES:
      self.done = True
      return self._policy.fault(self.place, f"a tag of more than {_TAG_BYTES >> 20} MB")
    return None

  def _break(self, what: str, error: str) -> Fault:
    """Leaves the current unit; returns the fault."""
    fault = self._policy.fault(self.place, what, error)
    self._breaks += 1
    if self._breaks >= _MOST_BREAKS:
      self.done = True
      return Fault(self.place, f"broken in {_MOST_BREAKS} places: the rest is left out")
    rest = bytes(self._window[max(self._parser.CurrentByteIndex - self._index, 0) :])
    # Without its first byte, which may begin a unit with an ill-formed tag.
    line = self._line + rest[:1].count(b"\n")
    self._window.clear()
    self._searched = line, rest[1:]
    return fault

  def _search(self, data: bytes) -> bytes | None:
    """Returns the content from the next unit on, with a new parser for it; None if not found."""
    line, rest = self._searched or (1, b"")
    data = rest + data
    unit = _UNIT.search(data)
    start = unit.start() if unit else max(len(data) - 3, 0)
    line += data.count(b"\n", 0, start)
    if unit is None:
      self._searched = line, data[start:]
      return None
    self._searched = None
    self._start_parser(line)
    try:
      self._parser.Parse(_RESUMED, False)
    except xml_files.PARSE_ERRORS:  # The declared encoding does not include ASCII.
      self.done = True
      return None
    self._index = len(_RESUMED)
    return data[start:]

  def _on_declaration(self, version: str, encoding: str | None, standalone: int) -> None:
    self._encoding = encoding

  def _on_start(self, name: str, attributes: dict[str, str]) -> None:
    if name == "tu":
      self._sides = {}
      self._longest = 0
      self._number += 1
    elif name == "tuv":
      self._language = language_or_none(attributes.get("xml:lang") or attributes.get("lang") or "")
    elif name == "seg":
      self._text = []
      self._length = 0
    elif name in _TMX_MARKUP:
      self._markup_depth += 1

  def _on_end(self, name: str) -> None:
    if name == "tu":
      if self._longest > self._policy.longest_side:
        place = f"{self._path}:{self._line}"
        self._found.append(self._policy.fault(place, "a side of the unit is too long"))
        return
      source, target = (_side(self._sides, language) or "" for language in self._pair)
      if source or target:
        self._found.append(Row(self._number, (source, target)))
    elif name == "seg":
      if self._language is not None:
        self._sides.setdefault(self._language, " ".join("".join(self._text or ()).split()))
        self._longest = max(self._longest, self._length)
      self._text = None
    elif name in _TMX_MARKUP:
      self._markup_depth -= 1

  def _on_text(self, text: str) -> None:
    if self._text is not None and not self._markup_depth:
      self._length += len(text)
      if self._length <= self._policy.longest_side:
        self._text.append(text)

  def _on_doctype(self, name: str, system: Any, public: Any, has_internal_subset: int) -> None:
    # A mere reference to tmx14.dtd is common and is never fetched.
    if has_internal_subset:
      raise _RefusedError("a document type definition of its own")

  def _on_entity(self, name: str, *details: Any) -> None:
    raise _RefusedError(f"the entity {name!r}")


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
