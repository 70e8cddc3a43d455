"""Training batches, the same on any number of hosts: a replacement of T5X's `get_dataset`."""

import importlib
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
import seqio
import tensorflow as tf

from vmsst import errors, languages
from vmsst.bitext.tokenized_pairs import SIDES


def get_global_batches(
  cfg: Any,
  shard_id: int,
  num_shards: int,
  feature_converter_cls: Callable[..., seqio.FeatureConverter],
  num_epochs: int | None = None,
  *,
  group_by_length: bool = False,
  one_language_pair: bool = False,
  boundaries: Sequence[int] = (8, 12, 16, 24, 32, 48, 64, 96),
  group_batches: int = 16,
) -> tf.data.Dataset:
  """Returns training batches; bind to `train_script.train.get_dataset_fn`.

  As `get_dataset` of T5X, with random batches by default, but the sequence of batches depends on
  the seed, not on the number of hosts: each host reads all data and takes its rows of every batch.

  Batches of sentences of similar length have less padding. With in-batch negatives, they change the
  loss: the negatives have the length of the translation.

  The dataset has the attributes `whole_batches`, the dataset of global batches, and
  `rows_of_whole`, the slice of their rows that it contains. The bundled runtime reads them, so that
  all hosts cut the same padding and runs can resume on any number of hosts.

  Args:
    cfg: A `DatasetConfig` of T5X, or an object with its fields.
    shard_id: Number of this host's share.
    num_shards: Number of shares.
    feature_converter_cls: The model's feature converter.
    num_epochs: Number of epochs; None: endless. A mixture ends with the task that ends first.
    group_by_length: Whether the sentences of a batch have similar lengths. Sorts the rows of
      `group_batches` batches by the length class of the longer side (see `boundaries`) and cuts
      them into batches; with `cfg.shuffle`, in random order.
    one_language_pair: Whether all rows of a batch have the same two languages, in either direction;
      see `group_by_language_pair`. With `group_by_length`, a batch has one length class too.
    boundaries: Maximum length of each length class, ascending; the longest feature length is added.
    group_batches: Number of batches that are sorted together.

  Raises:
    InputError: the batch size is not a multiple of `num_shards`, or another value is wrong.
  """
  check_batch_size(cfg.batch_size, num_shards)
  provider = mixture_or_task(cfg)
  seed = shared_seed() if cfg.seed is None else int(cfg.seed)
  converter = feature_converter_cls(
    pack=cfg.pack, use_custom_packing_ops=cfg.use_custom_packing_ops
  )
  rows = provider.get_dataset(
    cfg.task_feature_lengths,
    split=cfg.split,
    use_cached=cfg.use_cached,
    shuffle=cfg.shuffle,
    seed=seed,
    num_epochs=num_epochs,
    trim_output_features=cfg.trim_output_features,
  )
  rows = converter(rows, cfg.task_feature_lengths)
  bounds = _boundaries(boundaries, cfg.task_feature_lengths)
  if one_language_pair:
    pair_bounds = bounds if group_by_length else ()
    batches = group_by_language_pair(rows, cfg.batch_size, boundaries=pair_bounds)
  elif group_by_length:
    batches = sort_by_length(
      rows,
      cfg.batch_size,
      boundaries=bounds,
      group_batches=group_batches,
      shuffle_seed=seed if cfg.shuffle else None,
    )
  else:
    batches = rows.batch(cfg.batch_size, drop_remainder=True)
  return _share(batches.prefetch(2), cfg.batch_size // num_shards, shard_id, num_shards)


def mixture_or_task(cfg: Any) -> seqio.Mixture | seqio.Task:
  """Returns the mixture or task of a `DatasetConfig`, after importing the module of its tasks."""
  if cfg.module:
    importlib.import_module(cfg.module)
  found = cfg.mixture_or_task_name
  return found if isinstance(found, seqio.DatasetProviderBase) else seqio.get_mixture_or_task(found)


def check_batch_size(batch_size: int, num_shards: int) -> None:
  """Raises InputError unless the batch size is a multiple of the number of data shards."""
  if batch_size % num_shards:
    raise errors.InputError(
      f"batch_size {batch_size} is not a multiple of the number of data shards, {num_shards}; "
      "change it"
    )


def _share(batches: tf.data.Dataset, size: int, shard_id: int, num_shards: int) -> tf.data.Dataset:
  """Returns one host's rows of every batch, with the attributes of `get_global_batches`."""
  rows = slice(shard_id * size, (shard_id + 1) * size)
  share = batches
  if num_shards > 1:
    share = batches.map(lambda batch: tf.nest.map_structure(lambda x: x[rows], batch))
  share.whole_batches = batches
  share.rows_of_whole = rows
  return share


def sort_by_length(
  rows: tf.data.Dataset,
  batch_size: int,
  *,
  boundaries: Sequence[int],
  group_batches: int,
  shuffle_seed: int | None,
) -> tf.data.Dataset:
  """Returns batches of padded rows of similar length; drops an incomplete last batch.

  Args:
    rows: Padded rows with token ids under `inputs` and perhaps `targets`; 0 is padding.
    batch_size: Rows per batch.
    boundaries: Maximum length of each length class, ascending; the last holds all longer rows.
    group_batches: Number of batches that are sorted together.
    shuffle_seed: Seed of the order of batches; None: short batches of a group first.
  """
  spec = rows.element_spec

  def arrange(number: tf.Tensor, group: Mapping[str, tf.Tensor]) -> Mapping[str, tf.Tensor]:
    kind = _length_class(group, boundaries)
    count = tf.shape(kind)[0] // batch_size
    order = tf.argsort(kind[: count * batch_size], stable=True)
    order = tf.reshape(order, [count, batch_size])
    if shuffle_seed is not None:
      order = tf.random.experimental.stateless_shuffle(
        order, seed=tf.stack([tf.constant(shuffle_seed, tf.int64), number])
      )
    return tf.nest.map_structure(lambda column: tf.gather(column, order), group)

  batches = rows.batch(batch_size * group_batches).enumerate().map(arrange).unbatch()
  fixed = {name: [batch_size, *spec[name].shape] for name in spec}
  return batches.map(
    lambda batch: {name: tf.ensure_shape(batch[name], fixed[name]) for name in spec}
  )


def group_by_language_pair(
  rows: tf.data.Dataset, batch_size: int, *, boundaries: Sequence[int] = ()
) -> tf.data.Dataset:
  """Returns batches of padded rows of one language pair, in either direction.

  A batch is complete when enough of its rows have been read, so that the share of a language pair
  in the batches is its share of the rows. Memory, and checkpoints of the iterator, hold up to one
  batch of rows for every language pair and length class; incomplete batches are dropped at the end.

  Args:
    rows: Padded rows with language ids, in addition to the features for `sort_by_length`.
    batch_size: Rows per batch.
    boundaries: As for `sort_by_length`; a batch has one length class. Without any, lengths are
      mixed.

  Raises:
    InputError: rows have no language ids.
  """
  missing = sorted(set(SIDES.values()) - set(rows.element_spec))
  if missing:
    raise errors.InputError(
      f"batches of one language pair need language ids; add {' and '.join(missing)} to "
      "TASK_FEATURE_LENGTHS"
    )
  count = languages.NUM_LANGUAGES

  def key(row: Mapping[str, tf.Tensor]) -> tf.Tensor:
    pair = [row[name][0] for name in SIDES.values()]
    kind = _length_class({name: row[name][None] for name in row}, boundaries)[0]
    number = (kind * count + tf.minimum(*pair)) * count + tf.maximum(*pair)
    return tf.cast(number, tf.int64)

  return rows.group_by_window(
    key, lambda _, group: group.batch(batch_size, drop_remainder=True), window_size=batch_size
  )


def _length_class(rows: Mapping[str, tf.Tensor], boundaries: Sequence[int]) -> tf.Tensor:
  """Returns the length class of the longer side of each row, int32 [B]."""
  lengths = [
    tf.math.count_nonzero(rows[name], axis=1, dtype=tf.int32) for name in SIDES if name in rows
  ]
  return tf.searchsorted(tf.constant(boundaries, tf.int32), tf.reduce_max(tf.stack(lengths), 0))


def _boundaries(boundaries: Sequence[int], lengths: Mapping[str, int]) -> list[int]:
  if list(boundaries) != sorted(set(boundaries)) or min(boundaries, default=1) < 1:
    raise errors.InputError(
      f"boundaries are {tuple(boundaries)}; use positive numbers in ascending order"
    )
  longest = max(lengths[name] for name in SIDES if name in lengths)
  return [*(bound for bound in boundaries if bound < longest), longest]


def shared_seed() -> int:
  """Returns the time of the first host."""
  now = np.int32(time.time())
  if jax.process_count() == 1:
    return int(now)
  from jax.experimental import multihost_utils

  return int(multihost_utils.broadcast_one_to_all(now))
