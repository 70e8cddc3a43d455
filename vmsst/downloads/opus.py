"""Lists and downloads OPUS releases.

A release is one version of a corpus for one language pair: a zip archive that contains two text
files with aligned lines. `download` writes each release to a path such as
`CORPUS/VERSION/moses/de-en.txt.zip`. The list of releases comes from the OPUS API.
"""

import os
import pathlib
import re
import tempfile
import urllib.parse
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Annotated, Any

import msgspec

from vmsst import errors, languages, storage
from vmsst.downloads import fetch

SITE = "https://opus.nlpl.eu"
API = f"{SITE}/opusapi/"
LATEST = "latest"

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._+-]{0,99}")
_FILE = re.compile(r"([A-Za-z0-9_]{1,40})-([A-Za-z0-9_]{1,40})\.txt\.zip")

Keep = Callable[[str, str], bool]
"""Filter that takes the two OPUS codes of a language pair and returns whether to keep the pair."""


class Release(msgspec.Struct, frozen=True):
  """A file in OPUS, with the fields that the OPUS API returns.

  Attributes:
    corpus: Name of the corpus.
    version: Version, such as "v8".
    source: OPUS code of the first language.
    target: OPUS code of the second language.
    url: URL of the file.
    kib: Size in KiB, rounded down.
    alignment_pairs: Number of sentence pairs, or a value that is not an integer if OPUS does not
      list the number.
  """

  corpus: str
  version: str
  source: str
  target: str
  url: str
  kib: Annotated[int, msgspec.Meta(ge=0)] = msgspec.field(name="size")
  alignment_pairs: Any = None

  @property
  def pairs(self) -> int | None:
    """Number of sentence pairs; None if OPUS does not list the number."""
    return self.alignment_pairs if isinstance(self.alignment_pairs, int) else None

  @property
  def path(self) -> pathlib.PurePosixPath:
    """Path of the file below the root."""
    name = f"{self.source}-{self.target}.txt.zip"
    return pathlib.PurePosixPath(self.corpus, self.version, "moses", name)


class _List(msgspec.Struct):
  """A response from the OPUS API."""

  corpora: list[Release]


def releases(
  fetcher: fetch.Fetcher, corpora: Iterable[tuple[str, str | None]], keep: Keep
) -> list[Release]:
  """Lists the nonempty releases of the given corpora, in the given order.

  Args:
    fetcher: Downloads the lists.
    corpora: (name, version) pairs. If a version is None, the latest version is used.
    keep: Selects language pairs.

  Raises:
    InputError: If OPUS has no such corpus or version, or a record is not a release.
    msgspec.DecodeError: If the response is not a list of releases.
  """
  selected = []
  for corpus, version in corpora:
    query = {"corpus": corpus, "version": version or LATEST, "preprocessing": "moses"}
    url = f"{API}?{urllib.parse.urlencode(query)}"
    content = msgspec.json.decode(fetcher.read(url), type=_List)
    if not content.corpora:
      raise errors.InputError(
        f"OPUS has no version {version or LATEST} of the corpus {corpus}; see {SITE}"
      )
    for release in content.corpora:
      # The list is untrusted, and corpus names and versions become parts of paths.
      file = _FILE.fullmatch(release.url.partition("?")[0].rpartition("/")[2])
      is_moses = file is not None and file.groups() == (release.source, release.target)
      if not (is_moses and _NAME.fullmatch(release.corpus) and _NAME.fullmatch(release.version)):
        raise errors.InputError(f"OPUS lists {release!r}, not a release in Moses format")
      fetch.check_address(release.url)
      if release.pairs != 0 and keep(release.source, release.target):
        selected.append(release)
  return selected


def download(
  fetcher: fetch.Fetcher,
  releases: Sequence[Release],
  root: storage.Path,
  report: Callable[[Release, bool], None] = lambda release, fetched: None,
) -> None:
  """Downloads releases into a root folder. Existing files are only checked.

  Args:
    fetcher: Downloads files.
    releases: The releases.
    root: A folder, local or in an object store. Only complete files are uploaded to a store.
    report: Called after each release with the release and whether it was downloaded.

  Raises:
    InputError: See `fetch.Fetcher.fetch`.
  """
  for release in releases:
    path, file = root / release.path, fetch.File(release.url, kib=release.kib)
    if not storage.is_url(path):
      fetched = fetcher.fetch(file, pathlib.Path(path))
    elif fetched := not storage.exists(path):
      with tempfile.TemporaryDirectory(prefix="vmsst-") as folder:
        local = pathlib.Path(folder, path.name)
        fetcher.fetch(file, local)
        storage.upload(local, os.fspath(path))
    elif problem := file.size_difference(storage.size(path)):
      raise errors.InputError(f"{path} {problem}; remove it to download it again")
    report(release, fetched)


def every_pair(source: str, target: str) -> bool:
  """Accepts every language pair."""
  return True


def pairs_among(texts: Iterable[str]) -> Keep:
  """Returns a filter that accepts the given language pairs, in either order.

  Args:
    texts: Language pairs such as "de-en". All codes for a language, such as en and eng, are
      equivalent.

  Raises:
    InputError: If a text is not a pair of language codes.
  """
  pairs = set()
  for text in texts:
    source, dash, target = text.partition("-")
    if not (dash and source and target and "-" not in target):
      raise errors.InputError(f"{text!r} is not a language pair; write it as de-en or en-pt_BR")
    pairs.add(frozenset(map(_comparable, (source, target))))
  return lambda source, target: frozenset(map(_comparable, (source, target))) in pairs


def _comparable(code: str) -> languages.Language | str:
  return languages.opus_language(code) or code.lower()


def describe(releases: Sequence[Release]) -> Iterator[str]:
  """Yields one line per release, one line with the totals, and the license of each corpus."""
  for x in releases:
    pairs = "" if x.pairs is None else f"{x.pairs:,}"
    name = f"{x.source}-{x.target}"
    yield f"{x.corpus:<20} {x.version:<14} {name:<14} {pairs:>14} pairs {x.kib / 1024:>10,.1f} MiB"
  total = sum(x.kib for x in releases) / 1024
  count = sum(x.pairs or 0 for x in releases)
  yield f"{len(releases):,} files, {count:,} pairs, {total:,.1f} MiB to download unless present"
  for corpus in dict.fromkeys(x.corpus for x in releases):
    page = f"{SITE}/{corpus}/corpus/version/{corpus}"
    yield f"license: in each archive (LICENSE, README), and at {page}"
