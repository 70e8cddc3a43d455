"""SeqIO tasks of texts, and mixtures of language pairs.

A task has a table of texts, a vocabulary and features. `TextTask.get_dataset` returns the rows of
`batches.read_rows` to SeqIO and T5X.
"""

import functools
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import seqio
import tensorflow as tf

from vmsst import errors
from vmsst.data import batches, features, readers, tables, vocabularies
from vmsst.data.tables import SIDES
from vmsst.languages import Language

WEIGHTINGS = ("proportional", "uniform", "temperature")
# The arguments of all names from `unique_name`, by kind of name. This is global because the
# registries of seqio are: gin may call a function such as `files` several times, and the same
# arguments must name the same mixture, which is registered already.
_NAMES: dict[str, list[str]] = {}


class TableSource(seqio.DataSource):
  """The tables of a task's splits, for `TextTask`.

  Args:
    splits: For each split, a function that opens its table, called when it is first needed.
  """

  def __init__(self, splits: Mapping[str, Callable[[], tables.Table]]):
    super().__init__(splits=tuple(splits))
    self._open = dict(splits)
    self._tables: dict[str, tables.Table] = {}
    self._lock = threading.Lock()

  @property
  def supports_arbitrary_sharding(self) -> bool:
    """True: shard i of n has rows i, i + n, i + 2n ... of the order of all epochs."""
    return True

  def list_shards(self, split: str) -> Sequence[str]:
    """Returns one shard, the split itself."""
    return [split]

  def table(self, split: str) -> tables.Table:
    """Returns the table of a split."""
    with self._lock:
      if split not in self._tables:
        self._tables[split] = self._open[split]()
      return self._tables[split]

  def num_input_examples(self, split: str) -> int:
    """Returns the number of rows of a split."""
    return len(self.table(split))

  def get_dataset(self, *arguments: Any, **options: Any) -> tf.data.Dataset:
    """Raises NotImplementedError: `TextTask` reads the rows."""
    raise NotImplementedError("read the rows of the task")


class TextTask(seqio.Task):
  """A seqio task of a table of texts, which are tokenized while they are read.

  Args:
    name: Name of the task.
    source: The tables.
    output_features: The features.
    vocabulary: Tokenizes all texts.
    max_length: Maximum number of tokens of a text, None: no limit. Rows with a longer one are
      dropped, and so are rows with a text of no tokens; negatives do not count.
    keep_all: Whether to keep all rows instead, and to cut longer texts to `max_length`.
    pair: The language pair; None: rows have several, or it is unknown.
    **options: More arguments of seqio.Task.
  """

  def __init__(
    self,
    name: str,
    source: TableSource,
    output_features: Mapping[str, seqio.Feature],
    *,
    vocabulary: vocabularies.Vocabulary,
    max_length: int | None,
    keep_all: bool = False,
    pair: tuple[Language, Language] | None = None,
    **options: Any,
  ):
    super().__init__(name, source, output_features, **options)
    self.tokenizer = batches.Tokenizer(vocabulary, max_length, keep_all)
    self.pair = pair

  def texts(self, split: str) -> batches.Texts:
    """Returns the texts of a split."""
    return batches.Texts(f"{self.name} {split}", self.source.table(split), self.tokenizer)

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
    """Returns rows as seqio.Task, padded to given lengths; their order is that of `read_rows`.

    `features.EXTRA_FEATURES`, which not all data has, are included if their length is given.

    Raises:
      InputError: see `check_texts`.
    """
    # Texts are tokenized while they are read, so there is nothing to cache.
    del shuffle_buffer_size, use_cached, try_in_mem_cache
    wanted = sequence_length or {}
    texts = self.texts(split)
    if not self.tokenizer.keep_all:
      batches.check_texts([texts], wanted, warn=shuffle)
    spec = texts.spec(wanted if trim_output_features else {})
    for name in features.EXTRA_FEATURES:
      if sequence_length is not None and not wanted.get(name):
        spec.pop(name, None)
    lengths = {name: wanted.get(name) if trim_output_features else None for name in spec}
    shard = (shard_info.index, shard_info.num_shards) if shard_info else (0, 1)
    chunks = batches.read_rows(
      [texts], [1.0], lengths, shuffle=shuffle, seed=seed, shard=shard, num_epochs=num_epochs
    )
    signature = {name: tf.TensorSpec([None, *x.shape], x.dtype) for name, x in spec.items()}
    dataset = tf.data.Dataset.from_generator(lambda: chunks, output_signature=signature).unbatch()
    for side in SIDES:
      if side in lengths and not lengths[side]:
        dataset = dataset.map(
          lambda row, side=side: {**row, side: row[side][: tf.math.count_nonzero(row[side])]}
        )
    return dataset.prefetch(tf.data.AUTOTUNE)


def weight_power(weighting: str, temperature: float | None) -> float:
  """Returns the exponent that turns the size of a language pair into its weight.

  Args:
    weighting: One of WEIGHTINGS; see `files`.
    temperature: Only for "temperature".

  Raises:
    InputError: one of them is wrong.
  """
  errors.check_choice("weighting", weighting, WEIGHTINGS)
  if weighting != "temperature":
    errors.check(temperature is None, "temperature", temperature, "None with this weighting")
    return 1.0 if weighting == "proportional" else 0.0
  valid = temperature is not None and temperature > 0
  errors.check(valid, "temperature", temperature, "a number above 0")
  return 1 / cast(float, temperature)


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
  sources: Mapping[tuple[Language, Language], TableSource],
  output_features: Mapping[str, seqio.Feature],
  vocabulary: vocabularies.Vocabulary,
  max_length: int | None,
  power: float,
) -> str:
  """Registers a mixture and its tasks unless it is registered; returns its name.

  Args:
    name: Name of the mixture; its tasks are `NAME_deu_eng` and so on.
    sources: The texts of each language pair.
    output_features: The features of the tasks.
    vocabulary: Tokenizes the texts.
    max_length: Pairs with a side of more tokens are dropped; None: no limit.
    power: Exponent of the weights; see `weight_power`.
  """
  if name not in seqio.MixtureRegistry.names():
    tasks = []
    for pair, source in sources.items():
      task = TextTask(
        f"{name}_{readers.pair_name(*pair)}",
        source,
        output_features,
        vocabulary=vocabulary,
        max_length=max_length,
        pair=pair,
      )
      seqio.TaskRegistry.add_provider(task.name, task)
      tasks.append((task.name, functools.partial(_rate, power=power)))
    seqio.MixtureRegistry.add_provider(name, seqio.Mixture(name, tasks))
  return name


def languages(mixture_or_task_name: Any) -> list[str] | None:
  """Returns the codes of the languages that a mixture trains on; None if they are unknown.

  Args:
    mixture_or_task_name: As in T5X's `DatasetConfig`. Known are the languages of this package's
      tasks.
  """
  provider = mixture_or_task_name
  if isinstance(provider, str):
    try:
      provider = seqio.get_mixture_or_task(provider)
    except ValueError:  # `DatasetConfig.module` may register it later.
      return None
  tasks = seqio.get_subtasks(provider)
  pairs = (x.pair for x in tasks if isinstance(x, TextTask) and x.pair and "train" in x.splits)
  return readers.language_codes(language for pair in pairs for language in pair) or None


def _rate(task: seqio.Task, power: float) -> float:
  """Returns the weight of a task: a power of its number of pairs."""
  split = "train" if "train" in task.splits else "validation"
  return float(task.num_input_examples(split)) ** power
