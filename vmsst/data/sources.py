"""SeqIO data sources of texts: strings, their language ids, and what else belongs to a row.

Files that fit in memory are read and checked once (`MemorySource`). Their order is a new
pseudo-random permutation of row numbers in every epoch: a full shuffle with a state of a few
numbers, so that checkpoints of the iterator are tiny and runs resume exactly. Larger files are
checked in Python, then streamed by TensorFlow (`StreamSource`), dozens of lines at a time.
`open_files` chooses one of them for bitext files.

No pipeline runs Python code with state, so that `tf.train.Checkpoint` can save its iterators.
"""

import functools
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import seqio
import tensorflow as tf
from absl import logging

from vmsst import errors
from vmsst.data import features, readers, teacher_vectors, vocabularies, word_splitting
from vmsst.data.readers import BitextFile, read_rows
from vmsst.io import storage
from vmsst.languages import Language

# Maximum bytes of text of a task in memory: about 600,000 pairs.
MEMORY_LIMIT = 64 << 20
# Maximum bytes of teacher vectors in memory per byte of this limit.
VECTOR_BYTES = 16
WHOLE = seqio.ShardInfo(index=0, num_shards=1)
"""The only shard of unsharded data."""
ROWS = 64
"""Rows per call of a function; up to as many are part of a checkpoint of an iterator."""
CHOICES = 1024
"""Choices of a dataset per call of a function."""

Columns = Mapping[str, np.ndarray]
"""Columns of rows by name; texts are objects (bytes), [N] or [N, K]."""


class TextSource(seqio.DataSource):
  """The base class of sources of texts, for `seqio_tasks.TextTask`.

  Attributes:
    split_languages: Languages whose texts are still to be split into words, by vocabularies that
      do; empty if they are split already.
    shuffle_buffer: Number of rows in the shuffle buffer of `stream`.
  """

  split_languages: Sequence[Language] = ()
  shuffle_buffer = 10_000

  def stream(
    self,
    split: str,
    *,
    shuffle: bool,
    seed: int | None,
    shard: seqio.ShardInfo,
    num_epochs: int | None,
  ) -> tf.data.Dataset:
    """Returns a shard's rows of epochs, perhaps shuffled in a buffer.

    Shards are files if there are enough of them, else every n-th row.
    """
    by_file = len(self.list_shards(split)) >= shard.num_shards
    rows = self.get_dataset(split, shuffle, seed, shard if by_file else WHOLE)
    if num_epochs != 1:
      rows = rows.repeat(num_epochs)
    if not by_file:  # of the repeated rows, so that a share of few rows is not empty
      rows = rows.shard(shard.num_shards, shard.index)
    return rows.shuffle(self.shuffle_buffer, seed=seed) if shuffle else rows


class MemorySource(TextSource):
  """Rows that are read once, on first use, and kept in memory; vocabularies do not split them.

  Args:
    splits: For each split, a function that reads its rows.
  """

  def __init__(self, splits: Mapping[str, Callable[[], Columns]]):
    super().__init__(splits=tuple(splits), performs_internal_shuffling=True)
    self._loaders = dict(splits)
    self._columns: dict[str, Columns] = {}
    self._lock = threading.Lock()

  @property
  def supports_arbitrary_sharding(self) -> bool:
    """True: shard i of n has rows i, i + n, i + 2n ... of the order of all epochs."""
    return True

  def list_shards(self, split: str) -> Sequence[str]:
    """Returns one shard, the split itself."""
    return [split]

  def columns(self, split: str) -> Columns:
    """Returns the rows of a split."""
    with self._lock:
      if split not in self._columns:
        self._columns[split] = self._loaders[split]()
      return self._columns[split]

  def num_input_examples(self, split: str) -> int:
    """Returns the number of rows of a split; reads them if needed."""
    return len(next(iter(self.columns(split).values())))

  def get_dataset(
    self,
    split: str = "train",
    shuffle: bool = True,
    seed: int | None = None,
    shard_info: seqio.ShardInfo | None = None,
    **unused,
  ) -> tf.data.Dataset:
    """Returns the rows in order, or in an order of the seed."""
    del unused
    shard = shard_info or WHOLE
    return self.stream(split, shuffle=shuffle, seed=seed, shard=shard, num_epochs=1)

  @tf.autograph.experimental.do_not_convert  # as in seqio_tasks.py
  def stream(
    self,
    split: str,
    *,
    shuffle: bool,
    seed: int | None,
    shard: seqio.ShardInfo,
    num_epochs: int | None,
  ) -> tf.data.Dataset:
    """Returns a shard's rows of epochs, each in another order of all rows; needs no buffer."""
    count = self.num_input_examples(split)
    with tf.device("cpu"):
      columns = {name: tf.constant(column) for name, column in self.columns(split).items()}
    row_seed = as_seed(seed) if shuffle else None
    end = tf.int64.max if num_epochs is None and count else count * (num_epochs or 0)

    def look_up(position_B: tf.Tensor) -> dict[str, tf.Tensor]:
      number_B = _row_number(position_B, count, row_seed)
      return {name: tf.gather(column, number_B) for name, column in columns.items()}

    positions = tf.data.Dataset.range(shard.index, end, shard.num_shards)
    return positions.batch(ROWS).map(look_up).unbatch()


def _row_number(position_B: tf.Tensor, count: int, seed: int | None) -> tf.Tensor:
  """Returns the rows at positions of a stream of epochs of `count` rows.

  Each epoch has its own order; without a seed, all have the order of the rows.
  """
  number_B = position_B % count
  if seed is None:
    return number_B
  epoch_B = position_B // count
  zero_B = tf.zeros_like(epoch_B)
  seed_B3 = tf.stack([zero_B + seed, epoch_B, zero_B + count], axis=-1)
  # The public tf.random.experimental.index_shuffle does not support a seed for each index.
  return tf.raw_ops.RandomIndexShuffle(
    index=number_B, seed=seed_B3, max_index=tf.constant(count - 1, tf.int64), rounds=4
  )


def as_seed(seed: int | None) -> int:
  """Returns a seed, or a random one in place of None."""
  return int(np.random.default_rng().integers(1 << 31)) if seed is None else int(seed)


class StreamSource(TextSource):
  """Moses and TSV files of one language pair that are too large for memory.

  Python reads every file once, to check it and to count its pairs, before TensorFlow streams it.
  With `shuffle`, lines of all files are mixed; the task shuffles them further in its buffer.

  Args:
    splits: For each split, its files.
    negatives: Number K of hard negatives to read for each pair: strings `negatives` [K].
    teacher: Folder of a teacher's vectors of the files (see `teacher_vectors`), or None.
  """

  def __init__(
    self,
    splits: Mapping[str, Sequence[BitextFile]],
    *,
    negatives: int = 0,
    teacher: str | None = None,
  ):
    super().__init__(splits=tuple(splits))
    self._files = {split: tuple(files) for split, files in splits.items()}
    first = next(file for files in self._files.values() for file in files)
    self.split_languages = (first.source, first.target)
    self._negatives = negatives
    self._teacher = teacher
    self._counts: dict[BitextFile, int] = {}

  @property
  def supports_arbitrary_sharding(self) -> bool:
    """False: the task shards the rows."""
    return False

  def list_shards(self, split: str) -> Sequence[str]:
    """Returns one shard, the split itself."""
    return [split]

  def num_input_examples(self, split: str) -> int:
    """Returns the number of pairs in the files, before filtering; checks the files if needed."""
    return sum(self._count(file) for file in self._files[split])

  def _count(self, file: BitextFile) -> int:
    if file not in self._counts:
      count = sum(1 for _ in read_rows(file, self._negatives))
      if self._teacher:
        teacher_vectors.check_count(self._teacher, file, count)
      logging.info("%s: %d pairs, streamed", file, count)
      self._counts[file] = count
    return self._counts[file]

  def get_dataset(
    self,
    split: str = "train",
    shuffle: bool = True,
    seed: int | None = None,
    shard_info: seqio.ShardInfo | None = None,
    **unused,
  ) -> tf.data.Dataset:
    """Returns all pairs, in the order of the files or mixed; there is one shard."""
    files = self._files[split]
    counts = [self._count(file) for file in files]
    datasets = [self._read(file) for file in files]
    if shuffle and len(files) > 1:
      return tf.data.Dataset.choose_from_datasets(datasets, _choices(counts, as_seed(seed)))
    whole = datasets[0]
    for dataset in datasets[1:]:
      whole = whole.concatenate(dataset)
    return whole

  def _read(self, file: BitextFile) -> tf.data.Dataset:
    lines = _lines(file)
    if not self._teacher:
      return lines.batch(ROWS).map(lambda *line: self._columns(file, line)).unbatch()
    array = teacher_vectors.open_vectors(self._teacher, file)
    records = tf.data.FixedLengthRecordDataset(
      teacher_vectors.local_path(self._teacher, file), array[0].nbytes, header_bytes=array.offset
    )

    def join(line_B: tuple[tf.Tensor, ...], record_B: tf.Tensor) -> dict[str, tf.Tensor]:
      vectors = features.teacher_columns(record_B, array.shape[1:])
      return {**self._columns(file, line_B), **vectors}

    return tf.data.Dataset.zip((lines, records)).batch(ROWS).map(join).unbatch()

  def _columns(self, file: BitextFile, line_B: Sequence[tf.Tensor]) -> dict[str, tf.Tensor]:
    count = 2 + self._negatives
    if file.format == "moses":
      source, target, *wrong = line_B
    else:
      column_BK = tf.strings.split(line_B[0], "\t")
      with tf.control_dependencies(
        [tf.debugging.assert_greater_equal(column_BK.row_lengths(), np.int64(count))]
      ):
        first_BK = column_BK[:, :count].to_tensor(shape=[None, count])
        source, target, *wrong = tf.unstack(first_BK, axis=1)
    ids = features.language_columns((file.source, file.target), tf.size(source))
    columns = {"inputs": source, "targets": target, **ids}
    return {**columns, "negatives": tf.stack(wrong, axis=1)} if wrong else columns


def _choices(counts: Sequence[int], seed: int) -> tf.data.Dataset:
  """Returns every number i `counts[i]` times, in a pseudo-random order.

  This replaces `sample_from_datasets`, which in TensorFlow 2.21 sometimes hangs after a checkpoint
  of a repeated stream.
  """
  ends, total = np.cumsum(counts), int(np.sum(counts))

  def choose(position_B: tf.Tensor) -> tf.Tensor:
    place_B = _row_number(position_B, total, seed)
    return tf.searchsorted(ends, place_B, side="right", out_type=tf.int64)

  return tf.data.Dataset.range(total).batch(CHOICES).map(choose).unbatch()


def _lines(file: BitextFile) -> tf.data.Dataset:
  """Returns the lines of a file, or of the two files of a Moses pair, as tuples."""
  if file.format not in ("moses", "tsv"):
    raise errors.InputError(
      f"{file}: only Moses and TSV files can be streamed; convert it, or raise memory_limit"
    )
  datasets = []
  for path in file.paths:
    if storage.is_url(path) and not path.startswith("gs://"):
      raise errors.InputError(
        f"{path}: TensorFlow streams files of this machine and of gs:// only; copy it, build a "
        "dataset (vmsst data build), or raise memory_limit"
      )
    lines = tf.data.TextLineDataset(path, compression_type="GZIP" if path.endswith(".gz") else "")
    first = lines.take(1).map(lambda line: tf.strings.regex_replace(line, "^\ufeff", ""))
    datasets.append(first.concatenate(lines.skip(1)))
  return tf.data.Dataset.zip(tuple(datasets))


def interleave_files(
  columns: Sequence[Sequence[Any]],
  open_file: Callable[..., tf.data.Dataset],
  shuffle: bool,
  seed: int | None,
  shard: seqio.ShardInfo,
) -> tf.data.Dataset:
  """Returns the rows of a shard's files, sixteen files at a time; may shuffle files.

  Args:
    columns: For each argument of `open_file`, its value for every file.
    open_file: Returns the rows of a file.
    shuffle: Whether to shuffle files.
    seed: Seed of their order.
    shard: Selects files.
  """
  selected = tuple(list(column)[shard.index :: shard.num_shards] for column in columns)
  files = tf.data.Dataset.from_tensor_slices(selected)
  if shuffle:
    files = files.shuffle(len(selected[0]), seed=seed)
  return files.interleave(
    open_file,
    cycle_length=16,
    block_length=16,
    num_parallel_calls=tf.data.AUTOTUNE,
    deterministic=True,
  )


def open_files(
  name: str,
  splits: Mapping[str, Sequence[readers.BitextFile]],
  vocabulary: vocabularies.Vocabulary,
  max_length: int | None,
  negatives: int,
  teacher: str | None,
  memory_limit: int,
) -> TextSource:
  """Returns the source of the files of a language pair, in memory or streamed.

  Args:
    name: Name of the task, for messages.
    splits: For each split, its files.
    vocabulary: Will tokenize the texts.
    max_length: Pairs with a side of more tokens will be dropped; None: no limit.
    negatives: Number of hard negatives of each pair.
    teacher: Folder of a teacher's vectors of the files, or None.
    memory_limit: Files with more bytes of text than this are streamed.
  """
  if not all(_fits(bitexts, memory_limit, teacher) for bitexts in splits.values()):
    return StreamSource(splits, negatives=negatives, teacher=teacher)
  return MemorySource(
    {
      split: functools.partial(
        _read_files,
        f"{name} {split}",
        bitexts,
        vocabulary,
        max_length,
        negatives=negatives,
        teacher=teacher,
      )
      for split, bitexts in splits.items()
    }
  )


def _fits(bitexts: Sequence[readers.BitextFile], memory_limit: int, teacher: str | None) -> bool:
  """Returns whether to keep files in memory; always for formats that cannot be streamed."""
  streamable = all(bitext.format in ("moses", "tsv") for bitext in bitexts)
  text_bytes = sum(bitext.text_bytes for bitext in bitexts)
  vector_bytes = 0
  if teacher:
    vector_bytes = sum(teacher_vectors.open_vectors(teacher, bitext).nbytes for bitext in bitexts)
  return not streamable or (
    text_bytes <= memory_limit and vector_bytes <= VECTOR_BYTES * memory_limit
  )


def _read_files(
  name: str,
  bitexts: Sequence[readers.BitextFile],
  vocabulary: vocabularies.Vocabulary,
  max_length: int | None,
  *,
  negatives: int,
  teacher: str | None,
) -> Columns:
  def rows() -> Iterator[tuple[str, ...]]:
    for bitext in bitexts:
      count = 0
      for row in readers.read_rows(bitext, negatives):
        count += 1
        yield row
      if teacher:
        teacher_vectors.check_count(teacher, bitext, count)

  pair = bitexts[0].source, bitexts[0].target
  columns, numbers_N = pair_columns(name, rows(), pair, vocabulary, max_length)
  if not teacher:
    return columns
  vectors = [teacher_vectors.open_vectors(teacher, bitext) for bitext in bitexts]
  sides = enumerate(features.TEACHER_SIDES)
  return columns | {x: teacher_vectors.take(vectors, numbers_N, side) for side, x in sides}


def pair_columns(
  name: str,
  rows: Iterable[Sequence[str]],
  pair: tuple[Language, Language],
  vocabulary: vocabularies.Vocabulary,
  max_length: int | None,
) -> tuple[dict[str, np.ndarray], np.ndarray]:
  """Returns the columns of the rows that have both texts, split into words, and their numbers.

  Args:
    name: Of the task and split, for messages.
    rows: Source, target and hard negatives of each pair.
    pair: The languages of sources and of all other texts.
    vocabulary: Will tokenize the texts.
    max_length: Rows with a side of more tokens will be dropped.

  Raises:
    InputError: no row will be kept.
  """
  kept, numbers, count = [], [], 0
  for count, row in enumerate(rows, 1):
    if row[0].strip() and row[1].strip():
      kept.append(row)
      numbers.append(count - 1)
  logging.info("%s: %d pairs, and %d with an empty side", name, len(kept), count - len(kept))
  if not any(_fits_length(row, pair, vocabulary, max_length) for row in kept):
    raise errors.InputError(
      f"{name}: no pair is left: of {count} pairs, {count - len(kept)} have an empty side, and "
      f"{len(kept)} an over-long one; check the files and max_length ({max_length})"
    )
  texts = [list(column) for column in zip(*kept, strict=True)]
  if getattr(vocabulary, "pretokenize", False):
    source, target = pair
    texts = [
      word_splitting.split_words(column, target if number else source)
      for number, column in enumerate(texts)
    ]
  text_KN = np.array([[text.encode() for text in column] for column in texts], object)
  columns = {"inputs": text_KN[0], "targets": text_KN[1]}
  if len(texts) > 2:
    columns["negatives"] = text_KN[2:].T
  for side, language in zip(features.SIDES.values(), pair, strict=True):
    columns[side] = np.full([len(kept), 1], language.index, np.int32)
  return columns, np.array(numbers, np.int64)


def _fits_length(
  row: Sequence[str],
  pair: tuple[Language, Language],
  vocabulary: vocabularies.Vocabulary,
  max_length: int | None,
) -> bool:
  """Returns whether both sides of a pair have tokens, and at most `max_length`."""
  sides = [
    vocabulary.tokenize([text], language)[0] for text, language in zip(row, pair, strict=False)
  ]
  return all(0 < len(ids) <= (max_length or len(ids)) for ids in sides)
