"""SeqIO mixtures with one task for each language pair."""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import seqio
import tensorflow as tf

from vmsst import errors
from vmsst.data import readers, sources, text_task, vocabularies
from vmsst.languages import Language

_CHOICES = 1024
WEIGHTINGS = ("proportional", "uniform", "temperature")
# The arguments of all names from `unique_name`, by kind of name. This is global because the
# registries of seqio are: gin may call a function such as `files` several times, and the same
# arguments must name the same mixture, which is registered already.
_NAMES: dict[str, list[str]] = {}


class PairMixture(seqio.Mixture):
  """A seqio mixture that samples whole rows at the rates of its tasks."""

  @tf.autograph.experimental.do_not_convert  # as in text_task.py
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
    sampled = tf.random.stateless_uniform([_CHOICES], seeds, dtype=tf.float64)
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
        task = text_task.TextTask(
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
