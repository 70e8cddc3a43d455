"""Makes small OPUS trees in OPUS's own formats.

    parts = [opus_tree.Part("Europarl", "v8", ("de", "en"), [("Hallo", "hello")])]
    opus_tree.write(tmp_path, parts)  # Europarl/v8/moses/de-en.txt.zip

All bytes are the same for the same rows: archives carry no time.
"""

import dataclasses
import gzip
import io
import os
import pathlib
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from xml.sax import saxutils

import tensorflow_datasets as tfds
from tensorflow_datasets.core import file_adapters

from vmsst import languages
from vmsst.data import readers
from vmsst.opus import releases

_CORPORA = ("Europarl", "Tanzil", "Books", "QED", "Wikipedia", "EMEA", "ECB", "KDE4")
RECIPE = f"""
name: mine
description: Two languages with English.
languages: [de, en, tr]
corpora: [{", ".join(f"{{name: {name}}}" for name in _CORPORA)}]
validation: {{share: 0.2}}
"""
_PLACES = {"zip": ("moses", "txt.zip"), "tmx": ("tmx", "tmx.gz"), "tsv": ("tsv", "tsv.gz")}


@dataclasses.dataclass(frozen=True)
class Part:
  """One file of a release; OPUS's codes are in the order of the alphabet, as the rows' sides.

  Layouts: "folders" (CORPUS/VERSION/moses/de-en.txt.zip), "loose" (CORPUS/VERSION/de-en.txt.zip)
  and "flat" (CORPUS_VERSION_moses_de-en.txt.zip, which opustools writes).
  """

  corpus: str
  version: str
  codes: tuple[str, str]
  rows: Sequence[tuple[str, str]]
  format: str = "zip"
  layout: str = "folders"

  @property
  def path(self) -> str:
    """Its place below the root."""
    kind, ending = _PLACES[self.format]
    file = f"{'-'.join(self.codes)}.{ending}"
    if self.layout == "flat":
      return f"{self.corpus}_{self.version}_{kind}_{file}"
    return os.path.join(self.corpus, self.version, *[kind] * (self.layout == "folders"), file)

  @property
  def content(self) -> bytes:
    """The content of the file."""
    if self.format == "zip":
      stem = f"{self.corpus}.{'-'.join(self.codes)}"
      sides = {
        f"{stem}.{code}": "".join(f"{row[place]}\n" for row in self.rows)
        for place, code in enumerate(self.codes)
      }
      return zipped({**sides, f"{stem}.xml": "<cesAlign/>\n", "README": "", "LICENSE": ""})
    text = "".join(f"{source}\t{target}\n" for source, target in self.rows)
    if self.format == "tmx":
      head = f'<header creationdate="Thu Jul 22 00:00:00 2021" srclang="{self.codes[0]}"/>'
      units = (
        f'<tuv xml:lang="{code}"><seg>{saxutils.escape(side)}</seg></tuv>'
        for row in self.rows
        for code, side in zip(self.codes, row, strict=True)
      )
      pairs = "".join(f"<tu>{source}{next(units)}</tu>\n" for source in units)
      text = f'<?xml version="1.0" encoding="UTF-8" ?>\n<tmx>{head}<body>\n{pairs}</body></tmx>\n'
    return gzip.compress(text.encode(), mtime=0)


def write(root: str | os.PathLike, parts: Iterable[Part]) -> list[pathlib.Path]:
  """Writes a tree; returns the paths, one a part."""
  paths = [pathlib.Path(root, part.path) for part in parts]
  for path, part in zip(paths, parts, strict=True):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(part.content)
  return paths


def write_build(
  folder: pathlib.Path, parts: Iterable[Part], german: str, english: str
) -> list[str]:
  """Writes releases, RECIPE and an evaluation set of one pair; returns the arguments of a build."""
  write(folder / "opus", parts)
  (folder / "mine.yaml").write_text(RECIPE)
  sentences = folder / "evaluation" / "tatoeba"
  sentences.mkdir(parents=True)
  for code, text in (("deu", german), ("eng", english)):
    (sentences / f"tatoeba.deu-eng.{code}").write_text(f"{text}\n")
  return ["data", "build", "--recipe=mine.yaml", "--input=opus", "--held-out=evaluation"]


def zipped(content_by_name: Mapping[str, str | bytes]) -> bytes:
  """A zip archive of members."""
  stream = io.BytesIO()
  with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
    for name, data in content_by_name.items():
      member = zipfile.ZipInfo(name, (2021, 7, 22, 0, 0, 0))
      archive.writestr(member, data, zipfile.ZIP_DEFLATED)
  return stream.getvalue()


COLUMNS = ("source", "target", "source_language", "target_language", "corpus")


def write_dataset(data_dir, config, pairs, *, validation=1, shards=1):
  """Writes `opus_bitext/CONFIG` with TFDS; returns its folder.

  `pairs` are texts by the codes of their languages; a third item is the name of the corpus. The
  first `validation` rows of each are its validation split, `shards` the files of each other split.
  """
  folder = pathlib.Path(data_dir, "opus_bitext", config, "1.0.0")
  folder.mkdir(parents=True)
  features = tfds.features.FeaturesDict({name: tfds.features.Text() for name in COLUMNS})
  infos = []
  for codes, rows in pairs.items():
    own = [languages.language(code) for code in codes]
    turn = 1 if own == [*releases.order(*own)] else -1
    names = [readers.compact_code(language) for language in own[::turn]]
    values = ((*row[:2][::turn], *names, *(row[2:] or ["Corpus"])) for row in rows)
    examples = [features.serialize_example(dict(zip(COLUMNS, row, strict=True))) for row in values]
    for split, part, count in (
      ("train", examples[validation:], shards),
      ("validation", examples[:validation], 1),
    ):
      name, files = f"{split}_{'_'.join(names)}", [part[i::count] for i in range(count)]
      for i, file in enumerate(files):
        path = folder / f"opus_bitext-{name}.tfrecord-{i:05d}-of-{count:05d}"
        file_adapters.TfRecordFileAdapter.write_examples(path, enumerate(file))
      size = sum(map(len, part))
      infos.append(tfds.core.SplitInfo(name=name, shard_lengths=[*map(len, files)], num_bytes=size))
  tfds.folder_dataset.write_metadata(data_dir=folder, features=features, split_infos=infos)
  return folder
