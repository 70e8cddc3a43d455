"""Finds OPUS releases below a folder and reads their rows, however damaged the files are.

| file below the folder | origin |
|---|---|
| `CORPUS/VERSION/moses/de-en.txt.zip` | layout of OPUS; the folder `moses` is optional |
| `CORPUS/VERSION/tmx/de-en.tmx.gz` | as above; plain or gzipped |
| `CORPUS/VERSION/tsv/de-en.tsv.gz` | as above; first two columns, in the order of the name |
| `CORPUS_VERSION_moses_de-en.txt.zip` | flat names of opustools, for all formats |

A corpus may be named `OPUS-CORPUS`, as in the storage of OPUS, and be deeper below the folder. The
region of a code (pt_BR) is dropped if the table of languages has no such language; a script is
never dropped.
"""

import dataclasses
import os
import re
from collections.abc import Iterator

from vmsst import errors, languages, storage
from vmsst.data import formats, readers
from vmsst.data.formats import Fault, Row
from vmsst.io import archives
from vmsst.languages import Language

_CODE = r"[a-z]{2,3}(?:[_@][A-Za-z0-9]+)*"
_NAME = re.compile(
  r"(?:(?P<corpus>.+)_(?P<version>[^_]+)_(?:moses|tmx|tsv)_|.+\.)?"
  rf"(?P<first>{_CODE})-(?P<second>{_CODE})\.(?P<format>txt\.zip|tmx|tsv)(?:\.gz)?"
)
_FORMAT_FOLDERS = ("moses", "tmx", "tsv")
_FORMATS = ("zip", "tmx", "tsv")  # In order of preference.


@dataclasses.dataclass(frozen=True)
class Release:
  """One language pair of one version of a corpus on disk.

  Attributes:
    corpus: Name in OPUS, such as "Europarl".
    version: Version, such as "v8".
    path: The file.
    format: "zip" (a Moses pair in an archive), "tsv" or "tmx".
    pair: Languages of the two sides of the dataset's pairs; see `order`.
    size: Bytes on disk.
    codes: The language codes in the file name, in its order (the order of the columns of a TSV
      file).
  """

  corpus: str
  version: str
  path: str
  format: str
  pair: tuple[Language, Language]
  size: int
  codes: tuple[str, str]

  @property
  def name(self) -> str:
    """A unique name that is valid as a file name: "Europarl.v8.de-en"."""
    return f"{self.corpus}.{self.version}.{'-'.join(self.codes)}"


def order(first: Language, second: Language) -> tuple[Language, Language]:
  """Returns two languages in the order of the dataset's pairs: alphabetical by `compact_code`."""
  source, target = sorted((first, second), key=readers.compact_code)
  return source, target


def scan(root: str) -> tuple[list[Release], list[Fault]]:
  """Returns the releases below `root`, sorted by name, and a fault for each file left out.

  If a version of a corpus has a language pair in several formats, one is used: the archive, else
  TMX or TSV. Files that are not a release are ignored.

  Raises:
    InputError: no release is below `root`.
  """
  candidates: list[Release] = []
  faults: list[Fault] = []
  for name in sorted(storage.files_below(root, through_links=True)):
    path = os.path.join(root, name)
    match = _NAME.fullmatch(os.path.basename(name))
    if match is not None and match["first"] != match["second"]:
      release = _release(root, path, match)
      if isinstance(release, Fault):
        faults.append(release)
      else:
        candidates.append(release)
  if not candidates:
    left_out = f" (left out: {faults[0].location}: {faults[0].what})" if faults else ""
    raise errors.InputError(
      f"{root}: no OPUS release below this folder; add some, such as "
      f"CORPUS/VERSION/moses/de-en.txt.zip{left_out}"
    )
  releases: dict[tuple[str, ...], Release] = {}
  for release in sorted(candidates, key=lambda release: _FORMATS.index(release.format)):
    codes = sorted(map(_fold, release.codes))
    releases.setdefault((release.corpus, release.version, *codes), release)
  return sorted(releases.values(), key=lambda release: release.name), faults


def read(release: Release) -> Iterator[Row | Fault]:
  """Yields the rows of a release in its order, and a fault for everything that is left out.

  Damaged files raise no error: they yield the rows that can be read, then a fault. Texts have no
  line ends and are otherwise unchanged; a side may be empty. Memory is bounded, whatever the length
  of the lines and the expansion of an archive.
  """
  swapped = release.format != "tmx" and (
    languages.opus_language(release.codes[0]) != release.pair[0]
  )
  try:
    if release.format == "zip":
      texts = _sides(archives.members(release.path), release.codes)
      items = formats.parse_moses([(str(text), archives.member_chunks(text)) for text in texts])
    else:  # Texts are in the order of the file; in TMX, in the order of the pair.
      items = formats.parse(release.format, [release.path], release.pair)
  except archives.DamagedError as error:
    yield Fault(release.path, str(error))
    return
  empty = True
  for item in items:
    empty = False
    if isinstance(item, Row):  # without further columns
      item = Row(item.number, item.texts[1::-1] if swapped else item.texts[:2])
    yield item
  if empty:
    yield Fault(release.path, "holds no pair of the two languages")


def _release(root: str, path: str, match: re.Match[str]) -> Release | Fault:
  """Returns the release of a file, or why it is left out."""
  corpus, version = match["corpus"], match["version"]
  if not corpus:
    folders = os.path.relpath(path, root).split(os.sep)[:-1]
    if folders and folders[-1] in _FORMAT_FOLDERS:
      folders.pop()
    if len(folders) < 2:
      return Fault(path, "neither its folders nor its name show corpus and version")
    corpus, version = folders[-2:]
  codes = (match["first"], match["second"])
  source, target = map(languages.opus_language, codes)
  if source is None or target is None:
    return Fault(path, f"unknown language code {codes[source is not None]!r}")
  if source == target:
    return Fault(path, f"both sides are {source.name}")
  corpus, pair = corpus.removeprefix("OPUS-"), order(source, target)
  return Release(corpus, version, path, match["format"][-3:], pair, storage.size(path), codes)


def _fold(code: str) -> str:
  return code.lower().replace("@", "_").replace("-", "_")


def _sides(members: list[archives.Member], codes: tuple[str, str]) -> list[archives.Member]:
  """Returns the members with the texts, in the order of `codes`; DamagedError if one is missing."""
  texts = []
  for code in codes:
    matches = [x for x in members if _fold(x.name.rpartition(".")[2]) == _fold(code)]
    if len(matches) != 1:
      raise archives.DamagedError(f"{len(matches)} members end with .{code}; it needs one")
    texts += matches
  return texts
