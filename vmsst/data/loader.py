"""Loads batches from SeqIO tasks and mixtures. Each host reads its own shard of the rows."""

import importlib
import math
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import grain
import jax
import numpy as np
import seqio
import tensorflow as tf
from jax.experimental import multihost_utils

from vmsst import errors
from vmsst.data import batches, seqio_tasks

Spec = Mapping[str, jax.ShapeDtypeStruct]


def get_batches(
  cfg: Any,
  shard_id: int,
  num_shards: int,
  feature_converter_cls: Callable[..., seqio.FeatureConverter],
  num_epochs: int | None = None,
  *,
  group_by_length: bool = False,
  one_language_pair: bool = False,
  boundaries: Sequence[int] = batches.BOUNDARIES,
) -> batches.BatchIterator:
  """Returns this host's part of each batch.

  In gin, set `train_script.train.get_dataset_fn` to this function.

  Each host reads its shard of every task, and the rows of all hosts together form a batch. The
  order of the rows therefore depends on the number of hosts as well as on the seed. Grain reads
  `seqio_tasks.TextTask` tasks. SeqIO and TensorFlow read all other tasks. For these tasks, a
  resumed run has to read and skip the rows that it has already used.

  Grouping sentences by length reduces padding. It also changes losses with in-batch negatives,
  because the negatives of a sentence then have about the same length as its translation.

  Args:
    cfg: A T5X `DatasetConfig`, or an object with the same fields.
    shard_id: Index of this host's shard.
    num_shards: Number of shards.
    feature_converter_cls: The model's feature converter.
    num_epochs: Number of epochs (default: endless). A mixture ends as soon as one of its tasks has
      no rows left.
    group_by_length: Whether to batch sentences of similar length. The rows for `batches.GROUP`
      batches are sorted by the length class of each row's longest sentence (see `boundaries`) and
      then split into batches. With `cfg.shuffle`, these batches are shuffled, in the same order on
      all hosts.
    one_language_pair: Whether all rows in a batch come from the same task of the mixture. In this
      package, each task has one language pair. The task for each batch is sampled at the mixing
      rates.
    boundaries: Maximum length of each length class, ascending. The longest feature length is
      appended.

  Raises:
    InputError: If the task is unknown, the batch size is not a multiple of `num_shards`, no pair in
      a task is left after filtering, or a configuration value is invalid.
  """
  provider = get_mixture_or_task(cfg)
  check_split(cfg)
  valid = cfg.batch_size % num_shards == 0
  errors.check(
    valid, "BATCH_SIZE", cfg.batch_size, f"a multiple of {num_shards}, the number of data shards"
  )
  is_mixture = isinstance(provider, seqio.Mixture)
  if one_language_pair and not (is_mixture or isinstance(provider, seqio_tasks.TextTask)):
    raise errors.InputError(
      f"ONE_LANGUAGE_PAIR needs one task per language pair, but {provider.name} is a single "
      "task; define a mixture of tasks or set ONE_LANGUAGE_PAIR to False"
    )
  tasks = [x for x in seqio.get_subtasks(provider) if isinstance(x, seqio_tasks.TextTask)]
  texts = [task.texts(cfg.split) for task in tasks if cfg.split in task.splits]
  # Warn in training only, because an evaluation would repeat the warning for every task.
  batches.check_texts(texts, cfg.task_feature_lengths, warn=cfg.shuffle)
  seed = cfg.seed
  if seed is None:  # All processes use process 0's time as the seed.
    seed = multihost_utils.broadcast_one_to_all(np.int32(time.time()))
  seed = int(seed)
  size = cfg.batch_size // num_shards

  converter = feature_converter_cls(
    pack=cfg.pack, use_custom_packing_ops=cfg.use_custom_packing_ops
  )
  lengths = cfg.task_feature_lengths

  def load(
    source: seqio.Task | seqio.Mixture, seed: int, reading: grain.ReadOptions
  ) -> tuple[grain.IterDataset, Spec]:
    """Returns the rows in a task or mixture, and the shape and dtype of each column."""
    tasks = [task for task in seqio.get_subtasks(source) if cfg.split in task.splits]
    # Grain reads text tasks that share a tokenizer, without TensorFlow.
    are_texts = tasks and all(
      isinstance(x, seqio_tasks.TextTask) and x.tokenizer == tasks[0].tokenizer for x in tasks
    )
    if are_texts and isinstance(converter, seqio_tasks.BitextFeatureConverter):
      texts = [task.texts(cfg.split) for task in tasks]
      seqio_tasks.check_lengths({name: x.shape for name, x in texts[0].spec({}).items()}, lengths)
      columns = texts[0].spec(lengths)
      spec = {name: columns[name] for name in lengths}
      is_mixture = isinstance(source, seqio.Mixture)
      rates = [source.get_rate(task) for task in tasks] if is_mixture else [1.0]
      rows = batches.read_rows(
        texts,
        rates,
        lengths,
        shuffle=cfg.shuffle,
        seed=seed,
        shard=(shard_id, num_shards),
        num_epochs=num_epochs,
        reading=reading,
      )
      return rows, spec
    # All other tasks and feature converters need SeqIO's pipeline.
    dataset = source.get_dataset(
      lengths,
      split=cfg.split,
      use_cached=cfg.use_cached,
      shuffle=cfg.shuffle,
      seed=seed,
      shard_info=seqio.ShardInfo(shard_id, num_shards),
      num_epochs=num_epochs,
      trim_output_features=cfg.trim_output_features,
    )
    dataset = converter(dataset, lengths)
    return _TensorFlowDataset(dataset.batch(batches.CHUNK)), _spec(dataset)

  sources, rates, reading = [provider], [1.0], batches.READING
  if one_language_pair and is_mixture:
    sources = [task for task in provider.tasks if cfg.split in task.splits]
    rates = [provider.get_rate(task) for task in sources]
    reading = batches.READING_ONE_OF_MANY
  rows, specs = zip(
    *(load(source, seed + number, reading) for number, source in enumerate(sources)), strict=True
  )
  return batches.batched(
    rows,
    rates,
    specs[0],
    size,
    (shard_id, num_shards),
    seed=seed if cfg.shuffle else None,
    boundaries=boundaries if group_by_length else None,
  )


def _spec(dataset: tf.data.Dataset) -> Spec:
  return {
    name: jax.ShapeDtypeStruct(x.shape, x.dtype.as_numpy_dtype)
    for name, x in dataset.element_spec.items()
  }


def from_tensorflow(dataset: tf.data.Dataset) -> batches.BatchIterator:
  """Wraps a tf.data dataset of batches. The order of the batches must not differ between runs."""
  return batches.BatchIterator(_TensorFlowDataset(dataset), _spec(dataset))


class _TensorFlowDataset(grain.IterDataset):
  """A tf.data dataset whose iterator state is the number of elements read.

  The state must be set before the first element is read. Setting it later would start a second
  iteration over the tf.data dataset, in which the elements may be in a different order.
  """

  def __init__(self, dataset: tf.data.Dataset):
    super().__init__()
    self._dataset = dataset

  def __iter__(self) -> grain.DatasetIterator:
    return _TensorFlowIterator(self._dataset)


class _TensorFlowIterator(grain.DatasetIterator):
  def __init__(self, dataset: tf.data.Dataset):
    super().__init__()
    self._dataset = dataset
    self._count = 0
    self._iterator: Iterator[batches.Batch] | None = None

  def __next__(self) -> batches.Batch:
    if self._iterator is None:
      self._iterator = self._dataset.skip(self._count).as_numpy_iterator()
    element = next(self._iterator)
    self._count += 1
    return element

  def get_state(self) -> dict[str, Any]:
    return {"elements": self._count}

  def set_state(self, state: dict[str, Any]) -> None:
    self._count, self._iterator = int(state["elements"]), None


def get_mixture_or_task(cfg: Any) -> seqio.Mixture | seqio.Task:
  """Imports a `DatasetConfig`'s `module`, if set, and returns the config's mixture or task.

  Raises:
    InputError: If no such task or mixture is registered.
  """
  if cfg.module:
    importlib.import_module(cfg.module)
  provider = cfg.mixture_or_task_name
  if isinstance(provider, seqio.DatasetProviderBase):
    return provider
  try:
    return seqio.get_mixture_or_task(provider)
  except ValueError as error:
    names = sorted({*seqio.TaskRegistry.names(), *seqio.MixtureRegistry.names()})
    raise errors.InputError(
      f"no task or mixture {provider!r} is registered; known: {', '.join(names) or 'none'}. Import "
      "the module that registers it in the gin file, or check MIXTURE_OR_TASK_NAME"
    ) from error


def check_split(cfg: Any) -> None:
  """Raises InputError if a `DatasetConfig`'s task lacks the config's split."""
  split = re.match(r"\w*", cfg.split)  # TFDS tasks also accept slices and sums of splits.
  splits = sorted(get_mixture_or_task(cfg).splits)
  if split and split[0] not in splits:
    raise errors.InputError(
      f"{cfg.mixture_or_task_name!r} has no split {cfg.split!r}; set one of {', '.join(splits)}"
    )


def epoch_steps(
  mixture_or_task_name: str, *, epochs: float, batch_size: int, split: str = "train"
) -> int:
  """Converts epochs to training steps. In gin: `TRAIN_STEPS = @loader.epoch_steps()`.

  An epoch counts every pair in the mixture, including pairs that are later dropped because of their
  length.

  Args:
    mixture_or_task_name: A SeqIO mixture or task.
    epochs: Number of epochs.
    batch_size: Number of pairs per batch.
    split: The training split.

  Raises:
    InputError: If an argument is invalid, or the number of pairs is unknown.
  """
  errors.check_number("epochs", epochs, "(0, inf)")
  errors.as_integer("batch_size", batch_size)
  pairs = seqio.get_mixture_or_task(mixture_or_task_name).num_input_examples(split)
  if not pairs:
    raise errors.InputError(
      f"the number of pairs in {mixture_or_task_name} ({split}) is unknown, so epochs cannot be "
      "converted to steps; set TRAIN_STEPS, EVAL_PERIOD and CHECKPOINT_PERIOD"
    )
  return math.ceil(epochs * pairs / batch_size)
