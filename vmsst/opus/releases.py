"""Finds OPUS releases below a folder and reads their rows, however damaged the files are.

| file below the folder | origin |
|---|---|
| `CORPUS/VERSION/moses/de-en.txt.zip` | layout of OPUS; the folder `moses` is optional |
| `CORPUS/VERSION/tmx/de-en.tmx.gz` | as above; plain or gzipped |
| `CORPUS/VERSION/tsv/de-en.tsv.gz` | as above; first two columns, in the order of the name |
| `CORPUS/VERSION/moses/x.de-en.de` and `x.de-en.en` | an unpacked archive |
| `CORPUS_VERSION_moses_de-en.txt.zip` | flat names of opustools, for all formats |

A corpus may be named `OPUS-CORPUS`, as in the storage of OPUS, and be deeper below the folder. The
region of a code (pt_BR) is dropped if the table of languages has no such language; its script is
not.
"""

import contextlib
import dataclasses
import functools
import hashlib
import os
import re
from collections.abc import Iterable, Iterator

from vmsst import errors, languages, storage
from vmsst.data import formats, readers
from vmsst.data.formats import Fault, Row
from vmsst.io import archives, input_files
from vmsst.languages import Language

_CODE = r"[a-z]{2,3}(?:[_@][A-Za-z0-9]+)*"
_NAME = re.compile(
  r"(?P<stem>(?P<corpus>.+)_(?P<version>[^_]+)_(?:moses|tmx|tsv)_|.+\.)?"
  rf"(?P<first>{_CODE})-(?P<second>{_CODE})"
  rf"(?P<ending>\.txt\.zip|\.tmx(?:\.gz)?|\.tsv(?:\.gz)?|\.(?P<side>{_CODE})(?:\.gz)?)"
)
_FORMAT_FOLDERS = ("moses", "tmx", "tsv")
_FORMATS = ("zip", "moses", "tmx", "tsv")  # In order of preference.
_LICENSE = re.compile(r"LICEN[SC]E(\.txt|\.md)?", re.IGNORECASE)


@dataclasses.dataclass(frozen=True)
class Release:
  """One language pair of one version of a corpus on disk.

  Attributes:
    corpus: Name in OPUS, such as "Europarl".
    version: Version, such as "v8".
    paths: The file, or the two files of a plain Moses pair (in the order of `codes`).
    format: "zip" (a Moses pair in an archive), "moses", "tsv" or "tmx".
    source: Language of the first side of the dataset's pairs; see `ordered`.
    target: Language of the second side.
    size: Bytes on disk.
    codes: The language codes in the file name, in its order (the order of the columns of a TSV
      file).
  """

  corpus: str
  version: str
  paths: tuple[str, ...]
  format: str
  source: Language
  target: Language
  size: int
  codes: tuple[str, str]

  @property
  def pair(self) -> tuple[Language, Language]:
    """The two languages, source first."""
    return self.source, self.target

  @property
  def name(self) -> str:
    """A unique name that is valid as a file name: "Europarl.v8.deu_eng".

    Unusual codes are appended ("X.v1.eng_por.en-pt_BR"), because pt_BR and pt are one language but
    two releases.
    """
    plain = f"{self.corpus}.{self.version}.{readers.pair_name(*self.pair)}"
    usual = set()  # "de", "ceb", "sr_Latn"
    for language in self.pair:
      code = language.iso639_1 or language.iso639_3
      same = languages.language(code) == language
      usual.add(code if same else f"{code}_{language.script}")
    return plain if set(self.codes) == usual else f"{plain}.{'-'.join(self.codes)}"

  @functools.cached_property
  def identity(self) -> str:
    """Hash of the contents of the files, which are read once."""
    hashed = hashlib.sha256()
    for path in self.paths:
      with contextlib.suppress(OSError):  # A file that cannot be read is a fault of the release.
        hashed.update(input_files.sha256(path).encode())
    return hashed.hexdigest()

  def license(self) -> str:
    """Returns the first line of the license in the archive or next to it; "" if there is none."""
    with contextlib.suppress(archives.DamagedError, OSError):
      if self.format == "zip":
        for member in archives.members(self.paths[0]):
          if _LICENSE.fullmatch(os.path.basename(member.name)):
            return _first_line(archives.member_chunks(member))
      folder = os.path.dirname(self.paths[0])
      for parent in (folder, os.path.dirname(folder)):
        for name in storage.names(parent) if os.path.basename(parent) == self.version else ():
          if _LICENSE.fullmatch(name):
            return _first_line(archives.file_chunks(os.path.join(parent, name)))
    return ""


def ordered(first: Language, second: Language) -> tuple[Language, Language]:
  """Returns two languages in the order of the dataset's pairs: alphabetical by `compact_code`."""
  source, target = sorted((first, second), key=readers.compact_code)
  return source, target


def _first_line(chunks: Iterable[bytes]) -> str:
  start = next(iter(chunks), b"").decode("utf-8-sig", errors="replace")
  return next((line.strip() for line in start.splitlines() if line.strip()), "")[:80]


def scan(root: str) -> tuple[list[Release], list[Fault]]:
  """Returns the releases below `root`, sorted by name, and a fault for each file left out.

  If a version of a corpus has a language pair in several formats, one is used: the archive, else
  Moses files, TMX or TSV. Files that are not a release are ignored.

  Raises:
    InputError: there is no release below `root`.
  """
  releases: dict[tuple[str, ...], Release] = {}
  faults: list[Fault] = []
  for path in storage.files_through_links(root):
    match = _NAME.fullmatch(os.path.basename(path))
    if match is None or match["first"] == match["second"]:
      continue
    if not storage.is_file(path):
      faults.append(Fault(path, "not a file, but a broken link or the like"))
      continue
    release = _release(root, path, match)
    if isinstance(release, Fault):
      faults.append(release)
    elif release is not None:
      codes = sorted(_folded(code) for code in release.codes)
      key = (release.corpus, release.version, *codes)
      held = releases.setdefault(key, release)
      if _FORMATS.index(release.format) < _FORMATS.index(held.format):
        releases[key] = release
      elif release.format == held.format and release is not held:
        faults.append(Fault(path, f"the same corpus and languages as {held.paths[0]}"))
  if not releases:
    left_out = f" (left out: {faults[0].place}: {faults[0].what})" if faults else ""
    raise errors.InputError(
      f"{root}: no OPUS release below this folder; add some, as "
      "CORPUS/VERSION/moses/de-en.txt.zip, "
      f"tmx/de-en.tmx.gz or tsv/de-en.tsv.gz{left_out}"
    )
  return sorted(releases.values(), key=lambda release: release.name), faults


def read(release: Release) -> Iterator[Row | Fault]:
  """Yields the rows of a release in its order, and a fault for everything that is left out.

  Nothing in the files raises: a damaged file yields what can be read, then a fault. Texts have no
  line ends and are otherwise unchanged; a side may be empty. Memory is bounded, whatever the length
  of the lines and the expansion of an archive.
  """
  swapped = release.format != "tmx" and (
    languages.opus_language(release.codes[0]) != release.source
  )
  try:
    if release.format == "zip":
      sides = _sides(archives.members(release.paths[0]), release.codes)
      streams = [(str(side), archives.lines(archives.member_chunks(side))) for side in sides]
      items = formats.parse_moses(streams, formats.COUNT)
    else:  # The sides are in the order of the file, in TMX in that of the pair.
      items = formats.parse(release.format, release.paths, release.pair, formats.COUNT)
  except archives.DamagedError as error:
    yield Fault(release.paths[0], str(error))
    return
  empty = True
  for item in items:
    empty = False
    if swapped and isinstance(item, Row):
      item = Row(item.number, item.texts[::-1])
    yield item
  if empty:
    yield Fault(release.paths[0], "holds no pair of the two languages")


def _release(root: str, path: str, match: re.Match[str]) -> Release | Fault | None:
  """Returns the release of a file; None for the second side of a Moses pair."""
  first, second, side = match["first"], match["second"], match["side"]
  paths = [path]
  if side is not None:
    if side not in (first, second):
      return None  # Such as x.de-en.ids.
    other = f"{match['stem'] or ''}{first}-{second}.{second if side == first else first}"
    candidates = (os.path.join(os.path.dirname(path), other + end) for end in ("", ".gz"))
    paths += [full for full in candidates if storage.is_file(full)][:1]
    if len(paths) < 2:
      return Fault(path, f"its counterpart {other} is missing")
    if side == second:
      return None  # The first side stands for both.
  corpus, version = match["corpus"], match["version"]
  if not corpus:
    folders = os.path.relpath(path, root).split(os.sep)[:-1]
    if folders and folders[-1] in _FORMAT_FOLDERS:
      folders.pop()
    if len(folders) < 2:
      return Fault(path, "neither its folders nor its name show corpus and version")
    corpus, version = folders[-2:]
  languages_found = []
  for code in (first, second):
    language = languages.opus_language(code)
    if language is None:
      return Fault(path, f"unknown language code {code!r}")
    languages_found.append(language)
  source, target = ordered(*languages_found)
  if source == target:
    return Fault(path, f"both sides are {source.name}")
  kind = {".txt": "zip", ".tmx": "tmx", ".tsv": "tsv"}.get(match["ending"][:4], "moses")
  size = sum(map(storage.size, paths))
  corpus = corpus.removeprefix("OPUS-")
  return Release(corpus, version, tuple(paths), kind, source, target, size, (first, second))


def _folded(code: str) -> str:
  return code.lower().replace("@", "_").replace("-", "_")


def _sides(members: list[archives.Member], codes: tuple[str, str]) -> list[archives.Member]:
  """Returns the two members with the texts, in the order of `codes`; else raises DamagedError."""
  first, second = (_folded(code) for code in codes)
  by_stem: dict[str, dict[str, archives.Member]] = {}
  for member in members:
    stem, _, ending = member.name.rpartition(".")
    if _folded(ending) in (first, second):
      by_stem.setdefault(stem, {})[_folded(ending)] = member
  pairs = {stem: sides for stem, sides in by_stem.items() if len(sides) == 2}
  named = {stem: pairs[stem] for stem in pairs if stem.lower().endswith("-".join(codes).lower())}
  chosen = list((named or pairs).values())
  if len(chosen) != 1:
    reason = "more than one pair" if chosen else "no pair"
    raise archives.DamagedError(f"{reason} of members that end with .{codes[0]} and .{codes[1]}")
  return [chosen[0][first], chosen[0][second]]
