"""Finds OPUS releases below a folder and reads their rows, whatever state the files are in.

| file below the folder | where it comes from |
|---|---|
| `CORPUS/VERSION/moses/de-en.txt.zip` | the layout of OPUS; `moses/` and the like may be left out |
| `CORPUS/VERSION/tmx/de-en.tmx.gz` | as above; plain or gzipped |
| `CORPUS/VERSION/tsv/de-en.tsv.gz` | as above; first two columns, in the order of the name |
| `CORPUS/VERSION/moses/x.de-en.de` and `x.de-en.en` | an archive that was unpacked |
| `CORPUS_VERSION_moses_de-en.txt.zip` | the flat names that opustools writes, of all formats |

A corpus may be called `OPUS-CORPUS`, as OPUS' storage has it, and lie deeper below the folder. A
region in a code (pt_BR) is dropped where the table of languages has no such language; a script
never is.
"""

import functools
import itertools
import os
import re
from collections.abc import Iterator
from xml.parsers import expat

from absl import logging

from vmsst import errors, languages
from vmsst.bitext import readers
from vmsst.files import xml_files
from vmsst.languages import Language
from vmsst.tasks.opus import archives
from vmsst.tasks.opus.records import Fault, Release, Row, ordered

_CODE = r"[a-z]{2,3}(?:[_@][A-Za-z0-9]+)*"
_NAME = re.compile(
  r"(?P<stem>(?P<corpus>.+)_(?P<version>[^_]+)_(?:moses|tmx|tsv)_|.+\.)?"
  rf"(?P<first>{_CODE})-(?P<second>{_CODE})"
  rf"(?P<ending>\.txt\.zip|\.tmx(?:\.gz)?|\.tsv(?:\.gz)?|\.(?P<side>{_CODE})(?:\.gz)?)"
)
_REGION = re.compile(r"[A-Za-z]{2}|[0-9]{3}")
_FORMAT_FOLDERS = ("moses", "tmx", "tsv")
_FORMATS = ("zip", "moses", "tmx", "tsv")  # The first that a pair has is taken.
_TMX_BYTES = 16 << 20  # A tag or the like that is longer is no TMX.
_TMX_BREAKS = 1000  # Where a file is broken more often it is left.
_RESUMED = b"<tmx><body>"
_UNIT = re.compile(rb"<tu[\s>]")


def scan(root: str) -> tuple[list[Release], list[Fault]]:
  """The releases below `root`, sorted by name, and the files that are left out, with the reason.

  A language pair that one version of a corpus has in several formats is taken once: from the
  archive, else from Moses files, TMX, TSV. Files that are no release are passed over in silence.

  Raises:
    InputError: `root` is no folder, or no release lies below it.
  """
  if not os.path.isdir(root):
    raise errors.InputError(f"{root}: no such folder; it should hold OPUS releases")
  found: dict[tuple[str, ...], Release] = {}
  faults: list[Fault] = []
  for path in _files(root):
    match = _NAME.fullmatch(os.path.basename(path))
    if match is None or match["first"] == match["second"]:
      continue
    if not os.path.isfile(path):
      faults.append(Fault(path, "no file, but a broken link or the like"))
      continue
    release = _release(root, path, match)
    if isinstance(release, Fault):
      faults.append(release)
    elif release is not None:
      codes = sorted(_folded(code) for code in release.file_codes)
      key = (release.corpus, release.version, *codes)
      held = found.setdefault(key, release)
      if _FORMATS.index(release.format) < _FORMATS.index(held.format):
        found[key] = release
      elif release.format == held.format and release is not held:
        faults.append(Fault(path, f"the same corpus and languages as {held.paths[0]}"))
  if not found:
    raise errors.InputError(
      f"{root}: no OPUS release lies below it; one is CORPUS/VERSION/moses/de-en.txt.zip, "
      f"tmx/de-en.tmx.gz or tsv/de-en.tsv.gz{_first(faults)}"
    )
  return sorted(found.values(), key=lambda release: release.name), faults


def find(root: str) -> list[Release]:
  """The releases that `scan` finds; what it leaves out goes to the log."""
  releases, faults = scan(root)
  for fault in faults:
    logging.warning("%s: left out: %s", fault.place, fault.what)
  return releases


def read(release: Release) -> Iterator[Row | Fault]:
  """Yields the rows of a release in its order, and a fault for everything that is left out.

  Nothing in the files raises: what can be read of a damaged one is given, then a fault. Rows have
  no line ends; beyond that their texts are as they stand, and a side may be empty. Memory is
  bounded, whatever the lines' length and however much an archive expands.
  """
  readers_by_format = {"zip": _read_zip, "moses": _read_moses, "tsv": _read_tsv, "tmx": _read_tmx}
  empty = True
  for item in readers_by_format[release.format](release):
    empty = False
    yield item
  if empty:
    yield Fault(release.paths[0], "holds no pair of the two languages")


def _files(root: str) -> Iterator[str]:
  """Every file below a folder, also through links, in one order everywhere."""
  seen = set()
  for folder, folders, names in os.walk(root, followlinks=True):
    here = os.path.realpath(folder)
    if here in seen:
      folders.clear()
      continue
    seen.add(here)
    folders.sort()
    yield from (os.path.join(folder, name) for name in sorted(names))


def _release(root: str, path: str, match: re.Match[str]) -> Release | Fault | None:
  """The release that a file is; None for the second side of a Moses pair."""
  first, second, side = match["first"], match["second"], match["side"]
  paths = [path]
  if side is not None:
    if side not in (first, second):
      return None  # Such as x.de-en.ids.
    other = f"{match['stem'] or ''}{first}-{second}.{second if side == first else first}"
    found = (os.path.join(os.path.dirname(path), other + end) for end in ("", ".gz"))
    paths += [full for full in found if os.path.isfile(full)][:1]
    if len(paths) < 2:
      return Fault(path, f"its counterpart {other} is missing")
    if side == second:
      return None  # The first side tells of both.
  where = _corpus_and_version(root, path, match)
  if where is None:
    return Fault(path, "neither its folders nor its name tell corpus and version")
  languages_found = []
  for code in (first, second):
    language = _language(code)
    if language is None:
      return Fault(path, f"unknown language code {code!r}")
    languages_found.append(language)
  source, target = ordered(*languages_found)
  if source == target:
    return Fault(path, f"both sides are {source.name}")
  if side is not None:
    kind = "moses"
  else:
    kind = {".txt": "zip", ".tmx": "tmx", ".tsv": "tsv"}[match["ending"][:4]]
  size = sum(os.path.getsize(name) for name in paths)
  return Release(*where, tuple(paths), kind, source, target, size, (first, second))


def _corpus_and_version(root: str, path: str, match: re.Match[str]) -> tuple[str, str] | None:
  if match["corpus"]:
    return match["corpus"].removeprefix("OPUS-"), match["version"]
  folders = os.path.relpath(path, root).split(os.sep)[:-1]
  if folders and folders[-1] in _FORMAT_FOLDERS:
    folders.pop()
  if len(folders) < 2:
    return None
  return folders[-2].removeprefix("OPUS-"), folders[-1]


def _folded(code: str) -> str:
  return code.lower().replace("@", "_").replace("-", "_")


@functools.cache
def _language(code: str) -> Language | None:
  """The language of an OPUS code, without its region where there is no such language."""
  stem, *rest = re.split("[_@]", code)
  shorter = [part for part in rest if not _REGION.fullmatch(part)]
  for candidate in ("_".join([stem, *rest]), "_".join([stem, *shorter])):
    try:
      return languages.language(candidate)
    except errors.InputError:
      continue
  return None


def _swapped(release: Release) -> bool:
  """Whether the file has the dataset's second language first."""
  return _language(release.file_codes[0]) != release.source


def _first(faults: list[Fault]) -> str:
  return f" (left out: {faults[0].place}: {faults[0].what})" if faults else ""


def _read_moses(release: Release) -> Iterator[Row | Fault]:
  sides = [(path, archives.lines(archives.file_chunks(path))) for path in release.paths]
  return _aligned(sides, _swapped(release))


def _read_zip(release: Release) -> Iterator[Row | Fault]:
  (path,) = release.paths
  try:
    sides = _sides(archives.members(path), release.file_codes)
  except archives.DamagedError as error:
    yield Fault(path, str(error))
    return
  if isinstance(sides, str):
    yield Fault(path, sides)
    return
  streams = [(str(side), archives.lines(archives.member_chunks(side))) for side in sides]
  yield from _aligned(streams, _swapped(release))


def _sides(members: list[archives.Member], codes: tuple[str, str]) -> list[archives.Member] | str:
  """The two members with the texts, in the order of `codes`; or what is wrong."""
  first, second = (_folded(code) for code in codes)
  by_stem: dict[str, dict[str, archives.Member]] = {}
  for member in members:
    stem, _, ending = member.name.rpartition(".")
    if _folded(ending) in (first, second):
      by_stem.setdefault(stem, {})[_folded(ending)] = member
  pairs = {stem: sides for stem, sides in by_stem.items() if len(sides) == 2}
  named = {stem: pairs[stem] for stem in pairs if stem.lower().endswith("-".join(codes).lower())}
  chosen = list((named or pairs).values())
  if len(chosen) == 1:
    return [chosen[0][first], chosen[0][second]]
  reason = "more than one pair" if chosen else "no pair"
  return f"{reason} of members that end with .{codes[0]} and .{codes[1]}"


def _aligned(sides: list[tuple[str, Iterator[str]]], swapped: bool) -> Iterator[Row | Fault]:
  """Rows of two texts whose line i translate each other, given as (place, lines)."""
  for number in itertools.count(1):
    texts: list[str | None] = []
    for place, lines in sides:
      try:
        texts.append(next(lines, None))
      except archives.DamagedError as error:
        yield Fault(f"{place}:{number}", str(error))
        return
    first, second = texts
    if first is None or second is None:
      if first is not second:
        place = sides[0 if first is None else 1][0]
        yield Fault(f"{place}:{number - 1}", "ends before the other side: they may be misaligned")
      return
    bad = next(
      (side for side, text in enumerate(texts) if isinstance(text, archives.BadLine)), None
    )
    if bad is not None:
      yield Fault(f"{sides[bad][0]}:{number}", str(texts[bad]))
    else:
      yield Row(number, second, first) if swapped else Row(number, first, second)


def _read_tsv(release: Release) -> Iterator[Row | Fault]:
  (path,) = release.paths
  swapped = _swapped(release)
  number = 0
  try:
    for number, line in enumerate(archives.lines(archives.file_chunks(path)), 1):
      if isinstance(line, archives.BadLine):
        yield Fault(f"{path}:{number}", str(line))
        continue
      first, tab, rest = line.partition("\t")
      if not tab:
        yield Fault(f"{path}:{number}", "the line has one column where two are expected")
        continue
      second = rest.partition("\t")[0]
      yield Row(number, second, first) if swapped else Row(number, first, second)
  except archives.DamagedError as error:
    yield Fault(f"{path}:{number + 1}", str(error))


def _read_tmx(release: Release) -> Iterator[Row | Fault]:
  tmx = _Tmx(release)
  try:
    for chunk in archives.file_chunks(release.paths[0]):
      yield from tmx.feed(chunk)
      if tmx.done:
        return
    yield from tmx.feed(b"", last=True)
  except archives.DamagedError as error:
    yield Fault(tmx.place, str(error))


class _Tmx:
  """Parses a TMX file; where its XML is ill-formed, goes on with the next unit.

  Attributes:
    done: Whether the rest of the file is left out.
  """

  def __init__(self, release: Release):
    (self._path,) = release.paths
    self._pair = release.pair
    self._encoding: str | None = None
    self._breaks = 0
    self.done = False
    self._parser, self._handler = self._begin(number=0, line=1)
    self._window = b""  # What the parser got, from the event that it is at.
    self._index = 0  # Of the window's beginning in all that it got.
    # While the next unit is searched for: the line that is reached, and what begins on it.
    self._searched: tuple[int, bytes] | None = None

  @property
  def place(self) -> str:
    return f"{self._path}:{self._searched[0] if self._searched else self._handler.line}"

  def feed(self, data: bytes, last: bool = False) -> Iterator[Row | Fault]:
    """Yields the rows and faults in the next piece of the file."""
    while not self.done:
      if self._searched is not None:
        found = self._search(data)
        if found is None:
          return
        data = found
      fault = self._parse(data, last)
      for row in self._handler.units:
        yield Row(*row)
      self._handler.units.clear()
      for line in self._handler.too_long:
        yield Fault(f"{self._path}:{line}", "a side of the unit is too long")
      self._handler.too_long.clear()
      if fault is None:
        return
      yield fault
      data = b""

  def _begin(self, number: int, line: int) -> tuple[expat.XMLParserType, readers.TmxHandler]:
    parser = expat.ParserCreate(self._encoding)
    parser.XmlDeclHandler = self._declared
    handler = readers.TmxHandler(
      self._path, *self._pair, parser, limit=archives.LINE_BYTES, number=number, line=line
    )
    return parser, handler

  def _declared(self, version: str, encoding: str | None, standalone: int) -> None:
    self._encoding = encoding

  def _parse(self, data: bytes, last: bool) -> Fault | None:
    self._window += data
    try:
      self._parser.Parse(data, last)
    except expat.ExpatError as error:
      return self._break(f"ill-formed XML: {expat.ErrorString(error.code)}")
    except errors.InputError:
      # A document type definition, or an entity in what comes before the first unit.
      self.done = not self._handler.number
      return self._break("an entity or a document type definition, which are refused")
    except xml_files.PARSE_ERRORS:
      self.done = True
      return Fault(self.place, "an encoding that cannot be read")
    passed = self._parser.CurrentByteIndex - self._index
    if passed > 0:
      self._window = self._window[passed:]
      self._index += passed
    if len(self._window) > _TMX_BYTES:
      self.done = True
      return Fault(self.place, f"a tag of more than {_TMX_BYTES >> 20} MB")
    return None

  def _break(self, what: str) -> Fault:
    """Leaves the unit that the parser is at; returns the fault."""
    fault = Fault(self.place, what)
    self._breaks += 1
    if self._breaks >= _TMX_BREAKS:
      self.done = True
      return Fault(self.place, f"broken in {_TMX_BREAKS} places: the rest is left out")
    rest = self._window[max(self._parser.CurrentByteIndex - self._index, 0) :]
    # Not the same unit again, if it breaks in its tag.
    line = self._handler.line + rest[:1].count(b"\n")
    self._window = b""
    self._searched = line, rest[1:]
    return fault

  def _search(self, data: bytes) -> bytes | None:
    """What follows from the beginning of the next unit on, with a new parser for it."""
    line, rest = self._searched or (1, b"")
    data = rest + data
    unit = _UNIT.search(data)
    start = unit.start() if unit else max(len(data) - 3, 0)
    line += data.count(b"\n", 0, start)
    if unit is None:
      self._searched = line, data[start:]
      return None
    self._searched = None
    self._parser, self._handler = self._begin(self._handler.number, line)
    try:
      self._parser.Parse(_RESUMED, False)
    except xml_files.PARSE_ERRORS:  # Said to be in an encoding without ASCII.
      self.done = True
      return None
    self._index = len(_RESUMED)
    return data[start:]
