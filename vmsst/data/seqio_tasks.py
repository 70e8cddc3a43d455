"""SeqIO tasks of texts, mixtures of language pairs, and their rows, which Grain reads.

A task has a table of texts, a vocabulary and features. `read_rows` returns the rows of tasks for
training, a few hundred at a time, since Python calls for each row take longer than tokenizing it.
`TextTask.get_dataset` returns the same rows to SeqIO and T5X.
"""

import dataclasses
import functools
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import grain
import numpy as np
import seqio
import tensorflow as tf
from absl import logging

from vmsst import errors
from vmsst.data import features, readers, tables, vocabularies
from vmsst.data.tables import SIDES
from vmsst.languages import Language

WEIGHTINGS = ("proportional", "uniform", "temperature")
CHUNK = 256
"""Number of rows that are read and tokenized together."""
COUNTED = 20_000
"""Number of pairs whose dropped and cut texts are counted."""
_SLOT = "slot"  # in a chunk
_PATTERN = 1 << 20  # The rates are those of the tasks in as many rows.
_WHOLE = seqio.ShardInfo(index=0, num_shards=1)
READING = grain.ReadOptions(num_threads=min(os.cpu_count() or 1, 8), prefetch_buffer_size=32)
"""Threads that read and tokenize chunks, and the number of chunks that are read ahead."""
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
    self.tokenizer = features.Tokenizer(vocabulary, max_length, keep_all)
    self.pair = pair

  def table(self, split: str) -> tables.Table:
    """Returns the table of a split."""
    return self.source.table(split)

  def spec(self, split: str, lengths: Mapping[str, Any]) -> dict[str, tf.TensorSpec]:
    """Returns the dtype and shape of every column of a row; texts without a length have None."""
    columns = self.table(split).rows(np.zeros(1, np.int64))
    spec = {}
    for name, column in columns.items():
      is_text = not isinstance(column, np.ndarray)
      shape = [*np.shape(column)[1:], None] if is_text else column.shape[1:]
      given = np.atleast_1d(lengths.get(name) or []).astype(int).tolist()
      spec[name] = tf.TensorSpec(
        [*given, *shape[len(given) :]], tf.int32 if is_text else column.dtype
      )
    return spec

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
      InputError: a cache is asked for, or see `check_texts`.
    """
    del shuffle_buffer_size, try_in_mem_cache
    check_uncached(self, use_cached)
    wanted = sequence_length or {}
    if not self.tokenizer.keep_all:
      check_texts([self], wanted, split, COUNTED if shuffle else 0)
    spec = self.spec(split, wanted if trim_output_features else {})
    for name in features.EXTRA_FEATURES:
      if sequence_length is not None and not wanted.get(name):
        spec.pop(name, None)
    lengths = {name: wanted.get(name) if trim_output_features else None for name in spec}
    chunks = read_rows(
      [self],
      [1.0],
      lengths,
      split=split,
      shuffle=shuffle,
      seed=seed,
      shard=shard_info or _WHOLE,
      num_epochs=num_epochs,
    )
    signature = {name: tf.TensorSpec([None, *x.shape], x.dtype) for name, x in spec.items()}
    rows = tf.data.Dataset.from_generator(lambda: chunks, output_signature=signature).unbatch()
    for side in SIDES:
      if side in lengths and not lengths[side]:
        rows = rows.map(
          lambda row, side=side: {**row, side: row[side][: tf.math.count_nonzero(row[side])]}
        )
    return rows.prefetch(tf.data.AUTOTUNE)


def check_uncached(task: seqio.Task, use_cached: bool) -> None:
  """Raises InputError if a cache is asked for."""
  if use_cached:
    raise errors.InputError(
      f"task {task.name} cannot be cached: its texts are tokenized while they are read; set "
      "USE_CACHED_TASKS = False"
    )


def read_rows(
  tasks: Sequence[TextTask],
  rates: Sequence[float],
  lengths: Mapping[str, Any],
  *,
  split: str,
  shuffle: bool,
  seed: int | None,
  shard: seqio.ShardInfo,
  num_epochs: int | None,
  reading: grain.ReadOptions = READING,
) -> grain.IterDataset:
  """Returns a shard's rows of tasks, about `CHUNK` at a time, as columns [N, ...].

  The state of an iterator is one number, so that a run resumes exactly. The order depends on the
  seed and the shard: each epoch of a task is shuffled anew.

  Args:
    tasks: The tasks.
    rates: How often each is sampled.
    lengths: The columns to return; see `features.Tokenizer`.
    split: Their split.
    shuffle: Whether to shuffle.
    seed: Seed of the order; None: the time.
    shard: Which rows: those of its share of a table's files, or else every n-th one.
    num_epochs: Number of epochs, None: endless. The rows end before a task would begin another.
    reading: Threads, and number of chunks to read ahead.
  """
  base = int(time.time()) if seed is None else seed % 2**63
  streams = []
  for number, task in enumerate(tasks):
    table = task.table(split)
    share = table.share(shard.index, shard.num_shards)
    first, step = (shard.index, shard.num_shards) if share is None else (0, 1)
    task_seed = (base, number) if shuffle else None
    streams.append(_Stream(table if share is None else share, task_seed, first, step, num_epochs))
  pattern, rank, counts = _pattern(rates, base)
  total = 2**62
  if num_epochs is not None:  # up to the first row that a task has not
    parts = [divmod(len(stream), int(count)) for stream, count in zip(streams, counts, strict=True)]
    total = min(
      cycles * len(pattern) + int(np.flatnonzero(pattern == index)[rest])
      for index, (cycles, rest) in enumerate(parts)
    )

  def read(chunk: int) -> dict[str, np.ndarray] | None:
    cycle_N, slot_N = np.divmod(
      np.arange(chunk * CHUNK, min((chunk + 1) * CHUNK, total)), len(pattern)
    )
    task_N = pattern[slot_N]
    parts = []
    for index in np.unique(task_N).tolist():
      row_K = np.flatnonzero(task_N == index)
      columns = streams[index].rows(cycle_N[row_K] * counts[index] + rank[slot_N[row_K]])
      parts.append({**columns, _SLOT: row_K})
    rows = tasks[0].tokenizer(_joined(parts), {**lengths, _SLOT: None})
    order_N = np.argsort(rows.pop(_SLOT))
    if not len(order_N):
      return None  # which Grain skips
    return {name: column[order_N] for name, column in rows.items()}

  chunks = grain.MapDataset.range(-(-total // CHUNK))
  return chunks.map(read).to_iter_dataset(reading)


def check_texts(
  tasks: Sequence[TextTask], lengths: Mapping[str, Any], split: str, count: int
) -> None:
  """Logs how many of the first `count` pairs are dropped, and how many of their texts are cut.

  Args:
    tasks: The tasks, with equal shares of the pairs.
    lengths: Maximum length of each column.
    split: Their split.
    count: Number of pairs to count; 0 logs nothing.

  Raises:
    InputError: all pairs of a task are dropped.
  """
  total = dropped = sum(task.table(split).dropped for task in tasks)
  cut = 0
  longer = {side: lengths[side] + 1 for side in SIDES if isinstance(lengths.get(side), int)}
  for task in tasks:
    table, remaining = task.table(split), 0
    for start in range(0, len(table), CHUNK):
      if remaining and start * len(tasks) >= count:
        break
      columns = table.rows(np.arange(start, min(start + CHUNK, len(table))))
      rows = task.tokenizer(columns, {"inputs": 1, **longer})
      remaining += len(rows["inputs"])
      total += len(columns["inputs"])
      dropped += len(columns["inputs"]) - len(rows["inputs"])
      cut += sum(int(np.count_nonzero(rows[side][:, -1])) for side in longer)
    if not remaining:
      raise errors.InputError(
        f"{task.name} {split}: no pair is left: of {len(table) + table.dropped} pairs, "
        f"{table.dropped} have an empty side, and {len(table)} an over-long one; check the files "
        f"and max_length ({task.tokenizer.max_length})"
      )
  if count and (dropped or cut):
    logging.warning(
      "%s: of the first %d pairs, dropped: %d (an empty text, or one above MAX_PAIR_LENGTH); texts "
      "cut to %d tokens: %d",
      *(split, total, dropped, min(longer.values(), default=1) - 1, cut),
    )


def _pattern(rates: Sequence[float], seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
  """Returns an order in which tasks take turns at their rates, to be repeated.

  Returns:
    The task of each row [P], its number among the rows of that task [P], and the number of rows of
    each task.
  """
  counts = np.ones(len(rates), int)
  if len(rates) > 1:
    counts = np.maximum(1, np.rint(_PATTERN * np.array(rates) / sum(rates))).astype(int)
  tasks = np.repeat(np.arange(len(rates)), counts)
  pattern = np.random.default_rng([seed]).permutation(tasks)
  rank = np.empty(len(pattern), int)
  rank[np.argsort(pattern, kind="stable")] = np.concatenate([np.arange(count) for count in counts])
  return pattern, rank, counts


@dataclasses.dataclass(frozen=True)
class _Stream:
  """A host's rows of the epochs of a table: every `step`-th one, from number `first` on.

  Each epoch has another order, in which every row of a window is in the same window.

  Attributes:
    table: The table.
    seed: Seed of the order; None: the order of the table.
    first: Number of the first row.
    step: Number of hosts that share the rows.
    num_epochs: Number of epochs; None: endless.
  """

  table: tables.Table
  seed: tuple[int, ...] | None
  first: int
  step: int
  num_epochs: int | None

  def __len__(self) -> int:
    return max(0, -(-(len(self.table) * (self.num_epochs or 0) - self.first) // self.step))

  def rows(self, position_N: np.ndarray) -> tables.Columns:
    """Returns the rows at these positions of the stream."""
    epoch_N, number_N = np.divmod(position_N * self.step + self.first, len(self.table))
    if self.seed is not None:
      start_N = number_N - number_N % self.table.window
      for epoch, start in set(zip(epoch_N.tolist(), start_N.tolist(), strict=True)):
        size = min(self.table.window, len(self.table) - start)
        same_N = (epoch_N == epoch) & (start_N == start)
        order = _permutation((*self.seed, epoch, start), size)
        number_N[same_N] = start + order[number_N[same_N] - start]
    return self.table.rows(number_N)


@functools.lru_cache(maxsize=512)
def _permutation(seed: tuple[int, ...], size: int) -> np.ndarray:
  return np.random.default_rng(seed).permutation(np.arange(size, dtype=np.int32))


def _joined(parts: Sequence[tables.Columns]) -> dict[str, Any]:
  """Returns the rows of all parts."""
  return {
    name: np.concatenate([part[name] for part in parts])
    if isinstance(parts[0][name], np.ndarray)
    else [row for part in parts for row in part[name]]
    for name in parts[0]
  }


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
  source: Callable[[tuple[Language, Language], str], TableSource],
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
          pair=pair,
        )
        seqio.TaskRegistry.add_provider(task_name, task)
    rate = functools.partial(_rate, power=power)
    parts = [(task_name, rate) for task_name in tasks.values()]
    seqio.MixtureRegistry.add_provider(name, seqio.Mixture(name, parts))
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
