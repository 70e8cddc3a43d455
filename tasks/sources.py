"""SeqIO data sources of bitext files and of rows in memory.

Files that fit in memory are read, checked and tokenized once (`InMemorySource`). Their order is a
new pseudo-random permutation of row numbers in every epoch: a full shuffle with a state of a few
numbers, so that checkpoints of the iterator are tiny and runs resume exactly. Larger files are
checked in Python, then streamed by TensorFlow (`StreamSource`), dozens of lines at a time: see
`streamed_tasks`.

No pipeline runs Python code with state, so that `tf.train.Checkpoint` can save its iterators.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import seqio
import tensorflow as tf
from absl import logging

from vmsst import errors
from vmsst.bitext.readers import BitextFile, read_rows
from vmsst.bitext.tokenized_pairs import SIDES, TEACHER_SIDES, Ragged, Rows
from vmsst.files import storage
from vmsst.tasks import preprocessors, streamed_tasks
from vmsst.vectors import bitext_vectors

# Maximum bytes of text of a task in memory: about 600,000 pairs, 10 s to tokenize.
MEMORY_LIMIT = 64 << 20
# Maximum bytes of teacher vectors in memory per byte of this limit.
VECTOR_BYTES = 16
_ROWS = 64  # Rows per call of a function; up to as many are part of a checkpoint of an iterator.
_CHOICES = 1024


class InMemorySource(seqio.DataSource):
  """Rows that are made once, on first use, and kept in memory.

  Args:
    splits: For each split, a function that makes its rows. Ragged columns are texts without EOS
      token, which `get_dataset` appends.
    eos_id: The EOS token; None if the vocabulary has none.
  """

  def __init__(self, splits: Mapping[str, Callable[[], Rows]], *, eos_id: int | None):
    super().__init__(splits=tuple(splits), performs_internal_shuffling=True)
    self._loaders = dict(splits)
    self.eos_id = eos_id
    self._rows: dict[str, Rows] = {}
    self._lock = threading.Lock()

  @property
  def supports_arbitrary_sharding(self) -> bool:
    """True: shard i of n has rows i, i + n, i + 2n ... of the order of all epochs."""
    return True

  def list_shards(self, split: str) -> Sequence[str]:
    """Returns one shard, the split itself."""
    return [split]

  def rows(self, split: str) -> Rows:
    """Returns the rows of a split."""
    with self._lock:
      if split not in self._rows:
        self._rows[split] = self._loaders[split]()
      return self._rows[split]

  def num_input_examples(self, split: str) -> int:
    """Returns the number of rows of a split; makes them if needed."""
    return len(next(iter(self.rows(split).values())))

  @tf.autograph.experimental.do_not_convert  # as in streamed_tasks.py
  def get_dataset(
    self,
    split: str = "train",
    shuffle: bool = True,
    seed: int | None = None,
    shard_info: seqio.ShardInfo | None = None,
    *,
    sequence_length: Mapping[str, int] | None = None,
    use_cached: bool = False,
    num_epochs: int | None = 1,
  ) -> tf.data.Dataset:
    """Returns the rows in order, or in an order of `seed` that changes with every epoch.

    Texts end in the EOS token, also if `sequence_length` cuts them.
    """
    del use_cached
    shard = shard_info or streamed_tasks.WHOLE
    count = self.num_input_examples(split)
    columns, lengths = self.rows(split), sequence_length or {}
    names = preprocessors.wanted(columns, sequence_length)
    look_up = _looker({name: columns[name] for name in names}, self.eos_id, lengths)
    row_seed = _seed(seed) if shuffle else None
    end = tf.int64.max if num_epochs is None and count else count * (num_epochs or 0)
    rows = (
      tf.data.Dataset.range(shard.index, end, shard.num_shards)
      .batch(_ROWS)
      .map(lambda position_B: look_up(_row_number(position_B, count, row_seed)))
      .unbatch()
    )
    open_texts = [name for name in names if name in SIDES and not lengths.get(name)]
    if not open_texts:
      return rows
    return rows.map(
      lambda row: {**row, **{name: streamed_tasks.stripped(row[name]) for name in open_texts}}
    )


class InMemoryTask(seqio.Task):
  """A seqio task of an `InMemorySource`.

  The source tokenizes and trims rows and appends the EOS token, so that there are no further steps.
  seqio's cache of small sources in memory would freeze the order of the first epoch and be part of
  every checkpoint of the iterator.
  """

  def get_dataset(
    self,
    sequence_length: Mapping[str, int] | None = None,
    split: str = "train",
    use_cached: bool = False,
    shuffle: bool = True,
    shuffle_buffer_size: int | None = None,
    seed: int | None = None,
    shard_info: seqio.ShardInfo | None = None,
    num_epochs: int | None = 1,
    trim_output_features: bool = True,
    try_in_mem_cache: bool = True,
  ) -> tf.data.Dataset:
    """Returns rows as seqio.Task; ignores the arguments for caches and buffers."""
    del use_cached, shuffle_buffer_size, try_in_mem_cache
    return self.source.get_dataset(
      split,
      shuffle,
      seed,
      shard_info,
      sequence_length=sequence_length if trim_output_features else None,
      num_epochs=num_epochs,
    )


class PairMixture(seqio.Mixture):
  """A seqio mixture that samples whole rows with `streamed_tasks.mixed`."""

  @tf.autograph.experimental.do_not_convert  # as in streamed_tasks.py
  def get_dataset(
    self,
    sequence_length: Mapping[str, int] | None = None,
    split: str = "train",
    use_cached: bool = False,
    shuffle: bool = True,
    seed: int | None = None,
    shard_info: seqio.ShardInfo | None = None,
    num_epochs: int | None = None,
    trim_output_features: bool = True,
    **options,
  ) -> tf.data.Dataset:
    """Returns rows as seqio.Mixture; all shards take the tasks in the same order.

    With `num_epochs`, it ends with the task that ends first, and the other tasks are not read to
    their ends. To read every row, get the dataset of each task.
    """
    arguments: dict[str, Any] = {
      "split": split,
      "use_cached": use_cached,
      "shuffle": shuffle,
      "seed": seed,
      "shard_info": shard_info,
      "num_epochs": num_epochs,
      "trim_output_features": trim_output_features,
    }
    if any(options.get(name) for name in ("copy_pretokenized", "passthrough_features")):
      return super().get_dataset(sequence_length, **arguments, **options)
    self._check_compatible_features()
    tasks = [task for task in self.tasks if split in task.splits]
    datasets = [task.get_dataset(sequence_length, **arguments) for task in tasks]
    mixing_seed = _seed(seed) if seed is not None or shuffle else 42
    return streamed_tasks.mixed(datasets, [self.get_rate(task) for task in tasks], mixing_seed)


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


def _seed(seed: int | None) -> int:
  return int(np.random.default_rng().integers(1 << 31)) if seed is None else int(seed)


def _looker(
  rows: Rows, eos_id: int | None, lengths: Mapping[str, Any]
) -> Callable[[tf.Tensor], dict[str, tf.Tensor]]:
  """Returns a function from numbers of rows to the rows, with EOS tokens, cut and padded.

  Texts are padded to their length in `lengths`, without one to that of the longest.
  """
  with tf.device("cpu"):
    dense, ragged = {}, {}
    for name, column in rows.items():
      if not isinstance(column, Ragged):
        dense[name] = tf.constant(column)
        continue
      length = lengths.get(name)
      spans = _spans(column, eos_id, length)
      longest = int(spans[..., 1].max(initial=0)) + (eos_id is not None)
      width = max(longest, 1) if length is None else int(np.ravel(length)[-1])
      # A value to look up if all texts are empty.
      values = column.values if len(column.values) else np.zeros(1, np.int32)
      ragged[name] = tf.constant(values), tf.constant(spans), width

  def look_up(number_B: tf.Tensor) -> dict[str, tf.Tensor]:
    found = {name: tf.gather(column, number_B) for name, column in dense.items()}
    for name, (values, spans, width) in ragged.items():
      found[name] = _padded_texts(values, tf.gather(spans, number_B), width, eos_id)
    return found

  return look_up


def _padded_texts(values: tf.Tensor, spans: tf.Tensor, width: int, eos_id: int | None) -> tf.Tensor:
  """Returns the texts [..., width] at spans [B, 2] or [..., K, 2] with EOS tokens; see `Ragged`."""
  place_T = tf.range(width, dtype=tf.int64)
  size_1 = spans[..., 1:]
  index_T = tf.minimum(spans[..., :1] + place_T, tf.size(values, tf.int64) - 1)
  text_T = tf.where(place_T < size_1, tf.gather(values, index_T), 0)
  if eos_id is None:
    return text_T
  return tf.where(place_T == size_1, eos_id, text_T)


def _spans(column: Ragged, eos_id: int | None, length: Any) -> np.ndarray:
  """Returns start and size of each text, cut to fit with an EOS token: int64 [N, 2] or [N, K, 2].

  Args:
    column: The texts.
    eos_id: The EOS token.
    length: Maximum number of tokens of a text; for [N, K] also, before it, the number of texts of a
      row. None: no limit.
  """
  begins = np.concatenate([[0], column.ends.ravel()[:-1]]).reshape(column.ends.shape)
  sizes = column.ends - begins
  if length is not None:
    sizes = np.minimum(sizes, np.ravel(length)[-1] - (eos_id is not None))
  if column.ends.ndim == 2:
    sizes = np.where(sizes > 0, sizes, -1)  # No EOS token is written at -1.
    if length is not None:
      count = int(length[0])
      more = [(0, 0), (0, max(count - sizes.shape[1], 0))]
      begins = np.pad(begins[:, :count], more)
      sizes = np.pad(sizes[:, :count], more, constant_values=-1)
  return np.stack([begins, sizes], axis=-1)


class StreamSource(seqio.DataSource):
  """Moses and TSV files that are too large for memory, as strings and language ids.

  Python reads every file once, to check it and to count its pairs, before TensorFlow streams it.
  With `shuffle`, lines of all files are mixed; the task shuffles them further in its buffer.

  Args:
    splits: For each split, its files.
    negatives: Number K of hard negatives to read for each pair: strings `negatives` [K].
    teacher: Folder of a teacher's vectors of the files (see `bitext_vectors`), or None.
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
        bitext_vectors.check_count(self._teacher, file, count)
      logging.info("%s: %d pairs, streamed; unfit ones are dropped without a count", file, count)
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
    datasets = [self._stream(file) for file in files]
    if shuffle and len(files) > 1:
      return tf.data.Dataset.choose_from_datasets(datasets, _choices(counts, _seed(seed)))
    whole = datasets[0]
    for dataset in datasets[1:]:
      whole = whole.concatenate(dataset)
    return whole

  def _stream(self, file: BitextFile) -> tf.data.Dataset:
    rows = _stream(file, self._negatives)
    if not self._teacher:
      return rows
    array = bitext_vectors.open_vectors(self._teacher, file)
    shape = array.shape[1:]
    records = tf.data.FixedLengthRecordDataset(
      bitext_vectors.local_path(self._teacher, file), array[0].nbytes, header_bytes=array.offset
    )

    def join(columns: Mapping[str, tf.Tensor], record_B: tf.Tensor) -> dict[str, tf.Tensor]:
      vector_B2S = tf.reshape(tf.io.decode_raw(record_B, tf.float32), [-1, *shape])
      sides = tf.unstack(vector_B2S, axis=1)
      return {**columns, **dict(zip(TEACHER_SIDES, sides, strict=True))}

    return tf.data.Dataset.zip((rows, records)).batch(_ROWS).map(join).unbatch()


def _choices(counts: Sequence[int], seed: int) -> tf.data.Dataset:
  """Returns every number i `counts[i]` times, in a pseudo-random order.

  This replaces `sample_from_datasets`, which in TensorFlow 2.21 sometimes hangs after a checkpoint
  of a repeated stream.
  """
  ends, total = np.cumsum(counts), int(np.sum(counts))

  def choose(position_B: tf.Tensor) -> tf.Tensor:
    place_B = _row_number(position_B, total, seed)
    return tf.searchsorted(ends, place_B, side="right", out_type=tf.int64)

  return tf.data.Dataset.range(total).batch(_CHOICES).map(choose).unbatch()


def _stream(file: BitextFile, negatives: int) -> tf.data.Dataset:
  if file.format not in ("moses", "tsv"):
    raise errors.InputError(
      f"{file}: only Moses and TSV files can be streamed; convert it, or raise memory_limit"
    )
  for path in file.paths:
    if storage.is_url(path) and not path.startswith("gs://"):
      raise errors.InputError(
        f"{path}: TensorFlow streams files of this machine and of gs:// only; copy it, build a "
        "dataset (vmsst data build), or raise memory_limit"
      )
  lines = tf.data.Dataset.zip(tuple(_lines(path) for path in file.paths)).batch(_ROWS)

  def rows(*line_B: tf.Tensor) -> dict[str, tf.Tensor]:
    columns = line_B if file.format == "moses" else _columns(line_B[0], 2 + negatives)
    source, target, *wrong = columns
    ids = preprocessors.language_columns((file.source, file.target), tf.size(source))
    found = {"inputs": source, "targets": target, **ids}
    return {**found, "negatives": tf.stack(wrong, axis=1)} if wrong else found

  return lines.map(rows).unbatch()


def _columns(line_B: tf.Tensor, count: int) -> tuple[tf.Tensor, ...]:
  """Returns the first columns of many lines."""
  column_BK = tf.strings.split(line_B, "\t")
  with tf.control_dependencies(
    [tf.debugging.assert_greater_equal(column_BK.row_lengths(), np.int64(count))]
  ):
    return tuple(tf.unstack(column_BK[:, :count].to_tensor(shape=[None, count]), axis=1))


def _lines(path: str) -> tf.data.Dataset:
  lines = tf.data.TextLineDataset(path, compression_type="GZIP" if path.endswith(".gz") else "")
  first = lines.take(1).map(lambda line: tf.strings.regex_replace(line, "^\ufeff", ""))
  return first.concatenate(lines.skip(1))
