"""Parses bitext formats. Each parser yields rows, and a fault for each item that it cannot read.

    for item in formats.parse("tsv", ["x.tsv"], (german, english)):
      ...  # a Row, or a Fault for a line that could not be read

Training uses `require` to stop at the first fault. Dataset builds skip and count faults.
"""

import codecs
import functools
import itertools
import json
import numbers
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar
from xml.etree import ElementTree
from xml.parsers import expat

from vmsst import errors, languages
from vmsst.data import dataset_shards
from vmsst.io import archives, input_files, text_files
from vmsst.languages import Language

_UNKNOWN = (languages.UNDETERMINED, languages.UNDETERMINED)
ROLES = {
  **dict.fromkeys(("query", "question"), "query"),
  # FlagEmbedding files store a query's positives under "pos".
  **dict.fromkeys(("document", "passage", "answer", "pos"), "document"),
}
"""Maps a column name to the role of the texts in the column. The role selects the prompt."""
_SCORES = ("score", "label", "scores", "labels", "similarity_score", "teacher_scores")
_IDS = ("id", "idx", "index")  # Fields that contain neither texts nor scores.
# The first line of a TSV file is a header if this pattern matches every column of the line.
_COLUMN = re.compile(
  rf"anchor|positive|negative(_\d+)?|sentence_?[12ab]|{'|'.join([*ROLES, *_SCORES])}|id", re.I
)
# TMX elements within a segment that contain markup from the original document, not text.
_TMX_MARKUP = frozenset({"bpt", "ept", "it", "ph", "ut"})
_UNIT_START = re.compile(r"(?=<tu[\s>])")
_UNIT_END = re.compile(r"</tu\s*>")
_UNIT_CHARACTERS = 4 << 20  # Longer units are faults. This limits memory use.
_XML_LANG = "{http://www.w3.org/XML/1998/namespace}lang"
_MARKS = (
  (codecs.BOM_UTF8, "utf-8-sig"),
  (codecs.BOM_UTF16_LE, "utf-16"),
  (codecs.BOM_UTF16_BE, "utf-16"),
)
_DECLARED_ENCODING = re.compile(rb"<\?xml[^>]*\bencoding\s*=\s*[\"']([\w.-]+)")

T = TypeVar("T")


class Row(NamedTuple):
  """The texts in one pair.

  Attributes:
    number: Line number, starting at 1. In TMX, the position of the `<tu>` in the file.
    texts: Source and target, followed by any hard negatives or further columns.
    scores: Scores or labels, either one for the pair or one for each text after the first. If a TSV
      file without a header has a score column before the pair, the score is a string.
    names: Column names of the texts, if the file has column names.
  """

  number: int
  texts: Sequence[str]
  scores: Sequence[Any] = ()
  names: Sequence[str] = ()


class Fault(NamedTuple):
  """A line, unit or file that was skipped because it could not be read.

  Attributes:
    location: `FILE:LINE` or `FILE`. For a file in an archive, `FILE` is `x.zip/MEMBER`.
    what: The reason. All faults of the same kind in a file have the same wording, so that callers
      can count them.
  """

  location: str
  what: str


def require(items: Iterable[T | Fault]) -> Iterator[T]:
  """Yields the items, and raises InputError at the first fault."""
  for item in items:
    if isinstance(item, Fault):
      raise errors.InputError(f"{item.location}: {item.what}")
    yield item


def parse(
  kind: str,
  paths: Sequence[str],
  pair: tuple[Language, Language],
  fields: Sequence[str] | None = None,
) -> Iterator[Row | Fault]:
  """Yields the rows in a bitext of any supported format.

  Args:
    kind: "moses", "tsv", "tmx", "jsonl" or "tfrecord".
    paths: The file, or the two files of a Moses pair.
    pair: The languages of the two sides.
    fields: JSONL only; see `record_rows`.

  Raises:
    InputError: If a TFRecord record is damaged, or a file in an object store cannot be read.
  """
  path = paths[0]
  match kind:
    case "moses":
      return parse_moses([(path, archives.file_chunks(path)) for path in paths])
    case "tsv":
      return parse_tsv(path)
    case "tmx":
      return parse_tmx(path, *pair)
    case "jsonl":
      return record_rows(json_lines(path), pair, fields)
    case _:
      shard = dataset_shards.Records(path)
      return (Row(number + 1, shard.pair(number)) for number in range(len(shard)))


def _lines(name: str, chunks: Iterable[bytes]) -> Iterator[tuple[int, str, str] | Fault]:
  """Yields the line number, the location for messages, and the text, or a fault, for each line."""
  number = 0
  try:
    for number, line in enumerate(archives.lines(chunks), 1):
      label = f"{name}:{number}"
      yield Fault(label, str(line)) if isinstance(line, archives.BadLine) else (number, label, line)
  except archives.DamagedError as error:
    yield Fault(f"{name}:{number + 1}", str(error))


def parse_moses(files: Sequence[tuple[str, Iterable[bytes]]]) -> Iterator[Row | Fault]:
  """Yields rows from two aligned files, in which lines with the same number are translations.

  Args:
    files: The name and the content of each file.
  """
  for number, pair in enumerate(itertools.zip_longest(*(_lines(*text) for text in files)), 1):
    if None in pair:
      name = files[pair.index(None)][0]
      yield Fault(
        f"{name}:{number - 1}",
        "ends before the other file; check that both are aligned line by line",
      )
      return
    faults = [item for item in pair if isinstance(item, Fault)]
    yield faults[0] if faults else Row(number, tuple(text for *_, text in pair))


def parse_tsv(path: str) -> Iterator[Row | Fault]:
  """Yields rows from a TSV file with source TAB target, optionally followed by further columns.

  If the first line is a header, such as "anchor TAB positive TAB score", all following lines are
  parsed as records (see `record_rows`). A file without a header may have a score column before the
  pair, as `vmsst mine` writes it (see `text_files.begin_with_scores`). All lines must have the same
  number of columns. Empty lines are skipped.
  """
  scored = text_files.begin_with_scores(archives.lines(archives.file_chunks(path)))
  layout = "score (most lines begin with a number) TAB " * scored + "source TAB target"
  header: Sequence[str] = ()
  width = 0
  for item in _lines(path, archives.file_chunks(path)):
    if isinstance(item, Fault):
      yield item
      continue
    number, location, line = item
    if not line:
      continue
    columns = line.split("\t")
    if not width and len(columns) > 1 and all(map(_COLUMN.fullmatch, columns)):
      header, width = columns, len(columns)
      continue
    width = width or max(len(columns), scored + 2)
    if len(columns) != width or (scored and not text_files.is_number(columns[0])):
      yield Fault(location, f"expected {layout}; write {width} columns on every line")
    elif header:
      yield from record_rows([(number, location, dict(zip(header, columns, strict=True)))])
    else:
      yield Row(number, columns[scored:], columns[:scored])


def json_lines(path: str) -> Iterator[tuple[int, str, Any] | Fault]:
  """Yields the line number, the location for messages, and the value, or a fault, for each line."""
  for item in _lines(path, archives.file_chunks(path)):
    if isinstance(item, Fault):
      yield item
      continue
    number, location, line = item
    try:
      yield number, location, json.loads(line)
    except (ValueError, RecursionError) as error:  # Deep nesting raises RecursionError.
      yield Fault(location, f"not JSON: {error}")


def record_rows(
  records: Iterable[tuple[int, str, Any] | Fault],
  pair: tuple[Language, Language] = _UNKNOWN,
  fields: Sequence[str] | None = None,
) -> Iterator[Row | Fault]:
  """Yields one row for each positive in each record.

  Args:
    records: For each record, the line number, the location for messages, and the value. The value
      is a sequence of texts or an object. The texts are fields of the object, or of an inner object
      under the key "translation". Faults are yielded unchanged.
    pair: The languages of the two sides, if known. Fields are then named by language code.
    fields: Names of the two text fields. If omitted, the fields are named by the language codes in
      `pair`. If the languages are also unknown, every field that contains a text or a list of texts
      in the first record is a text field, in the order source, target, hard negatives.
  """
  names = fields or ()
  for item in records:
    if isinstance(item, Fault):
      yield item
      continue
    number, location, record = item
    columns, scores = record if isinstance(record, list | tuple) else [None], []
    pos_scores, neg_scores = (), ()
    if isinstance(record, Mapping):
      inner = record.get("translation")  # Hugging Face datasets use this key.
      record = {**record, **inner} if isinstance(inner, Mapping) else record
      names = names or _field_names(record, pair)
      if missing := [name for name in names[:2] if name not in record]:
        yield Fault(location, f"{missing[0]!r} has no text; the fields are {sorted(record)}")
        continue
      columns = [record[name] or "" for name in names if name in record]
      grades = [name for name, x in record.items() if isinstance(x, numbers.Number)]
      grades = [name for name in grades if name not in (*names, *_SCORES, *_IDS)]
      if grades and not fields:
        problem = f"the fields {grades} may be scores; rename one to 'score' or remove the fields"
        yield Fault(location, problem)
        continue
      score_values = (record.get(name) for name in (*_SCORES, *grades))
      value: Any = next((x for x in score_values if x is not None), [])
      scores = [*value] if isinstance(value, list | tuple) else [value]
      pos_scores, neg_scores = record.get("pos_scores") or (), record.get("neg_scores") or ()
    texts: list[Any] = [[x] if isinstance(x, str) else x for x in columns]
    if not all(isinstance(x, list | tuple) and all(map(input_files.is_text, x)) for x in texts):
      yield Fault(location, f"{input_files.shown(record)}; give texts in UTF-8")
      continue
    if len(texts) < 2 or len(texts[0]) != 1:
      yield Fault(location, f"the text fields are {[*names]}; a pair needs two")
      continue
    (source,), targets, *extra_columns = texts
    for target_number, target in enumerate(targets):
      if target_number < len(pos_scores):
        scores = [pos_scores[target_number], *neg_scores]
      try:
        scores = [*map(float, scores)]
      except (TypeError, ValueError):
        yield Fault(location, f"{input_files.shown(scores)} are not numbers")
        break
      negatives = filter(None, itertools.chain(*extra_columns))
      yield Row(number, (source, target, *negatives), scores, names)


def _field_names(record: Mapping[str, Any], pair: tuple[Language, Language]) -> Sequence[str]:
  """Returns the names of a record's text fields."""
  names = [
    name
    for name, x in record.items()
    if isinstance(x[0] if isinstance(x, list) and x else x, str) and name not in (*_SCORES, *_IDS)
  ]
  if pair != _UNKNOWN:
    by_language = {language_or_none(name): name for name in names}
    return [_side(by_language, language) or language.name for language in pair]
  # A FlagEmbedding record may have no negatives, so `names` may lack "neg".
  return ["query", "pos", "neg"] if "pos" in record else names


def parse_tmx(path: str, source: Language, target: Language) -> Iterator[Row | Fault]:
  """Yields a row for each TMX unit (`<tu>`) that contains at least one of the two languages.

  Whitespace in texts is collapsed to single spaces, and a missing side becomes "". Units are parsed
  independently, so a malformed unit does not affect the rest of the file. Document type definitions
  are not read, so a unit is a fault if it contains an entity that XML itself does not define.
  """
  line, number, buffer = 1, 0, ""
  try:
    for chunk in _decode_xml(archives.file_chunks(path)):
      *pieces, buffer = _UNIT_END.split(buffer + chunk)
      for piece in pieces:
        # `before` is the text before the first unit in `piece`. If no unit starts in `piece`,
        # `before` is parsed as a unit, which yields a fault.
        before, *units = _UNIT_START.split(piece)
        location = line + (before.count("\n") if units else 0)
        for unit in units or [before]:
          number += 1
          yield from _unit_row(unit, number, (path, location), (source, target))
          location += unit.count("\n")
        line += piece.count("\n")
      if len(buffer) > _UNIT_CHARACTERS:
        yield Fault(f"{path}:{line}", f"a unit is longer than {_UNIT_CHARACTERS >> 20} MB")
        return
  except archives.DamagedError as error:
    yield Fault(f"{path}:{line}", str(error))
    return
  if _UNIT_START.search(buffer) or "</tmx" not in buffer:
    last = line + buffer.count("\n")
    yield Fault(f"{path}:{last}", "truncated: there is no </tmx> after the last unit")


def _unit_row(
  unit: str, number: int, location: tuple[str, int], pair: tuple[Language, Language]
) -> Iterator[Row | Fault]:
  """Yields a unit's row or a fault, or nothing if the unit contains neither language."""
  path, line = location
  if "\ufffd" in unit:
    yield Fault(f"{path}:{line}", "a character that cannot be decoded")
    return
  texts: dict[Language | None, str] = {}
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
        texts.setdefault(language, " ".join("".join(segment.itertext()).split()))
  except ElementTree.ParseError as error:
    reason = expat.ErrorString(error.code)
    yield Fault(f"{path}:{line + error.position[0] - 1}", f"ill-formed XML: {reason}")
    return
  if max(map(len, texts.values()), default=0) > archives.LINE_BYTES:
    yield Fault(f"{path}:{line}", "a text of the translation unit is too long")
    return
  first, second = (_side(texts, language) or "" for language in pair)
  if first or second:
    yield Row(number, (first, second))


def _decode_xml(chunks: Iterable[bytes]) -> Iterator[str]:
  """Yields the text of an XML file in chunks, replacing undecodable bytes with U+FFFD.

  Raises:
    archives.DamagedError: If the encoding is unknown, or is UTF-16 without a byte order mark.
  """
  decoder = None
  try:
    for chunk in chunks:
      if decoder is None:
        encoding = next((name for mark, name in _MARKS if chunk.startswith(mark)), "")
        declared = _DECLARED_ENCODING.match(chunk)
        encoding = encoding or (declared[1].decode() if declared else "utf-8")
        decoder = codecs.getincrementaldecoder(encoding)("replace")
      yield decoder.decode(chunk)
  except (LookupError, UnicodeError) as error:  # Invalid characters raise no error.
    raise archives.DamagedError(str(error)) from None


def _side(by_language: dict[Language | None, T], language: Language) -> T | None:
  """Returns the value for a language, falling back to the same language in a different script."""
  if language in by_language:
    return by_language[language]
  variants = (key for key in by_language if key and key.iso639_3 == language.iso639_3)
  return by_language.get(next(variants, language))


@functools.lru_cache(maxsize=1 << 12)  # Limited, because a file may contain many codes.
def language_or_none(code: str) -> Language | None:
  """Returns the language for a code, or None if the code is unknown."""
  try:
    return languages.language(code)
  except ValueError:
    return None
