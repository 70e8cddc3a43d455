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
from tensorflow_datasets.core import file_adapters, naming

from vmsst import languages
from vmsst.data import readers
from vmsst.opus import releases

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
    data = content(part)
    path.write_bytes(data if part.format == "zip" else gzip.compress(data, mtime=0))
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


COLUMNS = ("source", "target", "source_language", "target_language", "corpus")


def write_dataset(
  data_dir: str | os.PathLike,
  config: str,
  pairs: Mapping[tuple[str, str], Sequence[tuple[str, ...]]],
  *,
  validation: int = 1,
  shards: int = 1,
) -> pathlib.Path:
  """Writes `opus_bitext/CONFIG`; returns its folder.

  `pairs` are texts by the codes of their languages; a third item is the name of the corpus. The
  first `validation` rows of each are its validation split, `shards` the files of each other split.
  """
  folder = pathlib.Path(data_dir, "opus_bitext", config, "1.0.0")
  folder.mkdir(parents=True)
  features = tfds.features.FeaturesDict({name: tfds.features.Text() for name in COLUMNS})
  infos = []
  for codes, rows in pairs.items():
    own = [languages.language(code) for code in codes]
    pair = releases.ordered(*own)
    turn = 1 if own == list(pair) else -1
    names = [readers.compact_code(language) for language in pair]
    examples = [
      features.serialize_example(
        dict(zip(COLUMNS, (*row[:2][::turn], *names, *(row[2:] or ["Corpus"])), strict=True))
      )
      for row in rows
    ]
    splits = {"train": examples[validation:], "validation": examples[:validation]}
    for split, part in splits.items():
      name = f"{split}_{'_'.join(names)}"
      count = shards if split == "train" else 1
      parts = [part[i::count] for i in range(count)]
      for i, own_part in enumerate(parts):
        path = folder / f"opus_bitext-{name}.tfrecord-{i:05d}-of-{count:05d}"
        file_adapters.TfRecordFileAdapter.write_examples(path, enumerate(own_part))
      infos.append(
        tfds.core.SplitInfo(
          name=name, shard_lengths=[len(x) for x in parts], num_bytes=sum(map(len, part))
        )
      )
  tfds.folder_dataset.write_metadata(
    data_dir=folder,
    features=features,
    split_infos=infos,
    filename_template=naming.ShardedFileTemplate(
      data_dir=folder,
      template="{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}",
      dataset_name="opus_bitext",
      filetype_suffix="tfrecord",
    ),
  )
  return folder
