"""Reads bitext files of every supported format in plain Python, one pair at a time.

Formats, in UTF-8 (TMX: in the encoding of its XML declaration), all but shards plain or gzipped
(`.gz`):

| format | files | content |
|---|---|---|
| Moses | `x.de-en.de` and `x.de-en.en` | line i of one translates line i of the other |
| TSV | `x.de-en.tsv` | source TAB target; columns with a header, such as anchor TAB positive; |
| | | or, as `vmsst mine` writes it, score TAB source TAB target |
| TMX | `x.de-en.tmx` | `<tu>` units with one `<tuv xml:lang>` per language |
| JSONL | `x.de-en.jsonl` | `{"translation": {"de": ..., "en": ...}}`, or the inner object alone; |
| | | without languages, `{"anchor": ..., "positive": ...}`, with fields of any name |
| TFRecord | `x-train_deu_eng.tfrecord-00000-of-00001` | a file of a dataset of `vmsst data build` |

Every error names the file and the line, if any. Nothing here imports TensorFlow.
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
# After "-", scripts and regions are capitalized: `zh-TW-en` is Chinese-English, not Twi.
_CODE = r"[a-z]{2,3}(?:_[A-Za-z0-9]+|-[A-Z][A-Za-z]{1,3})*"
_PAIR_OF_CODES = re.compile(f"({_CODE})-({_CODE})")


@dataclasses.dataclass(frozen=True)
class BitextFile:
  """A bitext of one language pair.

  Attributes:
    paths: The file, or the two files of a Moses pair (source side first).
    format: "moses", "tsv", "tmx", "jsonl" or "tfrecord".
    source: Language of the source side.
    target: Language of the target side.
    fields: JSONL only: names of the two fields if they are not language codes.
  """

  paths: tuple[str, ...]
  format: str
  source: Language
  target: Language
  fields: tuple[str, str] | None = None

  def __str__(self) -> str:
    return " + ".join(self.paths)


def digest(bitext: BitextFile) -> str:
  """Returns a hash of a bitext: of the content of its files, and of the options to read them."""
  options = []
  if bitext.format in ("tmx", "jsonl"):  # languages or fields select the texts
    options = [*map(language_code, (bitext.source, bitext.target)), *(bitext.fields or ())]
  return manifest.digest([input_files.sha256(path) for path in bitext.paths], options)


def find_files(patterns: str | Sequence[str]) -> list[str]:
  """Returns the absolute paths or URLs that match shell patterns, sorted within each pattern.

  `**` matches any number of folders.

  Raises:
    InputError: a pattern matches no file.
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
  """Returns the bitexts that match shell patterns, in the order of the patterns, then by name.

  Args:
    patterns: Files or shell patterns. One side of a Moses pair is enough to find both.
    languages: Codes of the source and the target side. If omitted, each file name shows them
      (`deu-eng.tsv.gz`, `Europarl.de-en.de`, `train.de` next to `train.en`).
    fields: Names of the source and the target field in JSONL files, if not language codes.

  Raises:
    InputError: no file matches, a file name does not show format or languages, or a Moses file has
      no counterpart.
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
    InputError: the name has no pair of known language codes, or more than one.
  """
  pairs = _pairs_in_name(path)
  if len(pairs) != 1:
    reason = "more than one pair" if pairs else "no pair"
    raise errors.InputError(
      f"{path}: its name has {reason} of known language codes (such as `de-en` between dots); "
      "rename it or give the languages"
    )
  return pairs[0]


def language_code(language: Language) -> str:
  """Returns the unique code of a language. `languages_in_name` recognizes it in file names."""
  is_default_script = languages_lib.language(language.iso639_3) == language
  return language.iso639_3 if is_default_script else f"{language.iso639_3}_{language.script}"


def language_codes(languages: Iterable[Language]) -> list[str]:
  """Returns the distinct codes of languages, sorted."""
  return sorted({language_code(language) for language in languages})


def compact_code(language: Language) -> str:
  """Returns a code that is unique to a language and has no "_": "deu", "cmnHant"."""
  return language_code(language).replace("_", "")


def pair_name(source: Language, target: Language) -> str:
  """Returns a name that is unique to a language pair, such as "deu_eng"."""
  return f"{compact_code(source)}_{compact_code(target)}"


def by_pair(bitexts: Iterable[BitextFile]) -> dict[tuple[Language, Language], list[BitextFile]]:
  """Returns the files of each language pair."""
  groups: dict[tuple[Language, Language], list[BitextFile]] = {}
  for bitext in bitexts:
    groups.setdefault((bitext.source, bitext.target), []).append(bitext)
  return groups


def shown_pair(bitext: BitextFile) -> str:
  """Returns the name of a file's language pair; "source_target" if it is unknown."""
  if (bitext.source, bitext.target) != (languages_lib.UNDETERMINED, languages_lib.UNDETERMINED):
    return pair_name(bitext.source, bitext.target)
  pairs = _pairs_in_name(bitext.paths[0])
  return pair_name(*pairs[0]) if len(pairs) == 1 else "source_target"


def read_pairs(bitext: BitextFile) -> Iterator[tuple[str, str]]:
  """Yields (source, target) of every pair in the file, in its order; a side may be empty.

  Raises:
    InputError: the line counts differ, text is not UTF-8, columns or fields are missing, a file is
      truncated or corrupt, TMX contains an unknown entity, or the bitext has no pair.
  """
  return ((row.texts[0], row.texts[1]) for row in read_rows(bitext))


def read_rows(bitext: BitextFile, *, graded: bool = False) -> Iterator[formats.Row]:
  """Yields rows: pairs as in `read_pairs`, hard negatives or other columns after them, and scores.

  Args:
    bitext: The file.
    graded: Whether columns with names may have scores. If not, scores raise InputError, because
      some of the pairs may not belong together.
  """
  pair = (bitext.source, bitext.target)
  empty = True
  for row in formats.require(formats.parse(bitext.format, bitext.paths, pair, bitext.fields)):
    empty = False
    if row.names and row.scores and not graded:
      raise errors.InputError(
        f"{bitext}:{row.number}: the scores or labels {row.scores}; remove them, and pairs that do "
        "not belong together"
      )
    yield row
  if empty:
    raise errors.InputError(
      f"{bitext}: contains no pair of {bitext.source.name} and {bitext.target.name}; check that it "
      "is not empty"
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
  # If neither the caller nor the name has the pair, languages are in alphabetical order, but
  # English is last, as in most corpora.
  name_pairs = _pairs_in_name(stem)
  by_name = sorted(paths, key=lambda x: (x.iso639_3 == "eng", x.name))
  pair = language_pair or (name_pairs[0] if len(name_pairs) == 1 else tuple(by_name))
  if len(pair) != 2 or not paths.keys() >= set(pair):
    raise errors.InputError(
      f"{path} needs one counterpart with a known language code, but the folder has files in "
      f"{', '.join(x.name for x in by_name)}; add it, rename files, or give the languages"
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
    # Compact codes become codes of languages: "cmnHant" is "cmn_Hant".
    codes = [tuple(re.sub("(?=[A-Z])", "_", code) for code in shard_codes)]
  pairs = [tuple(map(formats.language_or_none, pair)) for pair in codes]
  return list(dict.fromkeys((source, target) for source, target in pairs if source and target))
