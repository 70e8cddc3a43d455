"""Datasets of `vmsst data build`, as TFDS has them: sources of their pairs for SeqIO."""

import functools
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import seqio
import tensorflow as tf
import tensorflow_datasets as tfds
from etils import epath
from google.protobuf import json_format

from vmsst import errors
from vmsst import languages as languages_lib
from vmsst.data import dataset_shards, features, readers, sources, teacher_vectors
from vmsst.languages import Language

SPLITS = ("train", "validation")
_RECORDS = 64
_TEXTS = dict.fromkeys(("source", "target"), tf.io.FixedLenFeature([], tf.string))


class DatasetSource(sources.TextSource, seqio.TfdsDataSource):
  """Reads the texts of one language pair, with language ids; parses dozens of records at a time."""

  # Rows are in a pseudo-random order already; this mixes the rows of several files, and reshuffles
  # small language pairs in every epoch.
  shuffle_buffer = 1000

  def __init__(
    self,
    name: str,
    data_dir: str | None,
    splits: Mapping[str, str],
    pair: tuple[Language, Language],
    teacher: str | None = None,
  ):
    super().__init__(name, data_dir, splits, read_only=True)
    self.split_languages = self._pair = pair
    self._teacher = teacher

  def bitext_files(self, split: str) -> list[readers.BitextFile]:
    """Returns the files of a split."""
    return [
      readers.BitextFile((path,), "tfrecord", *self._pair) for path in self.list_shards(split)
    ]

  @functools.cache  # noqa: B019 (a source lives as long as its task, which is registered)
  def _vectors(self, split: str) -> list[np.memmap]:
    """Returns the teacher's vectors of each file."""
    shards = self.bitext_files(split)
    stored = [teacher_vectors.open_vectors(str(self._teacher), file) for file in shards]
    if sum(map(len, stored)) != self.num_input_examples(split):
      raise errors.InputError(
        f"{self._teacher}: has vectors of {sum(map(len, stored))} pairs of {shards[0]} and so on, "
        f"but the split {split} has {self.num_input_examples(split)}; recompute them (`vmsst data "
        "embed --refresh`)"
      )
    return stored

  def get_dataset(
    self,
    split: str = "train",
    shuffle: bool = True,
    seed: int | None = None,
    shard_info: seqio.ShardInfo | None = None,
    **unused,
  ) -> tf.data.Dataset:
    """Returns the rows of whole files for each shard, as seqio.TfdsDataSource."""
    del unused
    shard = shard_info or sources.WHOLE
    paths, order = self.list_shards(split), (shuffle, seed, shard)
    if self._teacher is None:
      records = sources.interleave_files((paths,), tf.data.TFRecordDataset, *order)
      return records.batch(_RECORDS).map(self._columns).unbatch()
    shards = self.bitext_files(split)
    stored = self._vectors(split)
    shape, size = stored[0].shape[1:], stored[0][0].nbytes

    def open_file(path: tf.Tensor, vectors: tf.Tensor, offset: tf.Tensor) -> tf.data.Dataset:
      rows = tf.data.FixedLengthRecordDataset(vectors, size, header_bytes=tf.cast(offset, tf.int64))
      return tf.data.Dataset.zip((tf.data.TFRecordDataset(path), rows))

    def join(record_B: tf.Tensor, vectors_B: tf.Tensor) -> dict[str, tf.Tensor]:
      return {**self._columns(record_B), **features.teacher_columns(vectors_B, shape)}

    where = [teacher_vectors.local_path(self._teacher, file) for file in shards]
    offsets = [array.offset for array in stored]
    rows = sources.interleave_files((paths, where, offsets), open_file, *order)
    return rows.batch(_RECORDS).map(join).unbatch()

  def _columns(self, record_B: tf.Tensor) -> dict[str, tf.Tensor]:
    texts = tf.io.parse_example(record_B, _TEXTS)
    ids = features.language_columns(self._pair, tf.size(record_B))
    return {"inputs": texts["source"], "targets": texts["target"], **ids}


def find(config: str, data_dir: str | None) -> tuple[str, epath.Path, str]:
  """Returns the mixture's name, and the folder and the TFDS name of the dataset's last version.

  Args:
    config: Name of the recipe of the dataset.
    data_dir: See `vmsst.tasks.mixtures.opus`.

  Raises:
    InputError: there is no such dataset.
  """
  # The folder that seqio will read, with `t5x --tfds_data_dir` if given.
  chosen = seqio.utils.LazyTfdsLoader(f"opus_bitext/{config}:1.0.0", data_dir=data_dir).data_dir
  root = epath.Path(chosen or tfds.core.constants.DATA_DIR).expanduser()
  folder = root / "opus_bitext" / config
  versions = tfds.core.utils.version.list_all_versions(folder)
  if not versions:
    raise errors.InputError(
      f"no dataset opus_bitext/{config} in {root}; build it with `vmsst data build --recipe "
      f"{config} --output {root}`, or set OPUS_DATA_DIR to its folder; for your own files, add "
      "--gin_file=data/files.gin after the run file"
    )
  return (
    f"opus_{config}",
    folder / str(versions[-1]),
    f"opus_bitext/{config}:{versions[-1]}",
  )


def _languages(codes: Sequence[str] | None) -> frozenset[Language]:
  """Returns the languages of codes; all if there are no codes."""
  if codes is None:
    return frozenset(languages_lib.LANGUAGES)
  listed = [codes] if isinstance(codes, str) else codes
  return frozenset(languages_lib.language(code) for code in listed)


def language_pairs(
  folder: epath.Path, languages: Sequence[str] | None, pivots: Sequence[str] | None
) -> dict[tuple[Language, Language], dict[str, str]]:
  """Returns, by language pair, the names of the dataset's splits by their names in SeqIO.

  Args:
    folder: Folder of the dataset.
    languages: Codes of the languages to use; None: all.
    pivots: Codes of languages; pairs without one of them are left out. None: all pairs.

  Raises:
    InputError: the dataset is incomplete, or it has no pair of these languages.
  """
  used, required = _languages(languages), _languages(pivots)
  by_code = {readers.compact_code(language): language for language in languages_lib.LANGUAGES}
  try:
    info = tfds.builder_from_directory(folder).info
  except (OSError, ValueError, json_format.ParseError) as error:
    raise errors.InputError(
      f"{folder} is not a complete TFDS dataset ({error}); build it again"
    ) from None
  pairs: dict[tuple[Language, Language], dict[str, str]] = {}
  for name in sorted(info.splits):
    split, _, codes = name.partition("_")
    pair = [by_code[code] for code in codes.split("_") if code in by_code]
    if split not in SPLITS or len(pair) != 2:
      raise errors.InputError(f"{folder}: split {name} is not named like train_deu_eng")
    if used.issuperset(pair) and required.intersection(pair) and info.splits[name].num_examples:
      pairs.setdefault((pair[0], pair[1]), {})[split] = name
  if not pairs:
    raise errors.InputError(
      f"{folder} has no language pair of these languages; choose among "
      f"{', '.join(sorted(info.splits))}"
    )
  return pairs


def validation_reader(
  config: str,
  data_dir: str | None = None,
  *,
  languages: Sequence[str] | None = None,
  pivots: Sequence[str] | None = None,
) -> Callable[[str], dict[tuple[Language, Language], list[tuple[str, str]]]]:
  """Returns a function that reads the validation pairs of a corpus, by language pair.

  Language pairs without pairs of the corpus are left out. Arguments and errors are those of `opus`;
  the function raises InputError if no language pair is left.
  """
  _, folder, versioned = find(config, data_dir)
  splits_by_pair = language_pairs(folder, languages, pivots)

  def read(corpus: str) -> dict[tuple[Language, Language], list[tuple[str, str]]]:
    pairs: dict[tuple[Language, Language], list[tuple[str, str]]] = {}
    present = set()
    for pair, splits in splits_by_pair.items():
      if "validation" not in splits:
        continue
      paths = DatasetSource(versioned, data_dir, splits, pair).list_shards("validation")
      examples = tf.data.TFRecordDataset(paths)
      for record in examples.as_numpy_iterator():
        row = dataset_shards.texts(record)
        name, *sides = (row[key] for key in ("corpus", "source", "target"))
        present.add(name)
        if name == corpus:
          pairs.setdefault(pair, []).append((sides[0], sides[1]))
    if not pairs:
      raise errors.InputError(
        f"{folder}: no validation pairs of the corpus {corpus!r}; choose among "
        f"{', '.join(sorted(present)) or 'none'}, or build the dataset with validation pairs"
      )
    return pairs

  return read
