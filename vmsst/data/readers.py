"""Reads bitext files in every supported format, one pair at a time, in plain Python.

Text files may be gzipped (`.gz`). They must be UTF-8, except that TMX may declare a different
encoding. These formats are supported:

| format | files | content |
|---|---|---|
| Moses | `x.de-en.de` and `x.de-en.en` | lines with the same number are translations |
| TSV | `x.de-en.tsv` | source TAB target; or a header, such as anchor TAB positive; |
| | | or, as `vmsst mine` writes it, score TAB source TAB target |
| TMX | `x.de-en.tmx` | `<tu>` units with one `<tuv xml:lang>` per language |
| JSONL | `x.de-en.jsonl` | `{"translation": {"de": ..., "en": ...}}`, or only the inner object; |
| | | or, if languages are unknown, fields with any names: `{"anchor": ..., "positive": ...}` |
| TFRecord | `x-train_deu_eng.tfrecord-00000-of-00001` | a shard of a `vmsst data build` dataset |

Error messages name the file and, if possible, the line. Nothing here imports TensorFlow.
"""

import dataclasses
import os
import re
from collections.abc import Iterable, Iterator, Sequence

from vmsst import errors, storage
from vmsst import languages as languages_lib
from vmsst.data import dataset_shards, formats
from vmsst.io import input_files, manifest
from vmsst.languages import Language

_SUFFIX_FORMATS = {".tsv": "tsv", ".tmx": "tmx", ".jsonl": "jsonl"}
# A script or region after "-" must be capitalized. In `zh-TW-en`, "TW" is Taiwan, not Twi.
_CODE = r"[a-z]{2,3}(?:_[A-Za-z0-9]+|-[A-Z][A-Za-z]{1,3})*"
_PAIR_OF_CODES = re.compile(f"({_CODE})-({_CODE})")


@dataclasses.dataclass(frozen=True)
class BitextFile:
  """A bitext for one language pair.

  Attributes:
    paths: The file, or the two files of a Moses pair (source side first).
    format: "moses", "tsv", "tmx", "jsonl" or "tfrecord".
    source: Language of the source side.
    target: Language of the target side.
    fields: Names of the two text fields in a JSONL file, unless the fields are named by language
      codes.
  """

  paths: tuple[str, ...]
  format: str
  source: Language
  target: Language
  fields: tuple[str, str] | None = None

  def __str__(self) -> str:
    return " + ".join(self.paths)


def digest(bitext: BitextFile) -> str:
  """Hashes the contents of a bitext's files and the options that affect how the files are read."""
  options = []
  if bitext.format in ("tmx", "jsonl"):  # Languages and fields select the texts.
    options = [*map(language_code, (bitext.source, bitext.target)), *(bitext.fields or ())]
  return manifest.digest([input_files.sha256(path) for path in bitext.paths], options)


def find_files(patterns: str | Sequence[str]) -> list[str]:
  """Returns the absolute paths or URLs that match shell patterns, sorted within each pattern.

  `**` matches any number of nested folders.

  Raises:
    InputError: If a pattern matches no file.
  """
  files: dict[str, None] = {}
  for pattern in [patterns] if isinstance(patterns, str) else patterns:
    matches = storage.matches(pattern)
    if not matches:
      raise errors.InputError(f"no file matches {storage.absolute(pattern)!r}; check the path")
    files.update(dict.fromkeys(matches))
  return list(files)


def find_bitext(
  patterns: str | Sequence[str],
  languages: tuple[str, str] | None = None,
  fields: tuple[str, str] | None = None,
) -> list[BitextFile]:
  """Returns the bitexts that match shell patterns, in pattern order and then by name.

  Args:
    patterns: Files or shell patterns. For a Moses pair, one of the two files is enough.
    languages: Source and target language codes. If omitted, the codes are read from the file names
      (`deu-eng.tsv.gz`, `Europarl.de-en.de`, `train.de` next to `train.en`).
    fields: Names of the source and target fields in JSONL files, unless the fields are named by
      language codes.

  Raises:
    InputError: If no file matches a pattern, a file name does not show the format or the languages,
      or a Moses file has no counterpart.
  """
  language_pair = None
  if languages is not None:
    language_pair = languages_lib.language(languages[0]), languages_lib.language(languages[1])
  bitexts: dict[BitextFile, None] = {}
  for path in find_files(patterns):
    kind = _SUFFIX_FORMATS.get(os.path.splitext(path.removesuffix(".gz"))[1])
    if re.search(r"\.tfrecord(-\d+-of-\d+)?$", path):
      kind = "tfrecord"
    if kind is None:
      bitexts[_moses_pair(path, language_pair)] = None
    else:
      source, target = language_pair or languages_in_name(path)
      bitexts[BitextFile((path,), kind, source, target, fields)] = None
  return list(bitexts)


def languages_in_name(path: str) -> tuple[Language, Language]:
  """Returns the two languages in a file name (`x.de-en.tsv.gz`, `x-train_deu_eng.tfrecord`).

  Raises:
    InputError: If the name contains no pair of known language codes, or more than one pair.
  """
  pairs = _pairs_in_name(path)
  if len(pairs) != 1:
    reason = "more than one pair" if pairs else "no pair"
    raise errors.InputError(
      f"{path}: the name contains {reason} of known language codes (such as `de-en` between dots); "
      "rename the file or specify the languages"
    )
  return pairs[0]


def language_code(language: Language) -> str:
  """Returns a language's unique code, as recognized in file names by `languages_in_name`."""
  is_default_script = languages_lib.language(language.iso639_3) == language
  return language.iso639_3 if is_default_script else f"{language.iso639_3}_{language.script}"


def language_codes(languages: Iterable[Language]) -> list[str]:
  """Returns the distinct codes of the languages, sorted."""
  return sorted({language_code(language) for language in languages})


def compact_code(language: Language) -> str:
  """Returns a unique language code without "_", such as "deu" or "cmnHant"."""
  return language_code(language).replace("_", "")


def pair_name(source: Language, target: Language) -> str:
  """Returns a unique name for a language pair, such as "deu_eng"."""
  return f"{compact_code(source)}_{compact_code(target)}"


def by_pair(bitexts: Iterable[BitextFile]) -> dict[tuple[Language, Language], list[BitextFile]]:
  """Groups bitexts by language pair."""
  groups: dict[tuple[Language, Language], list[BitextFile]] = {}
  for bitext in bitexts:
    groups.setdefault((bitext.source, bitext.target), []).append(bitext)
  return groups


def shown_pair(bitext: BitextFile) -> str:
  """Returns the name of a bitext's language pair, or "source_target" if the pair is unknown."""
  if (bitext.source, bitext.target) != (languages_lib.UNDETERMINED, languages_lib.UNDETERMINED):
    return pair_name(bitext.source, bitext.target)
  pairs = _pairs_in_name(bitext.paths[0])
  return pair_name(*pairs[0]) if len(pairs) == 1 else "source_target"


def read_pairs(bitext: BitextFile) -> Iterator[tuple[str, str]]:
  """Yields every (source, target) pair in file order. Either text may be empty.

  Raises:
    InputError: If the files have different numbers of lines, text is not UTF-8, a column or field
      is missing, a file is truncated or corrupt, a TMX file contains an unknown entity, or the
      bitext contains no pairs.
  """
  return ((row.texts[0], row.texts[1]) for row in read_rows(bitext))


def read_rows(bitext: BitextFile, *, graded: bool = False) -> Iterator[formats.Row]:
  """Yields the same pairs as `read_pairs`, with any hard negatives, further columns and scores.

  Args:
    bitext: The file.
    graded: Whether named columns may contain scores. If not, a score raises InputError, because
      scored pairs are not always translations.
  """
  pair = (bitext.source, bitext.target)
  empty = True
  for row in formats.require(formats.parse(bitext.format, bitext.paths, pair, bitext.fields)):
    empty = False
    if row.names and row.scores and not graded:
      raise errors.InputError(
        f"{bitext}:{row.number}: unexpected scores or labels {row.scores}; remove them, and remove "
        "pairs that are not translations"
      )
    yield row
  if empty:
    raise errors.InputError(
      f"{bitext}: contains no pair of {bitext.source.name} and {bitext.target.name} texts; check "
      "that it is not empty"
    )


def _moses_pair(path: str, language_pair: tuple[Language, Language] | None) -> BitextFile:
  unzipped = path.removesuffix(".gz")
  if storage.is_file(unzipped) and storage.is_file(unzipped + ".gz"):
    raise errors.InputError(f"both {unzipped} and {unzipped}.gz exist; remove one")
  stem, code = _moses_side(path)
  if code is None:
    raise errors.InputError(
      f"{path}: unknown format or language code; use a name that ends in .tsv, .tmx, .jsonl or a "
      "language code, such as .de or .pt_br (.gz may follow)"
    )
  folder = os.path.dirname(path)
  paths = {code: path}
  for name in sorted(storage.names(folder)):
    full = os.path.join(folder, name)
    other_stem, language = _moses_side(full)
    if other_stem == stem and language is not None and storage.path(full).is_file():
      paths.setdefault(language, full)
  # If neither the caller nor the file name specifies the order of the two files, sort the files
  # alphabetically by language, with English last, as in most corpora.
  name_pairs = _pairs_in_name(stem)
  by_name = sorted(paths, key=lambda x: (x.iso639_3 == "eng", x.name))
  pair = language_pair or (name_pairs[0] if len(name_pairs) == 1 else tuple(by_name))
  if len(pair) != 2 or not paths.keys() >= set(pair):
    raise errors.InputError(
      f"{path} needs one counterpart with a known language code, but the folder has files in "
      f"{', '.join(x.name for x in by_name)}; add or rename a file, or specify the languages"
    )
  return BitextFile((paths[pair[0]], paths[pair[1]]), "moses", *pair)


def _moses_side(path: str) -> tuple[str, Language | None]:
  stem, suffix = os.path.splitext(path.removesuffix(".gz"))
  code = suffix[1:]
  return stem, formats.language_or_none(code) if re.fullmatch(_CODE, code) else None


def _pairs_in_name(path: str) -> list[tuple[Language, Language]]:
  name = os.path.basename(path)
  matches = filter(None, map(_PAIR_OF_CODES.fullmatch, name.split(".")))
  codes = [match.groups() for match in matches]
  if shard_codes := dataset_shards.language_codes(name):
    # Convert compact codes to language codes: "cmnHant" to "cmn_Hant".
    codes = [tuple(re.sub("(?=[A-Z])", "_", code) for code in shard_codes)]
  pairs = [tuple(map(formats.language_or_none, pair)) for pair in codes]
  return list(dict.fromkeys((source, target) for source, target in pairs if source and target))
