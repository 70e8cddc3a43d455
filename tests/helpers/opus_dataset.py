"""Writes small datasets as `vmsst data build` does, by TFDS alone."""

import os
import pathlib
from collections.abc import Mapping, Sequence

import tensorflow_datasets as tfds
from tensorflow_datasets.core import file_adapters, naming

from vmsst import languages
from vmsst.data import readers
from vmsst.opus import releases

COLUMNS = ("source", "target", "source_language", "target_language", "corpus")


def write(
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
