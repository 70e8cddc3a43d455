"""What the stages of a build pass on: releases on disk, rows of text, and faults in them."""

import dataclasses
import os
from typing import NamedTuple

from vmsst import languages
from vmsst.bitext import readers
from vmsst.languages import Language
from vmsst.tasks.opus import archives


class Row(NamedTuple):
  """One pair of texts as a release has it.

  Attributes:
    number: The line that it stands on, from 1; of a TMX file the number of its `<tu>`.
    source: Text in the release's source language.
    target: Text in the release's target language.
  """

  number: int
  source: str
  target: str


class Fault(NamedTuple):
  """Something in a release that was left out.

  Attributes:
    place: `FILE:LINE`, or `FILE` alone; the file is `x.zip/MEMBER` within an archive.
    what: Why, in words that are the same for every fault of the kind.
  """

  place: str
  what: str


@dataclasses.dataclass(frozen=True)
class Release:
  """One language pair of one version of a corpus, as it lies on disk.

  Attributes:
    corpus: Its name in OPUS, such as "Europarl".
    version: Such as "v8".
    paths: The file, or the two files of a plain Moses pair (in the order of `codes`).
    format: "zip" (a Moses pair in an archive), "moses", "tsv" or "tmx".
    source: Language of the first side of the dataset's pairs; see `ordered`.
    target: Language of the second side.
    size: Bytes on disk.
    codes: The languages as the file's name has them, in its order (the order of the columns of a
      TSV file); None is the two languages' usual codes, source first.
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
    """Such as "deu_eng"."""
    return pair_name(*self.pair)

  @property
  def file_codes(self) -> tuple[str, str]:
    """The languages as the file's name has them, in its order."""
    return self.codes or (usual_code(self.source), usual_code(self.target))

  @property
  def name(self) -> str:
    """Unique among releases and fit for a file's name: "Europarl.v8.deu_eng".

    Where the file's codes are not the usual ones they follow ("X.v1.eng_por.en-pt_BR"), because
    pt_BR and pt are one language but two releases.
    """
    plain = f"{self.corpus}.{self.version}.{self.pair_name}"
    usual = {usual_code(language) for language in self.pair}
    return plain if set(self.file_codes) == usual else f"{plain}.{'-'.join(self.file_codes)}"

  def license(self) -> str:
    """Text of the license that lies in the archive, or else beside the file; "" without one."""
    return archives.companion(self.paths[0], "LICEN[SC]E", self._folder)

  def readme(self) -> str:
    """Text of the README that lies in the archive, or else beside the file; "" without one."""
    return archives.companion(self.paths[0], "README", self._folder)

  @property
  def _folder(self) -> str | None:
    """The folder of the version, where the file lies in one."""
    folder = os.path.dirname(self.paths[0])
    for candidate in (folder, os.path.dirname(folder)):
      if os.path.basename(candidate) == self.version:
        return candidate
    return None


def code(language: Language) -> str:
  """A code of a language that names no other and holds no "_": "deu", "cmnHant"."""
  return readers.code_of(language).replace("_", "")


def pair_name(source: Language, target: Language) -> str:
  """Such as "deu_eng"; what `vmsst.tasks.bitext.pair_name` gives for the same two."""
  return f"{code(source)}_{code(target)}"


def ordered(first: Language, second: Language) -> tuple[Language, Language]:
  """The two languages in the order of the dataset's pairs: alphabetical by `code`."""
  source, target = sorted((first, second), key=code)
  return source, target


def usual_code(language: Language) -> str:
  """The code that OPUS gives a language as a rule: "de", "ceb", "sr_Latn"."""
  short = language.iso639_1 or language.iso639_3
  return short if languages.language(short) == language else f"{short}_{language.script}"
