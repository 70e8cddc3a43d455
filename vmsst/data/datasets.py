"""Batches of SeqIO tasks and mixtures, of which each host reads its share of the rows."""

import importlib
import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import seqio
import tensorflow as tf
from jax.experimental import multihost_utils

from vmsst import errors, languages
from vmsst.data.features import SIDES


def get_batches(
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
  """Returns this host's rows of batches; bind to `train_script.train.get_dataset_fn`.

  Without the keyword arguments, it is `get_dataset` of T5X: each host reads its share of every
  task, and the hosts' rows together are a batch. So the order of the rows depends on the seed and
  on the number of hosts.

  Batches of sentences of similar length have less padding. With in-batch negatives, they change the
  loss: the negatives have the length of the translation.

  Args:
    cfg: A `DatasetConfig` of T5X, or an object with its fields.
    shard_id: Number of this host's share.
    num_shards: Number of shares.
    feature_converter_cls: The model's feature converter.
    num_epochs: Number of epochs; None: endless. A mixture ends with the task that ends first.
    group_by_length: Whether the sentences of a batch have similar lengths. Sorts the rows of
      `group_batches` batches by the length class of the longer side (see `boundaries`) and cuts
      them into batches; with `cfg.shuffle`, in random order, the same on all hosts.
    one_language_pair: Whether all rows of a batch have the same two languages, in either direction;
      see `group_by_language_pair`. With `group_by_length`, on one host only, a batch has one length
      class too. With several hosts, all pairs of a task of a mixture must have the same languages,
      as those of this package have: hosts take tasks in the same order.
    boundaries: Maximum length of each length class, ascending; the longest feature length is added.
    group_batches: Number of batches that are sorted together.

  Raises:
    InputError: the task is unknown, the batch size is not a multiple of `num_shards`, or another
      value is wrong.
  """
  provider = get_mixture_or_task(cfg)
  if cfg.batch_size % num_shards:
    raise errors.InputError(
      f"BATCH_SIZE={cfg.batch_size} is not divisible by {num_shards} data shards; choose a multiple"
    )
  if group_by_length and one_language_pair and num_shards > 1:
    raise errors.InputError(
      "several hosts cannot group batches by length and by language pair at once; set "
      "GROUP_BY_LENGTH or ONE_LANGUAGE_PAIR to False"
    )
  size = cfg.batch_size // num_shards
  seed = time_seed() if cfg.seed is None else int(cfg.seed)
  converter = feature_converter_cls(
    pack=cfg.pack, use_custom_packing_ops=cfg.use_custom_packing_ops
  )
  rows = provider.get_dataset(
    cfg.task_feature_lengths,
    split=cfg.split,
    use_cached=cfg.use_cached,
    shuffle=cfg.shuffle,
    seed=seed,
    shard_info=seqio.ShardInfo(index=shard_id, num_shards=num_shards),
    num_epochs=num_epochs,
    trim_output_features=cfg.trim_output_features,
  )
  rows = converter(rows, cfg.task_feature_lengths)
  if one_language_pair:
    bounds = _boundaries(boundaries, cfg.task_feature_lengths) if group_by_length else ()
    batches = group_by_language_pair(rows, size, boundaries=bounds)
  elif group_by_length:
    batches = sort_by_length(
      rows,
      size,
      boundaries=_boundaries(boundaries, cfg.task_feature_lengths),
      group_batches=group_batches,
      shuffle_seed=seed if cfg.shuffle else None,
    )
  else:
    batches = rows.batch(size, drop_remainder=True)
  return batches.prefetch(2)


def get_mixture_or_task(cfg: Any) -> seqio.Mixture | seqio.Task:
  """Returns the mixture or task of a `DatasetConfig`, after importing the module of its tasks.

  Raises:
    InputError: no such task or mixture is registered.
  """
  if cfg.module:
    importlib.import_module(cfg.module)
  provider = cfg.mixture_or_task_name
  if isinstance(provider, seqio.DatasetProviderBase):
    return provider
  label = "utils.DatasetConfig.mixture_or_task_name"
  errors.check(isinstance(provider, str), label, provider, "the name of a task or mixture")
  try:
    return seqio.get_mixture_or_task(provider)
  except ValueError as error:
    known = sorted({*seqio.TaskRegistry.names(), *seqio.MixtureRegistry.names()})
    raise errors.InputError(
      f"no task or mixture {provider!r} is registered; known: {', '.join(known) or 'none'}. Import "
      "the module that registers it in the gin file, or check MIXTURE_OR_TASK_NAME"
    ) from error


def epoch_steps(
  mixture_or_task_name: str, *, epochs: float, batch_size: int, split: str = "train"
) -> int:
  """Returns the steps of epochs of data, for gin: `TRAIN_STEPS = @datasets.epoch_steps()`.

  An epoch is as many pairs as the mixture has, before those that are too long are dropped.

  Args:
    mixture_or_task_name: A SeqIO mixture or task.
    epochs: Number of epochs.
    batch_size: Pairs of a batch.
    split: The training split.

  Raises:
    InputError: an argument is invalid, or the data does not count its pairs.
  """
  errors.check_positive("epochs", epochs)
  errors.check_integer("batch_size", batch_size)
  pairs = seqio.get_mixture_or_task(mixture_or_task_name).num_input_examples(split)
  if not pairs:
    raise errors.InputError(
      f"the number of pairs of {mixture_or_task_name} ({split}) is unknown, so epochs have no "
      "number of steps; set TRAIN_STEPS, EVAL_PERIOD and CHECKPOINT_PERIOD"
    )
  return math.ceil(epochs * pairs / batch_size)


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


def time_seed() -> int:
  """Returns the time as a seed, the same one in all processes."""
  return int(multihost_utils.broadcast_one_to_all(np.int32(time.time())))
