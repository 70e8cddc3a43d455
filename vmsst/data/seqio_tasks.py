"""SeqIO tasks of texts, which are tokenized while they are read, and mixtures of language pairs.

In a TensorFlow pipeline, the overhead of a stage per row exceeds its work. Therefore one function
tokenizes, filters, cuts and pads dozens of rows at a time; only shuffling and mixing, which
TensorFlow does without calling a function, work on single rows. Nothing here has state in Python,
so that `tf.train.Checkpoint` can save the iterators.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import seqio
import tensorflow as tf

from vmsst import errors
from vmsst.data import features, readers, sources, vocabularies
from vmsst.data.features import SIDES
from vmsst.languages import Language

WEIGHTINGS = ("proportional", "uniform", "temperature")
# The arguments of all names from `unique_name`, by kind of name. This is global because the
# registries of seqio are: gin may call a function such as `files` several times, and the same
# arguments must name the same mixture, which is registered already.
_NAMES: dict[str, list[str]] = {}


class TextTask(seqio.Task):
  """A seqio task of a source of texts, which also shuffles them.

  Shuffling strings takes the least memory; everything else is done in one step. Rows are padded to
  the requested lengths.

  Args:
    name: Name of the task.
    source: Has the texts, `inputs` and perhaps `targets` and `negatives` [K]; other columns of a
      row are kept.
    output_features: The features.
    vocabulary: Tokenizes all texts.
    max_length: Maximum number of tokens of a text, None: no limit. Rows with a longer one are
      dropped, and so are rows with a text of no tokens; negatives do not count.
    keep_all: Whether to keep all rows instead, and to cut longer texts to `max_length`.
    **options: More arguments of seqio.Task.
  """

  def __init__(
    self,
    name: str,
    source: sources.TextSource,
    output_features: Mapping[str, seqio.Feature],
    *,
    vocabulary: vocabularies.Vocabulary,
    max_length: int | None,
    keep_all: bool = False,
    **options: Any,
  ):
    super().__init__(name, source, output_features, **options)
    self._vocabulary = vocabulary
    self._max_length = max_length
    self._keep_all = keep_all

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

    That cache would be part of every checkpoint of the iterator; shuffle buffers are the source's.
    `features.EXTRA_FEATURES`, which not all data has, are included if their length is given.

    Raises:
      InputError: a cache is asked for, or the word splitter of a language is not installed.
    """
    del shuffle_buffer_size, try_in_mem_cache
    if use_cached:
      raise errors.InputError(
        f"task {self.name} cannot be cached: its texts are tokenized while they are read; set "
        "USE_CACHED_TASKS = False"
      )
    for language in self.source.split_languages:
      self._vocabulary.tokenize([""], language)  # raises if its word splitter is not installed
    rows = self.source.stream(
      split,
      shuffle=shuffle,
      seed=seed,
      shard=shard_info or sources.WHOLE,
      num_epochs=num_epochs,
    )
    names = features.wanted(rows.element_spec, sequence_length)
    lengths = {
      name: (sequence_length or {}).get(name) if trim_output_features else None for name in names
    }
    splits = self.source.split_languages and getattr(self._vocabulary, "pretokenize", False)
    rows = rows.batch(features.SPLIT_ROWS if splits else sources.ROWS)
    if splits:
      rows = rows.map(features.split_columns, tf.data.AUTOTUNE)
    rows = rows.map(lambda columns: self._tokenized(columns, lengths), tf.data.AUTOTUNE).unbatch()
    open_sides = [side for side in SIDES if side in names and not lengths[side]]
    if open_sides:
      rows = rows.map(lambda row: {**row, **{side: stripped(row[side]) for side in open_sides}})
    return rows.prefetch(tf.data.AUTOTUNE)

  def _tokenized(
    self, columns: Mapping[str, tf.Tensor], lengths: Mapping[str, Any]
  ) -> dict[str, tf.Tensor]:
    """Returns the rows of a batch that are kept, with the features in `lengths`.

    Args:
      columns: Strings of the texts, and the other columns of the source.
      lengths: Maximum length of each feature to return; None: no limit.
    """
    encoder, eos_id = features.SeqioVocabulary(self._vocabulary), self._vocabulary.eos_id
    row_batch = {name: columns[name] for name in lengths}
    keep_B = tf.constant(True)
    for side in [side for side in SIDES if side in row_batch]:
      ids_BT = encoder.encode_rows(columns[side]).to_tensor()
      size_B = tf.math.count_nonzero(ids_BT, axis=1, dtype=tf.int32)
      limit = self._max_length
      if not self._keep_all:
        keep_B &= size_B > 0
        if limit is not None:
          keep_B &= size_B <= limit
      elif limit is not None:
        size_B = tf.minimum(size_B, limit - (eos_id is not None))
      row_batch[side] = _ended(ids_BT, size_B, eos_id, lengths[side])
    if "negatives" in row_batch:
      text_BK, length = row_batch["negatives"], lengths["negatives"]
      ids_MT = encoder.encode_rows(tf.reshape(text_BK, [-1])).to_tensor()
      size_M = tf.math.count_nonzero(ids_MT, axis=1, dtype=tf.int32)
      # A missing text has no EOS token.
      ids_MT = _ended(ids_MT, tf.where(size_M > 0, size_M, -1), eos_id, length and length[1])
      ids_BKT = tf.reshape(ids_MT, [-1, text_BK.shape[1], tf.shape(ids_MT)[1]])
      row_batch["negatives"] = ids_BKT
      if length:
        ids_BKT = ids_BKT[:, : length[0]]
        missing = length[0] - ids_BKT.shape[1]
        ids_BKT = tf.pad(ids_BKT, [[0, 0], [0, missing], [0, 0]])
        row_batch["negatives"] = tf.ensure_shape(ids_BKT, [None, *length])
    if self._keep_all:
      return row_batch
    return {name: tf.boolean_mask(column, keep_B) for name, column in row_batch.items()}


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


class PairMixture(seqio.Mixture):
  """A seqio mixture that samples whole rows at the rates of its tasks."""

  @tf.autograph.experimental.do_not_convert  # as in `TextTask`
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
    mixing_seed = sources.as_seed(seed) if seed is not None or shuffle else 42
    return _mixed(datasets, [self.get_rate(task) for task in tasks], mixing_seed)


def _mixed(
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
    sampled = tf.random.stateless_uniform([sources.CHOICES], seeds, dtype=tf.float64)
    return tf.searchsorted(bounds, sampled, side="right", out_type=tf.int64)

  choices = tf.data.Dataset.range(tf.int64.max).map(choose).unbatch()
  return tf.data.Dataset.choose_from_datasets(datasets, choices, stop_on_empty_dataset=True)


def weight_power(weighting: str, temperature: float | None) -> float:
  """Returns the exponent that turns the size of a language pair into its weight.

  Args:
    weighting: One of WEIGHTINGS; see `files`.
    temperature: Only for "temperature".

  Raises:
    InputError: one of them is wrong.
  """
  if weighting not in WEIGHTINGS:
    raise errors.InputError(f"weighting {weighting!r} is unknown; use {', '.join(WEIGHTINGS)}")
  if (weighting == "temperature") != (temperature is not None):
    raise errors.InputError('set a temperature with weighting = "temperature", and only then')
  if temperature is not None and not temperature > 0:
    raise errors.InputError(f"temperature is {temperature}; set it above 0")
  if temperature is not None:
    return 1 / temperature
  return 1.0 if weighting == "proportional" else 0.0


def unique_name(kind: str, *arguments: object) -> str:
  """Returns `kind`, with a number after it if other arguments have that name already.

  The same arguments always get the same name.
  """
  taken = _NAMES.setdefault(kind, [])
  key = repr(arguments)
  if key not in taken:
    taken.append(key)
  number = taken.index(key)
  return f"{kind}_{number + 1}" if number else kind


def add(
  name: str,
  pairs: Sequence[tuple[Language, Language]],
  source: Callable[[tuple[Language, Language], str], sources.TextSource],
  output_features: Mapping[str, seqio.Feature],
  vocabulary: vocabularies.Vocabulary,
  max_length: int | None,
  power: float,
) -> str:
  """Registers a mixture and its tasks unless it is registered; returns its name.

  Args:
    name: Name of the mixture; its tasks are `NAME_deu_eng` and so on.
    pairs: The language pairs.
    source: Returns the source of a language pair, for a task of a given name.
    output_features: The features of the tasks.
    vocabulary: Tokenizes the texts.
    max_length: Pairs with a side of more tokens are dropped; None: no limit.
    power: Exponent of the weights; see `weight_power`.
  """
  if name not in seqio.MixtureRegistry.names():
    tasks = {pair: f"{name}_{readers.pair_name(*pair)}" for pair in pairs}
    for pair, task_name in tasks.items():
      if task_name not in seqio.TaskRegistry.names():
        task = TextTask(
          task_name,
          source(pair, task_name),
          output_features,
          vocabulary=vocabulary,
          max_length=max_length,
        )
        seqio.TaskRegistry.add_provider(task_name, task)
    rate = functools.partial(_rate, power=power)
    parts = [(task_name, rate) for task_name in tasks.values()]
    seqio.MixtureRegistry.add_provider(name, PairMixture(name, parts))
  return name


def _rate(task: seqio.Task, power: float) -> float:
  """Returns the weight of a task: a power of its number of pairs."""
  split = "train" if "train" in task.splits else "validation"
  return float(task.num_input_examples(split)) ** power
