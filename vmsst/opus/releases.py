"""Finds OPUS releases in a folder and reads their rows, even from damaged files.

| path within the folder | layout |
|---|---|
| `CORPUS/VERSION/moses/de-en.txt.zip` | OPUS; the folder `moses` is optional |
| `CORPUS/VERSION/tmx/de-en.tmx.gz` | OPUS; plain or gzipped |
| `CORPUS/VERSION/tsv/de-en.tsv.gz` | OPUS; the first two columns are in the order of the codes |
| `CORPUS_VERSION_moses_de-en.txt.zip` | flat file names from opustools, for all formats |

The corpus folder may be at any depth, and may be named `OPUS-CORPUS`, as in OPUS's storage.
If a code with a region (pt_BR) is not in the language table, the region is ignored. A script in a
code (sr_Latn) is never ignored.
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
_FORMATS = ("zip", "tmx", "tsv")  # In order of preference


@dataclasses.dataclass(frozen=True)
class Release:
  """The file for one language pair in one version of a corpus.

  Attributes:
    corpus: Name in OPUS, such as "Europarl".
    version: Version, such as "v8".
    path: The file.
    format: "zip" (a Moses pair in an archive), "tsv" or "tmx".
    pair: The two languages, in the dataset's order; see `order`.
    size: Size of the file in bytes.
    codes: The two language codes, in the order of the file name. The columns of a TSV file have the
      same order.
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
    """A unique name that can be used as a file name, such as "Europarl.v8.de-en"."""
    return f"{self.corpus}.{self.version}.{'-'.join(self.codes)}"


def order(first: Language, second: Language) -> tuple[Language, Language]:
  """Returns two languages in the dataset's order, which is alphabetical by `compact_code`."""
  source, target = sorted((first, second), key=readers.compact_code)
  return source, target


def scan(root: str) -> tuple[list[Release], list[Fault]]:
  """Returns the releases in `root`, sorted by name, and a fault for each file that was skipped.

  If a language pair exists in several formats for the same corpus version, only one file is used:
  preferably an archive, then TMX, then TSV. Files that do not look like OPUS releases are ignored.

  Raises:
    InputError: If `root` contains no release.
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
    left_out = f" (skipped: {faults[0].location}: {faults[0].what})" if faults else ""
    raise errors.InputError(
      f"{root}: no OPUS release in this folder or its subfolders; add releases, such as "
      f"CORPUS/VERSION/moses/de-en.txt.zip{left_out}"
    )
  releases: dict[tuple[str, ...], Release] = {}
  for release in sorted(candidates, key=lambda release: _FORMATS.index(release.format)):
    codes = sorted(map(_fold, release.codes))
    releases.setdefault((release.corpus, release.version, *codes), release)
  return sorted(releases.values(), key=lambda release: release.name), faults


def read(release: Release) -> Iterator[Row | Fault]:
  """Yields the rows in a release in file order, and a fault for each item that is skipped.

  If a file is damaged, all rows that can be read are yielded, followed by a fault. Texts are
  unchanged, except that line ends are removed. A text may be empty. Memory use is limited even if
  lines are very long or an archive is a decompression bomb.
  """
  swapped = release.format != "tmx" and (
    languages.opus_language(release.codes[0]) != release.pair[0]
  )
  try:
    if release.format == "zip":
      texts = _sides(archives.members(release.path), release.codes)
      items = formats.parse_moses([(str(text), archives.member_chunks(text)) for text in texts])
    else:  # TSV columns are in the order of `codes`, TMX texts in the order of `pair`.
      items = formats.parse(release.format, [release.path], release.pair)
  except archives.DamagedError as error:
    yield Fault(release.path, str(error))
    return
  empty = True
  for item in items:
    empty = False
    if isinstance(item, Row):  # Keep only the two texts.
      item = Row(item.number, item.texts[1::-1] if swapped else item.texts[:2])
    yield item
  if empty:
    yield Fault(release.path, "contains no pair in the two languages")


def _release(root: str, path: str, match: re.Match[str]) -> Release | Fault:
  """Returns the release that a file contains, or a fault if the file must be skipped."""
  corpus, version = match["corpus"], match["version"]
  if not corpus:
    folders = os.path.relpath(path, root).split(os.sep)[:-1]
    if folders and folders[-1] in _FORMAT_FOLDERS:
      folders.pop()
    if len(folders) < 2:
      return Fault(path, "neither the folders nor the file name specify the corpus and its version")
    corpus, version = folders[-2:]
  codes = (match["first"], match["second"])
  source, target = map(languages.opus_language, codes)
  if source is None or target is None:
    return Fault(path, f"unknown language code {codes[source is not None]!r}")
  if source == target:
    return Fault(path, f"both languages are {source.name}")
  corpus, pair = corpus.removeprefix("OPUS-"), order(source, target)
  return Release(corpus, version, path, match["format"][-3:], pair, storage.size(path), codes)


def _fold(code: str) -> str:
  return code.lower().replace("@", "_").replace("-", "_")


def _sides(members: list[archives.Member], codes: tuple[str, str]) -> list[archives.Member]:
  """Returns an archive's texts in the order of `codes`. Raises DamagedError if one is missing."""
  texts = []
  for code in codes:
    matches = [x for x in members if _fold(x.name.rpartition(".")[2]) == _fold(code)]
    if len(matches) != 1:
      raise archives.DamagedError(f"{len(matches)} members end with .{code}; exactly one must")
    texts += matches
  return texts
