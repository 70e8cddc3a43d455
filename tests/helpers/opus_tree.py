"""Makes small OPUS trees in OPUS's own formats, out of given rows or of the real data.

    parts = [opus_tree.Part("Europarl", "v8", ("de", "en"), [("Hallo", "hello")])]
    opus_tree.write(tmp_path, parts)                      # Europarl/v8/moses/de-en.txt.zip
    opus_tree.write(tmp_path, opus_tree.parts_of(data_root, ("de", "es", "tr"), rows=200))

All bytes are the same for the same rows: archives carry no time.
"""

import dataclasses
import gzip
import io
import itertools
import os
import pathlib
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from xml.sax import saxutils

from vmsst import languages

Rows = Sequence[tuple[str, str]]
LICENSE = "CC BY 4.0: the license of {corpus} {version}\n"
README = "Corpus Name: {corpus}\nRelease: {version}\n"
RECIPE = """
name: mine
description: Two languages with English.
languages: [de, en, tr]
unlisted: true
validation: {share: 0.2}
"""
_TIME = (2021, 7, 22, 0, 0, 0)
_PLACES = {
  "zip": ("moses", "txt.zip"),
  "tmx": ("tmx", "tmx.gz"),
  "tsv": ("tsv", "tsv.gz"),
}
_SPANISH = os.path.join("bitext_tatoeba", "spa-eng.tsv.gz")
_EUROPE = "cs da de el es et fi fr hu it lt lv nl pl pt ro sl sv"
_UNITED_NATIONS = "ar es fr ru zh"


@dataclasses.dataclass(frozen=True)
class Part:
  """One file of a release: a corpus of two languages.

  Attributes:
    corpus: As OPUS names it.
    version: The same.
    codes: OPUS's codes of the two languages, in the order of the file's name (the alphabet).
    rows: The texts of both sides, in the order of `codes`.
    format: "zip", "tmx" or "tsv".
    layout: "folders" (CORPUS/VERSION/moses/de-en.txt.zip), "loose" (CORPUS/VERSION/de-en.txt.zip)
      or "flat" (CORPUS_VERSION_moses_de-en.txt.zip, which opustools writes).
  """

  corpus: str
  version: str
  codes: tuple[str, str]
  rows: Rows
  format: str = "zip"
  layout: str = "folders"

  @property
  def path(self) -> str:
    """Its place below the root."""
    kind, ending = _PLACES[self.format]
    file = f"{'-'.join(self.codes)}.{ending}"
    if self.layout == "flat":
      return f"{self.corpus}_{self.version}_{kind}_{file}"
    middle = [kind] if self.layout == "folders" else []
    return os.path.join(self.corpus, self.version, *middle, file)


def write(root: str | os.PathLike, parts: Iterable[Part]) -> list[pathlib.Path]:
  """Writes a tree; returns the paths, one a part."""
  paths = []
  for part in parts:
    path = pathlib.Path(root, part.path)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content(part) if part.format == "zip" else _gzipped(content(part)))
    paths.append(path)
  return paths


def content(part: Part) -> bytes:
  """What is in the file, before gzip; a zip as it is."""
  if part.format == "tsv":
    return "".join(f"{source}\t{target}\n" for source, target in part.rows).encode()
  return tmx(part) if part.format == "tmx" else zipped(members(part))


def members(part: Part) -> dict[str, bytes]:
  """The members of a zip by name."""
  names = {"corpus": part.corpus, "version": part.version}
  stem = f"{part.corpus}.{'-'.join(part.codes)}"
  sides = {
    f"{stem}.{code}": "".join(f"{row[place]}\n" for row in part.rows).encode()
    for place, code in enumerate(part.codes)
  }
  links = "".join(f'  <link xtargets="{i};{i}" />\n' for i in range(1, len(part.rows) + 1))
  return {
    **sides,
    f"{stem}.xml": f"<cesAlign>\n{links}</cesAlign>\n".encode(),
    "README": README.format(**names).encode(),
    "LICENSE": LICENSE.format(**names).encode(),
  }


def zipped(content_by_name: Mapping[str, bytes]) -> bytes:
  """A zip archive of members."""
  stream = io.BytesIO()
  with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
    for name, data in content_by_name.items():
      archive.writestr(zipfile.ZipInfo(name, _TIME), data, zipfile.ZIP_DEFLATED)
  return stream.getvalue()


def tmx(part: Part) -> bytes:
  """A TMX document, as OPUS writes it."""
  units = "".join(
    "    <tu>\n"
    + "".join(
      f'      <tuv xml:lang="{code}"><seg>{saxutils.escape(text)}</seg></tuv>\n'
      for code, text in zip(part.codes, row, strict=True)
    )
    + "    </tu>\n"
    for row in part.rows
  )
  return (
    '<?xml version="1.0" encoding="UTF-8" ?>\n<tmx version="1.4">\n'
    f'<header creationdate="Thu Jul 22 00:00:00 2021" srclang="{part.codes[0]}" adminlang="en" '
    'o-tmf="unknown" segtype="sentence" creationtool="Uplug" creationtoolversion="unknown" '
    f'datatype="PlainText" />\n  <body>\n{units}  </body>\n</tmx>\n'
  ).encode()


def parts_of(
  data_root: pathlib.Path,
  codes: Sequence[str] = ("de", "es", "fr", "ru", "tr"),
  *,
  rows: int | None = None,
  spanish: bool = True,
) -> list[Part]:
  """The real training data as releases of OPUS's corpora, each language with English.

  Tatoeba is the Tatoeba data, OpenSubtitles two thirds of the same and so mostly duplicates;
  Europarl (GlobalVoices outside Europe) is the news, and so is UNPC, with half of the rows, where
  the UN speaks the language; Tanzil is the Bible.

  Args:
    data_root: Folder of the real data.
    codes: Two-letter codes of the languages; those a corpus does not have are passed over.
    rows: How many rows of a file at most; None is all.
    spanish: Whether OpenSubtitles also has each language with Spanish, joined on the English side.
  """
  found = []
  for code in codes:
    name = languages.language(code).tatoeba
    tatoeba = _table(data_root / "bitext_tatoeba" / f"{name}-eng.tsv.gz")
    news = _table(data_root / "bitext_news" / f"{name}-eng.tsv.gz")
    verses = _verses(data_root / "bible", name)
    of_news = ("Europarl", "v8") if code in _EUROPE.split() else ("GlobalVoices", "v2018q4")
    named = (
      ("Tatoeba", "v2021-07-22", tatoeba, "tsv"),
      ("OpenSubtitles", "v2018", [row for i, row in enumerate(tatoeba) if i % 3], "zip"),
      (*of_news, news, "zip"),
      ("UNPC", "v1.0", news[::2] if code in _UNITED_NATIONS.split() else [], "tmx"),
      ("Tanzil", "v1", verses, "tmx"),
    )
    for corpus, version, texts, kind in named:
      if texts[:rows]:
        found.append(_part(corpus, version, (code, "en"), texts[:rows], kind))
  if spanish:
    by_english = {english: text for text, english in _table(data_root / _SPANISH)}
    for code in codes:
      if code != "es":
        name = languages.language(code).tatoeba
        table = _table(data_root / "bitext_tatoeba" / f"{name}-eng.tsv.gz")
        joined = [(text, by_english[english]) for text, english in table if english in by_english]
        if joined[:rows]:
          found.append(_part("OpenSubtitles", "v2018", (code, "es"), joined[:rows], "zip"))
  return found


def _part(corpus: str, version: str, codes: tuple[str, str], rows: Rows, kind: str) -> Part:
  if codes[0] > codes[1]:
    codes, rows = (codes[1], codes[0]), [(target, source) for source, target in rows]
  return Part(corpus, version, codes, list(rows), kind)


def _table(path: pathlib.Path) -> list[tuple[str, ...]]:
  if not path.is_file():
    return []
  with gzip.open(path, "rt", encoding="utf-8", newline="\n") as stream:
    return [tuple(line.removesuffix("\n").split("\t")) for line in stream]


def _verses(folder: pathlib.Path, code: str | None) -> list[tuple[str, str]]:
  """Verses of a language and English ones."""
  tables: Iterator[list[tuple[str, ...]]] = (
    list(itertools.chain.from_iterable(map(_table, sorted(folder.glob(f"{name}.*.tsv.gz")))))
    for name in (code, "eng")
  )
  own, english = map(dict, tables)
  return [(text, english[key]) for key, text in own.items() if key in english]


def _gzipped(data: bytes) -> bytes:
  return gzip.compress(data, mtime=0)
