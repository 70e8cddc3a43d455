"""SeqIO tasks and mixtures of pairs that are tokenized while they are read, many at a time.

In a TensorFlow pipeline, the overhead of a stage per row exceeds its work. Therefore one function
parses, tokenizes, filters, cuts and pads dozens of rows at a time; only shuffling and mixing, which
TensorFlow does without calling a function, work on single rows. Nothing here has state in Python,
so that `tf.train.Checkpoint` can save the iterators.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import seqio
import tensorflow as tf

from vmsst import errors
from vmsst.bitext.tokenized_pairs import SIDES
from vmsst.languages import Language
from vmsst.tasks import preprocessors, seqio_vocabulary
from vmsst.text import vocabularies

WHOLE = seqio.ShardInfo(index=0, num_shards=1)
"""The only shard of unsharded data."""
_ROWS = 64  # Rows per call of a function; for splitting words, see `preprocessors.SPLIT_ROWS`.
_CHOICES = 1024


class StreamedTask(seqio.Task):
  """A seqio task whose source yields strings `inputs` and `targets` and language ids.

  It shuffles strings, which takes the least memory, then does everything else in one step. Rows are
  padded to the requested lengths.

  Args:
    name: Name of the task.
    source: Yields the pairs; with negatives also strings `negatives` [K], with a teacher also the
      vectors `teacher_inputs` and `teacher_targets`.
    output_features: The features.
    vocabulary: Tokenizes all strings.
    pair: The languages of all pairs.
    max_length: Pairs with a side of more tokens are dropped; None: no limit. Pairs with a side of
      no tokens are always dropped.
    shuffle_buffer_size: Number of pairs in the shuffle buffer.
  """

  def __init__(
    self,
    name: str,
    source: seqio.DataSource,
    output_features: Mapping[str, seqio.Feature],
    *,
    vocabulary: vocabularies.Vocabulary,
    pair: Sequence[Language],
    max_length: int | None,
    shuffle_buffer_size: int,
  ):
    super().__init__(name, source, output_features, shuffle_buffer_size=shuffle_buffer_size)
    self._vocabulary = vocabulary
    self._pair = tuple(pair)
    self._max_length = max_length

  # AutoGraph would translate the source code of every function that `map` reaches, which takes
  # longer than tracing them; none of them branches on tensors.
  @tf.autograph.experimental.do_not_convert
  def get_dataset(
    self,
    sequence_length: Mapping[str, Any] | None = None,
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
    """Returns rows as seqio.Task, padded to given lengths, and without seqio's cache in memory.

    That cache would be part of every checkpoint of the iterator. Features that not all data has
    (`preprocessors.EXTRA_FEATURES`) are included if their length is given.

    Raises:
      InputError: a cache is asked for, or the word splitter of a language is not installed.
    """
    del try_in_mem_cache
    for language in self._pair:
      self._vocabulary.tokenize([""], language)  # raises if its word splitter is not installed
    if use_cached:
      raise errors.InputError(
        f"task {self.name} cannot be cached: its pairs are tokenized while they are read; set "
        "USE_CACHED_TASKS = False"
      )
    shard = shard_info or WHOLE
    by_file = len(self.source.list_shards(split)) >= shard.num_shards
    rows = self.source.get_dataset(split, shuffle, seed, shard if by_file else WHOLE)
    if num_epochs != 1:
      rows = rows.repeat(num_epochs)
    if not by_file:  # of the repeated rows, so that a share of few rows is not empty
      rows = rows.shard(shard.num_shards, shard.index)
    if shuffle:
      rows = rows.shuffle(shuffle_buffer_size or self._shuffle_buffer_size, seed=seed)
    names = preprocessors.wanted(
      [x for x in self.output_features if x in rows.element_spec], sequence_length
    )
    lengths = {
      name: (sequence_length or {}).get(name) if trim_output_features else None for name in names
    }
    splits = getattr(self._vocabulary, "pretokenize", False)
    rows = rows.batch(preprocessors.SPLIT_ROWS if splits else _ROWS)
    rows = rows.map(lambda columns: self._finished(columns, lengths), tf.data.AUTOTUNE).unbatch()
    open_sides = [side for side in SIDES if not lengths[side]]
    if open_sides:
      rows = rows.map(lambda row: {**row, **{side: stripped(row[side]) for side in open_sides}})
    return rows.prefetch(tf.data.AUTOTUNE)

  def _finished(
    self, columns: Mapping[str, tf.Tensor], lengths: Mapping[str, Any]
  ) -> dict[str, tf.Tensor]:
    """Returns the rows of a batch that fit, with the features in `lengths`.

    Args:
      columns: Strings of both sides, and the other columns of the source.
      lengths: Maximum length of each feature to return; None: no limit.
    """
    if getattr(self._vocabulary, "pretokenize", False):
      columns = preprocessors.split_columns(columns)
    encoder, eos_id = seqio_vocabulary.SeqioVocabulary(self._vocabulary), self._vocabulary.eos_id
    found = {name: columns[name] for name in lengths}
    keep_B = tf.constant(True)
    for side in SIDES:
      ids_BT = encoder.encode_rows(columns[side]).to_tensor()
      size_B = tf.math.count_nonzero(ids_BT, axis=1, dtype=tf.int32)
      fits_B = size_B > 0
      if self._max_length is not None:
        fits_B &= size_B <= self._max_length
      keep_B &= fits_B
      found[side] = _ended(ids_BT, size_B, eos_id, lengths[side])
    if "negatives" in found:
      text_BK, length = found["negatives"], lengths["negatives"]
      ids_MT = encoder.encode_rows(tf.reshape(text_BK, [-1])).to_tensor()
      size_M = tf.math.count_nonzero(ids_MT, axis=1, dtype=tf.int32)
      # A missing text has no EOS token.
      ids_MT = _ended(ids_MT, tf.where(size_M > 0, size_M, -1), eos_id, length and length[1])
      ids_BKT = tf.reshape(ids_MT, [-1, text_BK.shape[1], tf.shape(ids_MT)[1]])
      found["negatives"] = ids_BKT
      if length:
        ids_BKT = ids_BKT[:, : length[0]]
        missing = length[0] - ids_BKT.shape[1]
        ids_BKT = tf.pad(ids_BKT, [[0, 0], [0, missing], [0, 0]])
        found["negatives"] = tf.ensure_shape(ids_BKT, [None, *length])
    return {name: tf.boolean_mask(column, keep_B) for name, column in found.items()}


def _ended(
  ids_BT: tf.Tensor, size_B: tf.Tensor, eos_id: int | None, length: int | None
) -> tf.Tensor:
  """Returns texts with EOS tokens, cut and padded to `length` (None: the longest); none at -1."""
  if length is None or length == 0:
    width = tf.shape(ids_BT)[1] + (eos_id is not None)
  else:
    width = tf.constant(length)
    size_B = tf.minimum(size_B, length - (eos_id is not None))
  place_T = tf.range(width)[None]
  ids_BT = tf.pad(ids_BT[:, :width], [[0, 0], [0, tf.maximum(width - tf.shape(ids_BT)[1], 0)]])
  ids_BT = tf.where(place_T < size_B[:, None], ids_BT, 0)
  if eos_id is not None:
    ids_BT = tf.where(place_T == size_B[:, None], eos_id, ids_BT)
  return tf.ensure_shape(ids_BT, [None, length or None])


def stripped(ids_T: tf.Tensor) -> tf.Tensor:
  """Returns the tokens of a text without its padding."""
  return ids_T[: tf.math.count_nonzero(ids_T, dtype=tf.int32)]


def read_records(
  paths: Sequence[str], shuffle: bool, seed: int | None, shard: seqio.ShardInfo
) -> tf.data.Dataset:
  """Returns the records of a shard's files, read as by `interleave_files`."""
  return interleave_files((paths,), tf.data.TFRecordDataset, shuffle, seed, shard)


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
  own = tuple(list(column)[shard.index :: shard.num_shards] for column in columns)
  files = tf.data.Dataset.from_tensor_slices(own)
  if shuffle:
    files = files.shuffle(len(own[0]), seed=seed)
  return files.interleave(
    open_file,
    cycle_length=16,
    block_length=16,
    num_parallel_calls=tf.data.AUTOTUNE,
    deterministic=True,
  )


def mixed(
  datasets: Sequence[tf.data.Dataset], rates: Sequence[float], seed: int
) -> tf.data.Dataset:
  """Returns rows of datasets, sampled at these rates; ends with the first dataset that ends.

  This replaces `sample_from_datasets`, which takes longer per sample than tokenizing a short pair,
  and which in TensorFlow 2.21 sometimes hangs after a checkpoint of a repeated stream.
  """
  if len(datasets) == 1:
    return datasets[0]
  share = np.cumsum(np.asarray(rates, np.float64))
  bounds = tf.constant(share[:-1] / share[-1])

  def choose(number: tf.Tensor) -> tf.Tensor:
    seeds = tf.stack([tf.constant(seed, tf.int64), number])
    sampled = tf.random.stateless_uniform([_CHOICES], seeds, dtype=tf.float64)
    return tf.searchsorted(bounds, sampled, side="right", out_type=tf.int64)

  choices = tf.data.Dataset.range(tf.int64.max).map(choose).unbatch()
  return tf.data.Dataset.choose_from_datasets(datasets, choices, stop_on_empty_dataset=True)
