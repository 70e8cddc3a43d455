"""Reads bitext files of every supported format in plain Python, one pair at a time.

Formats, each plain or gzipped (`.gz`), always UTF-8 (TMX: what its XML declaration says):

| format | files | content |
|---|---|---|
| Moses | `x.de-en.de` and `x.de-en.en` | line i of one translates line i of the other |
| TSV | `x.de-en.tsv` | source TAB target; further columns are wrong translations, if asked for |
| TMX | `x.de-en.tmx` | `<tu>` units with one `<tuv xml:lang>` for each language |
| JSONL | `x.de-en.jsonl` | `{"translation": {"de": ..., "en": ...}}`, or the inner object alone |

Every error names the file and, where there is one, the line. Nothing here imports TensorFlow.
"""

import collections
import dataclasses
import functools
import glob
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn, TypeVar, cast
from xml.parsers import expat

from vmsst import errors
from vmsst import languages as languages_lib
from vmsst.files import input_files, text_files, xml_files
from vmsst.languages import Language

_SUFFIX_FORMATS = {".tsv": "tsv", ".tmx": "tmx", ".jsonl": "jsonl"}
# Codes are written small, scripts and regions large: `zh-TW-en` is Chinese-English, not Twi.
_CODE = r"[a-z]{2,3}(?:[_-][A-Z][A-Za-z]{1,3})?"
_PAIR_OF_CODES = re.compile(f"({_CODE})-({_CODE})")
# TMX elements inside a segment whose content is markup of the original document, not text.
_TMX_MARKUP = frozenset({"bpt", "ept", "it", "ph", "ut"})


T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class BitextFile:
  """One bitext of one language pair.

  Attributes:
    paths: The file, or the two files of a Moses pair (source side first).
    format: "moses", "tsv", "tmx" or "jsonl".
    source: Language of the source side.
    target: Language of the target side.
    fields: JSONL only: names of the two fields, where they are not language codes.
  """

  paths: tuple[str, ...]
  format: str
  source: Language
  target: Language
  fields: tuple[str, str] | None = None

  @property
  def text_bytes(self) -> int:
    """Size of the text in bytes; estimated at four times the file where it is compressed."""
    return sum(os.path.getsize(path) * (4 if path.endswith(".gz") else 1) for path in self.paths)

  def __str__(self) -> str:
    return " + ".join(self.paths)


def find_files(patterns: str | Sequence[str]) -> list[str]:
  """Absolute paths that match shell patterns (`**` crosses folders), sorted within each pattern.

  Raises:
    InputError: a pattern matches no file; the message lists what lies nearby.
  """
  found: dict[str, None] = {}
  for pattern in [patterns] if isinstance(patterns, str) else patterns:
    full = os.path.abspath(os.path.expanduser(pattern))
    matches = sorted(path for path in glob.glob(full, recursive=True) if os.path.isfile(path))
    if not matches:
      raise errors.InputError(f"no file matches {pattern!r} ({full}): {_nearby(full)}")
    found.update(dict.fromkeys(matches))
  return list(found)


def find_bitext(
  patterns: str | Sequence[str],
  languages: tuple[str, str] | None = None,
  fields: tuple[str, str] | None = None,
) -> list[BitextFile]:
  """The bitexts that shell patterns match, in the order of the patterns, then by name.

  Args:
    patterns: Files or shell patterns. One side of a Moses pair is enough: the other is found.
    languages: Codes of the source and the target side. None reads them from each file's name
      (`deu-eng.tsv.gz`, `Europarl.de-en.de`, `train.de` beside `train.en`).
    fields: Names of the source and the target field in JSONL files, where not language codes.

  Raises:
    InputError: no file matches, a file's format or languages cannot be told from its name, or
      a Moses file has no counterpart.
  """
  given = None
  if languages is not None:
    given = languages_lib.language(languages[0]), languages_lib.language(languages[1])
  bitexts: dict[BitextFile, None] = {}
  for path in find_files(patterns):
    kind = _SUFFIX_FORMATS.get(os.path.splitext(path.removesuffix(".gz"))[1])
    if kind is None:
      bitexts[_moses_pair(path, given)] = None
    else:
      source, target = given or languages_of(path)
      bitexts[BitextFile((path,), kind, source, target, fields)] = None
  return list(bitexts)


def languages_of(path: str) -> tuple[Language, Language]:
  """The two languages that a file's name tells (`x.de-en.tsv.gz`).

  Raises:
    InputError: the name holds no pair of known language codes, or more than one.
  """
  pairs = _pairs_in_name(path)
  if len(pairs) != 1:
    reason = "more than one pair" if pairs else "no pair"
    raise errors.InputError(
      f"{path}: its name holds {reason} of language codes (such as `de-en` between dots): "
      "rename it, or give the languages"
    )
  return pairs[0]


def code_of(language: Language) -> str:
  """A code of a language that names no other, and that `languages_of` finds in a file's name."""
  plain = languages_lib.language(language.iso639_3) == language
  return language.iso639_3 if plain else f"{language.iso639_3}_{language.script}"


def read_pairs(bitext: BitextFile) -> Iterator[tuple[str, str]]:
  """Yields (source, target) of every pair in the file, in its order; a side may be empty.

  Raises:
    InputError: unequal line counts, text that is not UTF-8, missing columns or fields, a
      truncated or corrupt file, an entity or DTD in TMX, or no pair at all.
  """
  return cast(Iterator[tuple[str, str]], read_rows(bitext))


def read_rows(bitext: BitextFile, negatives: int = 0) -> Iterator[tuple[str, ...]]:
  """As `read_pairs`, each pair followed by as many wrong translations of its source.

  They are the columns behind the pair in a TSV file (see `vmsst data mine-negatives`); one may be
  empty, and further columns are ignored.

  Raises:
    InputError: as `read_pairs`, or the file has not as many wrong translations.
  """
  if negatives and bitext.format != "tsv":
    raise errors.InputError(
      f"{bitext}: only TSV files hold wrong translations, as columns behind the pair; write one "
      "with `vmsst data mine-negatives`"
    )
  reader: dict[str, Callable[[BitextFile], Iterator[tuple[str, ...]]]] = {
    "moses": _read_moses,
    "tsv": functools.partial(_read_tsv, negatives=negatives),
    "tmx": _read_tmx,
    "jsonl": _read_jsonl,
  }
  empty = True
  for row in reader[bitext.format](bitext):
    empty = False
    yield row
  if empty:
    raise errors.InputError(
      f"{bitext}: holds no pair of {bitext.source.name} and {bitext.target.name}; is it empty?"
    )


def _read_moses(bitext: BitextFile) -> Iterator[tuple[str, str]]:
  source_path, target_path = bitext.paths
  source, target = text_files.read_lines(source_path), text_files.read_lines(target_path)
  count = 0
  for source_line in source:
    target_line = next(target, None)
    if target_line is None:
      _raise_unequal(source_path, count + 1 + sum(1 for _ in source), target_path, count)
    count += 1
    yield source_line, target_line
  rest = sum(1 for _ in target)
  if rest:
    _raise_unequal(target_path, count + rest, source_path, count)


def _raise_unequal(longer: str, longer_count: int, shorter: str, shorter_count: int) -> NoReturn:
  raise errors.InputError(
    f"{shorter}:{shorter_count}: ends here with {shorter_count} lines, but {longer} has "
    f"{longer_count}: the two files must be aligned line by line"
  )


def _read_tsv(bitext: BitextFile, negatives: int) -> Iterator[tuple[str, ...]]:
  (path,) = bitext.paths
  wanted = 2 + negatives
  expected = None
  for number, line in enumerate(text_files.read_lines(path), 1):
    columns = line.split("\t")
    expected = expected or max(len(columns), wanted)
    if len(columns) != expected:
      behind = f" TAB {negatives} wrong translations" if negatives else ""
      raise errors.InputError(
        f"{path}:{number}: {len(columns)} columns where {expected} are expected "
        f"(source TAB target{behind}, as many columns on every line)"
      )
    yield tuple(columns[:wanted])


def _read_jsonl(bitext: BitextFile) -> Iterator[tuple[str, str]]:
  (path,) = bitext.paths
  for number, line in enumerate(text_files.read_lines(path), 1):
    place = f"{path}:{number}"
    record = input_files.parse_json(line, place)
    if isinstance(record, dict) and isinstance(record.get("translation"), dict):
      record = record["translation"]
    if not isinstance(record, dict):
      raise errors.InputError(f"{place}: not a JSON object but {type(record).__name__}")
    if bitext.fields:
      names = bitext.fields
      sides = [record.get(name) for name in names]
    else:
      names = bitext.source.name, bitext.target.name
      by_language = {_language_or_none(key): record[key] for key in record}
      sides = [_side(by_language, side) for side in (bitext.source, bitext.target)]
    source, target = (
      _checked(text, f"{place}: {name!r}", record) for text, name in zip(sides, names, strict=True)
    )
    yield source, target


def _side(by_language: dict[Language | None, T], wanted: Language) -> T | None:
  """What stands under a language, or else under the same language in another script."""
  if wanted in by_language:
    return by_language[wanted]
  kin = (key for key in by_language if key and key.iso639_3 == wanted.iso639_3)
  return by_language.get(next(kin, wanted))


def _checked(text: object, place: str, record: dict) -> str:
  if not isinstance(text, str):
    raise errors.InputError(f"{place}: no such text; the line has the fields {sorted(record)}")
  try:
    text.encode("utf-8")
  except UnicodeEncodeError:
    raise errors.InputError(f"{place}: holds half of a surrogate pair") from None
  return text


class TmxHandler:
  """Collects the units of two languages from the events of an XML parser.

  It never expands an entity: a document type definition inside the file, or an entity that XML
  does not define itself, raises InputError with the file and the line.

  Attributes:
    units: (number, source, target) of every `<tu>` that holds one of the languages: its number
      in the file, from 1, and the texts with single spaces, "" for a missing side.
    too_long: The lines of units that were left out because a side exceeds the limit.
    number: How many `<tu>` have begun.
  """

  def __init__(
    self,
    name: str,
    source: Language,
    target: Language,
    parser: expat.XMLParserType,
    *,
    limit: int = sys.maxsize,
    number: int = 0,
    line: int = 1,
  ):
    """Hooks itself into a parser.

    Args:
      name: How errors name the file.
      source: Language of the first side.
      target: Language of the second side.
      parser: One that has parsed nothing.
      limit: Units with a side of more characters are left out, and never held in memory.
      number: How many `<tu>` came before what the parser will get.
      line: The line that it begins on.
    """
    self.units: collections.deque[tuple[int, str, str]] = collections.deque()
    self.too_long: list[int] = []
    self.number = number
    self._name = name
    self._pair = source, target
    self._parser = parser
    self._limit = limit
    self._first_line = line
    self._sides: dict[Language | None, str] = {}
    self._language: Language | None = None
    self._text: list[str] | None = None
    self._length = 0
    self._longest = 0
    self._markup_depth = 0
    parser.buffer_text = True
    parser.StartElementHandler = self._start
    parser.EndElementHandler = self._end
    parser.CharacterDataHandler = self._characters
    parser.StartDoctypeDeclHandler = self._doctype
    parser.EntityDeclHandler = self._entity
    parser.SkippedEntityHandler = self._entity

  @property
  def line(self) -> int:
    """Where the parser is, from 1."""
    return self._first_line + self._parser.CurrentLineNumber - 1

  def _start(self, name: str, attributes: dict[str, str]) -> None:
    if name == "tu":
      self._sides = {}
      self._longest = 0
      self.number += 1
    elif name == "tuv":
      self._language = _language_or_none(attributes.get("xml:lang") or attributes.get("lang") or "")
    elif name == "seg":
      self._text = []
      self._length = 0
    elif name in _TMX_MARKUP:
      self._markup_depth += 1

  def _end(self, name: str) -> None:
    if name == "tu":
      if self._longest > self._limit:
        self.too_long.append(self.line)
        return
      source, target = (_side(self._sides, language) or "" for language in self._pair)
      if source or target:
        self.units.append((self.number, source, target))
    elif name == "seg":
      if self._language is not None:
        self._sides.setdefault(self._language, " ".join("".join(self._text or ()).split()))
        self._longest = max(self._longest, self._length)
      self._text = None
    elif name in _TMX_MARKUP:
      self._markup_depth -= 1

  def _characters(self, text: str) -> None:
    if self._text is not None and not self._markup_depth:
      self._length += len(text)
      if self._length <= self._limit:
        self._text.append(text)

  def _doctype(self, name: str, system: Any, public: Any, has_internal_subset: int) -> None:
    # A mere reference to tmx14.dtd is common and is never fetched.
    if has_internal_subset:
      self._refuse("a document type definition of its own")

  def _entity(self, name: str, *details) -> None:
    self._refuse(f"the entity {name!r}")

  def _refuse(self, what: str) -> None:
    raise errors.InputError(
      f"{self._name}:{self.line}: the file has {what}, which is refused "
      "(entities can expand without limit): remove it"
    )


def _read_tmx(bitext: BitextFile) -> Iterator[tuple[str, str]]:
  (path,) = bitext.paths
  parser = expat.ParserCreate()
  handler = TmxHandler(path, bitext.source, bitext.target, parser)
  for _ in xml_files.feed(path, parser):
    while handler.units:
      yield handler.units.popleft()[1:]


def _moses_pair(path: str, given: tuple[Language, Language] | None) -> BitextFile:
  stem, own = _moses_side(path)
  if own is None:
    raise errors.InputError(
      f"{path}: unknown format: a name ends in .tsv, .tmx, .jsonl or a language code "
      "(.gz may follow)"
    )
  folder = os.path.dirname(path)
  sides = {own: path}
  for name in sorted(os.listdir(folder)):
    other_stem, language = _moses_side(os.path.join(folder, name))
    full = os.path.join(folder, name)
    if other_stem == stem and language is not None and os.path.isfile(full):
      sides.setdefault(language, full)
  named = _pairs_in_name(stem)
  if given or len(named) == 1:
    source, target = given or named[0]
  elif len(sides) == 2:
    # English last, as in most corpora; else by the alphabet.
    source, target = sorted(sides, key=lambda side: (side.iso639_3 == "eng", side.name))
  else:
    raise errors.InputError(
      f"{path}: files of {len(sides)} languages are named alike "
      f"({', '.join(sorted(side.name for side in sides))}): give the two languages"
    )
  for language in (source, target):
    if language not in sides:
      raise errors.InputError(
        f"{path}: its counterpart in {language.name} is missing; files named alike: "
        f"{', '.join(os.path.basename(side) for side in sides.values())}"
      )
  return BitextFile((sides[source], sides[target]), "moses", source, target)


def _moses_side(path: str) -> tuple[str, Language | None]:
  stem, suffix = os.path.splitext(path.removesuffix(".gz"))
  code = suffix[1:]
  return stem, _language_or_none(code) if re.fullmatch(_CODE, code) else None


def _pairs_in_name(path: str) -> list[tuple[Language, Language]]:
  pairs: dict[tuple[Language, Language], None] = {}
  for part in os.path.basename(path).split("."):
    match = _PAIR_OF_CODES.fullmatch(part)
    if match:
      source, target = (_language_or_none(code) for code in match.groups())
      if source and target:
        pairs[source, target] = None
  return list(pairs)


@functools.lru_cache(maxsize=1 << 12)  # A file may hold any number of codes.
def _language_or_none(code: str) -> Language | None:
  try:
    return languages_lib.language(code)
  except ValueError:
    return None


def _nearby(full: str) -> str:
  """Says what exists around a path that does not."""
  folder = os.path.dirname(full)
  while not os.path.isdir(folder):
    folder = os.path.dirname(folder)
  names = sorted(os.listdir(folder))
  if not names:
    return f"{folder} is empty"
  more = f" and {len(names) - 8} more" if len(names) > 8 else ""
  return f"{folder} holds {', '.join(names[:8])}{more}"
