"""Builds batches of token ids for training: shuffles, mixes, tokenizes and pads table rows.

Grain, a library for data pipelines, reads a few hundred rows at a time, because one Python call per
row would take longer than tokenizing the row. The sentences in a batch can be grouped by length.
Nothing here imports TensorFlow or seqio.
"""

import dataclasses
import functools
import itertools
import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import grain
import jax
import numpy as np
from absl import logging
from clu.data import dataset_iterator
from etils import epath

from vmsst import errors, languages
from vmsst.data import tables, vocabularies
from vmsst.data.tables import SIDES

Batch = Mapping[str, np.ndarray]

CHUNK = 256  # number of rows that are read and tokenized together
GROUP = 16  # number of batches whose rows are sorted by length together
# Number of threads that read and tokenize chunks, and number of chunks to read ahead
READING = grain.ReadOptions(num_threads=min(os.cpu_count() or 1, 8), prefetch_buffer_size=32)
READING_ONE_OF_MANY = grain.ReadOptions(num_threads=1, prefetch_buffer_size=2)
BOUNDARIES = (8, 12, 16, 24, 32, 48, 64, 96)  # maximum length of each length class
_LANGUAGES = {language.index: language for language in languages.LANGUAGES}
_SLOT = "slot"  # Column with the position of each row in its chunk
_PATTERN = 1 << 20  # Number of rows after which the mixing pattern repeats.


@dataclasses.dataclass(frozen=True)
class Tokenizer:
  """Converts the texts in table rows to token ids.

  Attributes:
    vocabulary: Tokenizes the texts.
    max_length: Maximum number of tokens per text, or None for no limit. A row is dropped if either
      text is longer or has no tokens.
    keep_all: Whether to keep every row and truncate longer texts to `max_length` tokens.
  """

  vocabulary: vocabularies.Vocabulary
  max_length: int | None
  keep_all: bool

  def __call__(
    self, columns: Mapping[str, Any], lengths: Mapping[str, Any]
  ) -> dict[str, np.ndarray]:
    """Returns the requested columns, with texts replaced by padded token ids.

    Args:
      columns: Columns by name. `inputs`, `targets` and `negatives` contain texts; only `inputs` is
        required. All other columns are arrays [N, ...].
      lengths: Maximum text length for each column to return. None means no limit.
    """
    result = {name: columns[name] for name in lengths}
    keep_N = np.ones(len(columns["inputs"]), bool)
    for feature in SIDES:
      if feature in columns and (feature in lengths or not self.keep_all):
        ids = self.vocabulary.tokenize(columns[feature], self._languages(columns, SIDES[feature]))
        if not self.keep_all:
          size_N = np.fromiter(map(len, ids), int, len(ids))
          keep_N &= (size_N > 0) & (size_N <= (self.max_length or size_N))
        if feature in lengths:
          ids = self._with_eos(ids, lengths[feature], self.max_length if self.keep_all else None)
          result[feature] = _padded_ids(ids, lengths[feature])
    if "negatives" in lengths:
      count, length = lengths["negatives"] or (None, None)
      # Every row has the same number of negatives; missing negatives are "".
      negatives = [row[:count] for row in columns["negatives"]]
      width = len(negatives[0]) if negatives else 0
      row_languages = self._languages(columns, "target_language")
      ids = self.vocabulary.tokenize(
        list(itertools.chain.from_iterable(negatives)),
        row_languages and [language for language in row_languages for _ in range(width)],
      )
      # Missing texts get no EOS token.
      ended = zip(ids, self._with_eos(ids, length), strict=True)
      ids_MT = _padded_ids([with_eos if text else [] for text, with_eos in ended], length)
      ids_NKT = ids_MT.reshape(len(negatives), width, ids_MT.shape[1])
      missing = (count or width) - width
      result["negatives"] = np.pad(ids_NKT, [(0, 0), (0, missing), (0, 0)])
    return result if self.keep_all else {name: column[keep_N] for name, column in result.items()}

  def _with_eos(self, ids: Sequence[Sequence[int]], *limits: int | None) -> list[list[int]]:
    """Appends the EOS token, if any, and truncates each text to the smallest of `limits`."""
    limit = min((limit for limit in limits if limit), default=None)
    eos_id = self.vocabulary.eos_id
    return [vocabularies.cut_with_eos(text, limit or len(text) + 1, eos_id) for text in ids]

  def _languages(self, columns: Mapping[str, Any], name: str) -> list[languages.Language] | None:
    """Returns each row's language, or None if the vocabulary does not split texts into words."""
    if not getattr(self.vocabulary, "pretokenize", False):
      return None
    return [_LANGUAGES[index] for index in columns[name][:, 0].tolist()]


def _padded_ids(ids: Sequence[Sequence[int]], length: int | None) -> np.ndarray:
  """Pads ids to int32 [N, length]. If `length` is None, pads to the length of the longest text."""
  size_N = np.fromiter(map(len, ids), int, len(ids))
  width = length or int(size_N.max(initial=1))  # TensorFlow crashes on zero-width rows.
  ids_NT = np.zeros([len(ids), width], np.int32)
  flat = itertools.chain.from_iterable(ids)
  ids_NT[np.arange(width) < size_N[:, None]] = np.fromiter(flat, np.int32, int(size_N.sum()))
  return ids_NT


@dataclasses.dataclass(frozen=True)
class Texts:
  """A text table and the tokenizer for its rows.

  Attributes:
    name: Name to show in messages.
    table: The texts.
    tokenizer: Converts the texts to token ids.
  """

  name: str
  table: tables.Table
  tokenizer: Tokenizer

  def spec(self, lengths: Mapping[str, Any]) -> dict[str, jax.ShapeDtypeStruct]:
    """Returns the dtype and shape of each column in a row. Lengths without a limit are None."""
    spec = {}
    for name, column in self.table.rows(np.zeros(1, np.int64)).items():
      is_text = not isinstance(column, np.ndarray)
      shape = [*np.shape(column)[1:], None] if is_text else column.shape[1:]
      dims = np.atleast_1d(lengths.get(name) or []).astype(int).tolist()
      spec[name] = jax.ShapeDtypeStruct(
        [*dims, *shape[len(dims) :]], np.int32 if is_text else column.dtype
      )
    return spec


def read_rows(
  texts: Sequence[Texts],
  rates: Sequence[float],
  lengths: Mapping[str, Any],
  *,
  shuffle: bool,
  seed: int | None,
  shard: tuple[int, int] = (0, 1),
  num_epochs: int | None = None,
  reading: grain.ReadOptions = READING,
) -> grain.IterDataset:
  """Reads one shard of the tables, in chunks of about `CHUNK` rows, as columns [N, ...].

  A table is shuffled in a new order in each epoch. The orders depend only on `seed` and `shard`.
  The state of a dataset iterator is a single number, so an interrupted training run resumes at
  exactly the same row.

  Args:
    texts: The tables. All tables must use the same tokenizer.
    rates: Relative sampling rate of each table.
    lengths: Maximum text length for each column to return; see `Tokenizer`.
    shuffle: Whether to shuffle.
    seed: Seed for shuffling (default: the current time).
    shard: Index of this shard, and the number of shards. If a table's files divide evenly among the
      n shards, each shard contains whole files. Otherwise, each shard contains every n-th row.
    num_epochs: Number of epochs (default: endless). Iteration stops as soon as one table has no
      rows left.
    reading: Number of threads, and number of chunks to read ahead.
  """
  base = int(time.time()) if seed is None else seed % 2**63
  streams = []
  for number, source in enumerate(texts):
    share = source.table.share(*shard)
    first, step = shard if share is None else (0, 1)
    table_seed = (base, number) if shuffle else None
    streams.append(_Stream(share or source.table, table_seed, first, step, num_epochs))
  pattern, rank, counts = _pattern(rates, base)
  total = 2**62
  if num_epochs is not None:  # Stop as soon as one table has no rows left.
    ends = [divmod(len(stream), int(count)) for stream, count in zip(streams, counts, strict=True)]
    total = min(
      cycles * len(pattern) + int(np.flatnonzero(pattern == index)[row])
      for index, (cycles, row) in enumerate(ends)
    )

  # The pattern is repeated. Each repetition is called a cycle. `rank` numbers the rows from each
  # table within a cycle.
  def read(chunk: int) -> dict[str, np.ndarray] | None:
    cycle_N, slot_N = np.divmod(
      np.arange(chunk * CHUNK, min((chunk + 1) * CHUNK, total)), len(pattern)
    )
    table_N = pattern[slot_N]
    columns_by_table = []
    for index in np.unique(table_N).tolist():
      row_K = np.flatnonzero(table_N == index)
      columns = streams[index].rows(cycle_N[row_K] * counts[index] + rank[slot_N[row_K]])
      columns_by_table.append({**columns, _SLOT: row_K})
    # Tokenize the rows from all tables in one call, then restore the pattern's order.
    rows = texts[0].tokenizer(_join(columns_by_table), {**lengths, _SLOT: None})
    order_N = np.argsort(rows.pop(_SLOT))
    if not len(order_N):
      return None  # Grain skips None.
    return {name: column[order_N] for name, column in rows.items()}

  chunks = grain.MapDataset.range(-(-total // CHUNK))
  return chunks.map(read).to_iter_dataset(reading)


def check_texts(texts: Sequence[Texts], lengths: Mapping[str, Any], *, warn: bool = True) -> None:
  """Logs how many pairs are dropped and how many texts are truncated in each table's first chunk.

  Args:
    texts: The tables.
    lengths: Maximum text length for each column.
    warn: Whether to log these numbers.

  Raises:
    InputError: If no pair in a table is left after filtering.
  """
  total = dropped = sum(source.table.dropped for source in texts)
  cut = 0
  longer = {name: lengths[name] + 1 for name in SIDES if isinstance(lengths.get(name), int)}
  for source in texts:
    table, remaining = source.table, 0
    for start in range(0, len(table), CHUNK):
      if remaining:
        break
      columns = table.rows(np.arange(start, min(start + CHUNK, len(table))))
      rows = source.tokenizer(columns, {"inputs": 1, **longer})
      remaining += len(rows["inputs"])
      total += len(columns["inputs"])
      dropped += len(columns["inputs"]) - len(rows["inputs"])
      cut += sum(int(np.count_nonzero(rows[name][:, -1])) for name in longer)
    if not remaining:
      raise errors.InputError(
        f"{source.name}: no pairs are left: {table.dropped} of {len(table) + table.dropped} pairs "
        f"have an empty text, and {len(table)} have a text that is too long; check the files and "
        f"max_length ({source.tokenizer.max_length})"
      )
  if warn and (dropped or cut):
    logging.warning(
      "Of the first %d pairs, %d were dropped (a text is empty or longer than MAX_PAIR_LENGTH); "
      "texts cut to %d tokens: %d",
      *(total, dropped, min(longer.values(), default=1) - 1, cut),
    )


def _pattern(rates: Sequence[float], seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
  """Returns a random order of tables, in which each table occurs in proportion to its rate.

  Returns:
    Three arrays. For each place in the order: the index of the table [P], and the number of earlier
    places with the same table [P]. For each table: its number of places.
  """
  counts = np.ones(len(rates), int)
  if len(rates) > 1:
    # Keep at least one row per table, even if its rate rounds to zero rows.
    counts = np.maximum(1, np.rint(_PATTERN * np.array(rates) / sum(rates))).astype(int)
  table_P = np.repeat(np.arange(len(rates)), counts)
  pattern = np.random.default_rng([seed]).permutation(table_P)
  rank = np.empty(len(pattern), int)
  rank[np.argsort(pattern, kind="stable")] = np.concatenate([np.arange(count) for count in counts])
  return pattern, rank, counts


@dataclasses.dataclass(frozen=True)
class _Stream:
  """One host's share of a table's rows over all epochs: every `step`-th row, starting at `first`.

  In each epoch, rows are reshuffled within windows of neighboring rows. The order of the windows
  does not change.

  Attributes:
    table: The table.
    seed: Seed for shuffling, or None to keep the table's order.
    first: Index of the host's first row.
    step: Number of hosts that share the rows.
    num_epochs: Number of epochs, or None to repeat the table endlessly.
  """

  table: tables.Table
  seed: tuple[int, ...] | None
  first: int
  step: int
  num_epochs: int | None

  def __len__(self) -> int:
    return max(0, -(-(len(self.table) * (self.num_epochs or 0) - self.first) // self.step))

  def rows(self, position_N: np.ndarray) -> tables.Columns:
    """Returns the rows at the given positions in the stream."""
    epoch_N, number_N = np.divmod(position_N * self.step + self.first, len(self.table))
    if self.seed is not None:
      # Every host computes the same permutation for an epoch and window.
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


def _join(tables_columns: Sequence[tables.Columns]) -> dict[str, Any]:
  """Concatenates rows from several tables."""
  return {
    name: np.concatenate([columns[name] for columns in tables_columns])
    if isinstance(tables_columns[0][name], np.ndarray)
    else [row for columns in tables_columns for row in columns[name]]
    for name in tables_columns[0]
  }


class BatchIterator(dataset_iterator.DatasetIterator):
  """Iterates over the batches in a Grain dataset. Compatible with upstream T5X.

  Args:
    dataset: The dataset.
    element_spec: Shape and dtype of each column in a batch.
    shard: Index of the shard that the iterator reads, and the number of shards.
  """

  def __init__(
    self,
    dataset: grain.IterDataset,
    element_spec: Mapping[str, jax.ShapeDtypeStruct],
    shard: tuple[int, int] = (0, 1),
  ):
    self._dataset = dataset
    self._element_spec = element_spec
    self._shard = [*shard]
    self.reset()

  @property
  def element_spec(self) -> Mapping[str, jax.ShapeDtypeStruct]:
    """Shape and dtype of each column in a batch."""
    return self._element_spec

  def __next__(self) -> Batch:
    batch = next(self._iterator)
    self._count += 1
    return batch

  def reset(self) -> None:
    """Restarts from the first batch."""
    self._iterator = iter(self._dataset)
    self._count = 0

  def state(self) -> dict[str, Any]:
    """Returns the number of batches read and the dataset's position, as JSON values."""
    dataset = {"shard": self._shard, "iterator": self._iterator.get_state()}
    return {"batches": self._count, "dataset": dataset}

  def set_state(self, state: Mapping[str, Any]) -> None:
    """Resumes after the batch at which the state was saved. Call this before reading a batch.

    Raises:
      ValueError: If the state was saved for a different shard.
    """
    if (shard := state["dataset"]["shard"]) != self._shard:
      raise ValueError(f"the state was saved for data shard {shard}, not {self._shard}")
    self._count = int(state["batches"])
    self._iterator.set_state(state["dataset"]["iterator"])

  def save(self, filename: Any) -> None:
    """Writes the state to a file; upstream T5X calls this."""
    epath.Path(filename).write_text(json.dumps(self.state()))

  def restore(self, filename: Any) -> None:
    """Reads the state from a file; upstream T5X calls this."""
    self.set_state(json.loads(epath.Path(filename).read_text()))


def batched(
  rows: Sequence[grain.IterDataset],
  rates: Sequence[float],
  spec: Mapping[str, jax.ShapeDtypeStruct],
  size: int,
  shard: tuple[int, int],
  *,
  seed: int | None,
  boundaries: Sequence[int] | None = BOUNDARIES,
  transform: Callable[[Batch], Batch] | None = None,
) -> BatchIterator:
  """Batches rows, never mixing datasets within a batch. Drops an incomplete last batch.

  Args:
    rows: Datasets whose elements are groups of rows, as columns [N, ...].
    rates: Relative sampling rate of each dataset.
    spec: Shape and dtype of each column in one row.
    size: Rows per batch.
    shard: Index of this shard, and the number of shards.
    seed: See `length_batches`.
    boundaries: See `length_batches`. If None, texts are not grouped by length.
    transform: Function that is applied to each batch.
  """
  if boundaries is None:
    batches = [grain.experimental.RebatchIterDataset(x, size, drop_remainder=True) for x in rows]
  else:
    longest = max(spec[name].shape[0] for name in SIDES if name in spec)
    batches = [length_batches(x, size, longest, seed, boundaries) for x in rows]
  dataset = batches[0] if len(batches) == 1 else grain.IterDataset.mix(batches, rates)
  if transform is not None:
    dataset = dataset.map(transform)
  columns = {name: jax.ShapeDtypeStruct((size, *x.shape), x.dtype) for name, x in spec.items()}
  return BatchIterator(dataset, columns, shard)


def length_batches(
  rows: grain.IterDataset,
  size: int,
  longest: int,
  seed: int | None,
  boundaries: Sequence[int] = BOUNDARIES,
) -> grain.IterDataset:
  """Batches rows of similar length. Drops an incomplete last batch.

  Rows are sorted in groups of `GROUP` batches.

  Graded pairs (one score per row) are not sorted, because CoSENT compares the pairs in a batch.
  Pairs of similar length often come from the same genre, so a model trained on sorted batches would
  learn to rank pairs only within a genre (see benchmarks/finetune.py --objective=scores).

  Args:
    rows: Dataset whose elements are groups of rows, as columns [N, ...], with token ids under
      `inputs` and optionally `targets` and `negatives`. Id 0 is padding.
    size: Rows per batch.
    longest: Maximum length of `inputs` and `targets`.
    seed: Seed for shuffling the batches within each group, or None to put the shortest batches
      first.
    boundaries: Maximum length of each length class, ascending. `longest` is appended.
  """
  bounds = [*(bound for bound in boundaries if bound < longest), longest]

  def cut(number: int, rows: Batch) -> list[Batch]:
    texts = [rows[name] for name in (*SIDES, "negatives") if name in rows]
    # Length of the longest text in each row; hard negatives are [N, K, T].
    lengths = [np.count_nonzero(x, axis=-1).max(axis=tuple(range(1, x.ndim - 1))) for x in texts]
    # The sort is stable, so rows in the same length class keep their order.
    class_N = np.searchsorted(bounds, np.max(lengths, axis=0))
    if "scores" in rows and rows["scores"].shape[1] == 1:  # graded pairs
      class_N[:] = 0
    order_KN = np.argsort(class_N[: len(class_N) // size * size], kind="stable").reshape(-1, size)
    if seed is not None:
      order_KN = np.random.default_rng([seed % 2**63, number]).permutation(order_KN)
    return [{name: column[row_N] for name, column in rows.items()} for row_N in order_KN]

  groups = grain.experimental.RebatchIterDataset(rows, size * GROUP)
  return grain.experimental.FlatMapIterDataset(groups.map_with_index(cut), _Flatten())


class _Flatten(grain.experimental.FlatMapTransform):
  max_fan_out = 1 << 20

  def flat_map(self, element: list[Batch]) -> list[Batch]:
    return element
