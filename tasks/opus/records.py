"""OPUS releases, on disk or in an object store."""

import contextlib
import dataclasses
import os
import re
from collections.abc import Iterable

from vmsst import languages
from vmsst.bitext import readers
from vmsst.files import archives, storage
from vmsst.languages import Language

_COMPANION_BYTES = 1 << 16


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
      file); None: the usual codes of the two languages, source first.
  """

  corpus: str
  version: str
  paths: tuple[str, ...]
  format: str
  source: Language
  target: Language
  size: int
  codes: tuple[str, str] | None = None

  @property
  def pair(self) -> tuple[Language, Language]:
    """The two languages, source first."""
    return self.source, self.target

  @property
  def pair_name(self) -> str:
    """Name of the language pair, such as "deu_eng"."""
    return readers.pair_name(*self.pair)

  @property
  def file_codes(self) -> tuple[str, str]:
    """The language codes in the file name, in its order."""
    return self.codes or (usual_code(self.source), usual_code(self.target))

  @property
  def name(self) -> str:
    """A unique name that is valid as a file name: "Europarl.v8.deu_eng".

    Unusual codes are appended ("X.v1.eng_por.en-pt_BR"), because pt_BR and pt are one language but
    two releases.
    """
    plain = f"{self.corpus}.{self.version}.{self.pair_name}"
    usual = {usual_code(language) for language in self.pair}
    return plain if set(self.file_codes) == usual else f"{plain}.{'-'.join(self.file_codes)}"

  def license(self) -> str:
    """Returns the license in the archive, or else next to the file; "" if there is none."""
    return _companion(self.paths[0], "LICEN[SC]E", self._folder)

  def readme(self) -> str:
    """Returns the README in the archive, or else next to the file; "" if there is none."""
    return _companion(self.paths[0], "README", self._folder)

  @property
  def _folder(self) -> str | None:
    """The folder of the version, if the file is in one."""
    folder = os.path.dirname(self.paths[0])
    for candidate in (folder, os.path.dirname(folder)):
      if os.path.basename(candidate) == self.version:
        return candidate
    return None


def ordered(first: Language, second: Language) -> tuple[Language, Language]:
  """Returns two languages in the order of the dataset's pairs: alphabetical by `compact_code`."""
  source, target = sorted((first, second), key=readers.compact_code)
  return source, target


def usual_code(language: Language) -> str:
  """Returns the usual code of a language in OPUS: "de", "ceb", "sr_Latn"."""
  short = language.iso639_1 or language.iso639_3
  return short if languages.language(short) == language else f"{short}_{language.script}"


def _companion(path: str, name: str, folder: str | None) -> str:
  """Returns the beginning of a text such as README in an archive, or else in a folder.

  Args:
    path: The file of the release; it may be an archive.
    name: A pattern for the name of the text without its ending, in any case.
    folder: The folder; None: there is none.

  Returns:
    The text; "" if it does not exist or cannot be read.
  """
  wanted = re.compile(rf"{name}(\.txt|\.md)?", re.IGNORECASE)
  with contextlib.suppress(archives.DamagedError, OSError):
    if path.endswith(".zip"):
      for member in archives.members(path):
        if wanted.fullmatch(os.path.basename(member.name)):
          return _beginning(archives.member_chunks(member))
    for file_name in sorted(storage.names(folder)) if folder else ():
      if wanted.fullmatch(file_name):
        return _beginning(archives.file_chunks(os.path.join(str(folder), file_name)))
  return ""


def _beginning(chunks: Iterable[bytes]) -> str:
  content = b""
  for chunk in chunks:
    content += chunk
    if len(content) >= _COMPANION_BYTES:
      break
  text = content[:_COMPANION_BYTES].decode("utf-8", errors="replace")
  return text.removeprefix("\ufeff").replace("\r\n", "\n").strip()
