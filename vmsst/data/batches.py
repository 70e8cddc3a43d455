"""Batches of token ids for training: rows of tables, shuffled, mixed, tokenized and padded.

Grain reads the rows, a few hundred at a time, because Python calls for each row would take longer
than tokenizing it. The sentences of a batch may have similar lengths. Nothing here imports
TensorFlow or seqio.
"""

import dataclasses
import functools
import itertools
import json
import os
import time
from collections.abc import Mapping, Sequence
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

CHUNK = 256
"""Number of rows that are read and tokenized together."""
GROUP = 16
"""Minimum number of batches with rows that are sorted by length together."""
GROUP_ROWS = 1024
"""Minimum number of these rows, so that the rare long texts of small batches share a batch."""
READING = grain.ReadOptions(num_threads=min(os.cpu_count() or 1, 8), prefetch_buffer_size=32)
"""Threads that read and tokenize chunks, and the number of chunks that are read ahead."""
READING_ONE_OF_MANY = grain.ReadOptions(num_threads=1, prefetch_buffer_size=2)
BOUNDARIES = (8, 12, 16, 24, 32, 48, 64, 96)
"""Maximum length of each length class."""
_LANGUAGES = {language.index: language for language in languages.LANGUAGES}
_SLOT = "slot"  # name of the column with the position of a row in its chunk
_PATTERN = 1 << 20  # Mixing rates are exact over this many rows.


@dataclasses.dataclass(frozen=True)
class Tokenizer:
  """Turns the texts of rows into ids.

  Attributes:
    vocabulary: Tokenizes the texts.
    max_length: Maximum number of tokens of a side, or None for no limit. Rows with a longer side
      are dropped, and so are rows with a side without tokens.
    keep_all: Whether to keep all rows instead, and to cut longer texts to `max_length` ids.
  """

  vocabulary: vocabularies.Vocabulary
  max_length: int | None
  keep_all: bool

  def __call__(
    self, columns: Mapping[str, Any], lengths: Mapping[str, Any]
  ) -> dict[str, np.ndarray]:
    """Returns rows with padded ids in place of their texts, and their other columns.

    Args:
      columns: Texts under `inputs` and perhaps `targets` and `negatives`; others are [N, ...].
      lengths: The columns to return, and the maximum length of text columns, or None for no limit.
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
      # A table gives all rows equally many negatives, with "" for missing ones.
      negatives = [row[:count] for row in columns["negatives"]]
      width = len(negatives[0]) if negatives else 0
      row_languages = self._languages(columns, "target_language")
      ids = self.vocabulary.tokenize(
        list(itertools.chain.from_iterable(negatives)),
        row_languages and [language for language in row_languages for _ in range(width)],
      )
      # A missing text has no EOS token.
      ended = zip(ids, self._with_eos(ids, length), strict=True)
      ids_MT = _padded_ids([with_eos if text else [] for text, with_eos in ended], length)
      ids_NKT = ids_MT.reshape(len(negatives), width, ids_MT.shape[1])
      missing = (count or width) - width
      result["negatives"] = np.pad(ids_NKT, [(0, 0), (0, missing), (0, 0)])
    return result if self.keep_all else {name: column[keep_N] for name, column in result.items()}

  def _with_eos(self, ids: Sequence[Sequence[int]], *limits: int | None) -> list[list[int]]:
    """Returns ids with an EOS token, if the vocabulary has one, cut to the smallest limit."""
    limit = min((limit for limit in limits if limit), default=None)
    eos_id = self.vocabulary.eos_id
    return [vocabularies.cut_with_eos(text, limit or len(text) + 1, eos_id) for text in ids]

  def _languages(self, columns: Mapping[str, Any], name: str) -> list[languages.Language] | None:
    """Returns the language of each row's text if the vocabulary splits words."""
    if not getattr(self.vocabulary, "pretokenize", False):
      return None
    return [_LANGUAGES[index] for index in columns[name][:, 0].tolist()]


def _padded_ids(ids: Sequence[Sequence[int]], length: int | None) -> np.ndarray:
  """Returns texts of ids, int32 [N, length]; with None, the length of the longest text."""
  size_N = np.fromiter(map(len, ids), int, len(ids))
  width = length or int(size_N.max(initial=1))  # TensorFlow crashes on rows of no ids.
  ids_NT = np.zeros([len(ids), width], np.int32)
  flat = itertools.chain.from_iterable(ids)
  ids_NT[np.arange(width) < size_N[:, None]] = np.fromiter(flat, np.int32, int(size_N.sum()))
  return ids_NT


@dataclasses.dataclass(frozen=True)
class Texts:
  """A table of texts, and how they become rows of token ids.

  Attributes:
    name: Name for messages.
    table: The texts.
    tokenizer: Turns them into ids.
  """

  name: str
  table: tables.Table
  tokenizer: Tokenizer

  def spec(self, lengths: Mapping[str, Any]) -> dict[str, jax.ShapeDtypeStruct]:
    """Returns dtype and shape of each column of a row; texts without a length have None."""
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
  """Returns a shard's rows of tables, about `CHUNK` at a time, as columns [N, ...].

  The state of an iterator is one number, so that a run resumes exactly. The order depends on the
  seed and the shard: each epoch of a table is shuffled anew.

  Args:
    texts: The tables, with one tokenizer.
    rates: How often each is sampled.
    lengths: The columns to return; see `Tokenizer`.
    shuffle: Whether to shuffle.
    seed: Seed of the order (default: the time).
    shard: Number of the shard, and number of shards. A shard has whole files of a table if they
      divide evenly, otherwise every n-th row.
    num_epochs: Number of epochs (default: endless). The rows end before any table would begin
      another epoch.
    reading: Threads, and number of chunks to read ahead.
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
  if num_epochs is not None:  # the rows end where the first table has none left
    ends = [divmod(len(stream), int(count)) for stream, count in zip(streams, counts, strict=True)]
    total = min(
      cycles * len(pattern) + int(np.flatnonzero(pattern == index)[row])
      for index, (cycles, row) in enumerate(ends)
    )

  # The pattern repeats in cycles. `rank` numbers the rows of each table within a cycle.
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
    # Tokenize the rows of all tables together, then restore the order of the pattern.
    rows = texts[0].tokenizer(_join(columns_by_table), {**lengths, _SLOT: None})
    order_N = np.argsort(rows.pop(_SLOT))
    if not len(order_N):
      return None  # Grain skips it
    return {name: column[order_N] for name, column in rows.items()}

  chunks = grain.MapDataset.range(-(-total // CHUNK))
  return chunks.map(read).to_iter_dataset(reading)


def check_texts(texts: Sequence[Texts], lengths: Mapping[str, Any], *, warn: bool = True) -> None:
  """Warns of dropped pairs and cut texts in the first chunk of each table.

  Args:
    texts: The tables.
    lengths: Maximum length of each column.
    warn: Whether to log the warning.

  Raises:
    InputError: all pairs of a table are dropped.
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
        f"{source.name}: no pair is left: of {len(table) + table.dropped} pairs, {table.dropped} "
        f"have an empty side, and {len(table)} an over-long one; check the files and max_length "
        f"({source.tokenizer.max_length})"
      )
  if warn and (dropped or cut):
    logging.warning(
      "Of the first %d pairs, dropped: %d (an empty text, or one above MAX_PAIR_LENGTH); texts cut "
      "to %d tokens: %d",
      *(total, dropped, min(longer.values(), default=1) - 1, cut),
    )


def _pattern(rates: Sequence[float], seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
  """Returns an order, to be repeated, in which tables take turns at their rates.

  Returns:
    The table of each row [P], its number among the rows of that table [P], and the number of rows
    of each table.
  """
  counts = np.ones(len(rates), int)
  if len(rates) > 1:
    # At least one row per table, so that rounding removes no table.
    counts = np.maximum(1, np.rint(_PATTERN * np.array(rates) / sum(rates))).astype(int)
  table_P = np.repeat(np.arange(len(rates)), counts)
  pattern = np.random.default_rng([seed]).permutation(table_P)
  rank = np.empty(len(pattern), int)
  rank[np.argsort(pattern, kind="stable")] = np.concatenate([np.arange(count) for count in counts])
  return pattern, rank, counts


@dataclasses.dataclass(frozen=True)
class _Stream:
  """A host's rows of all epochs of a table: every `step`-th row, from number `first` on.

  Each epoch has a new order: rows are shuffled within windows, and every window stays in place.

  Attributes:
    table: The table.
    seed: Seed of the order, or None for the order of the table.
    first: Number of the first row.
    step: Number of hosts that share the rows.
    num_epochs: Number of epochs, or None for endless rows.
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
      # One permutation for each epoch and window, the same on every host.
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
  """Concatenates the rows of several tables."""
  return {
    name: np.concatenate([columns[name] for columns in tables_columns])
    if isinstance(tables_columns[0][name], np.ndarray)
    else [row for columns in tables_columns for row in columns[name]]
    for name in tables_columns[0]
  }


class BatchIterator(dataset_iterator.DatasetIterator):
  """Iterates over the batches of a Grain dataset; upstream T5X accepts it, too.

  Args:
    dataset: The dataset.
    element_spec: Shape and dtype of the columns of a batch.
    shard: Number of the iterator's share of the rows, and number of shares.
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
    """Shape and dtype of the columns of a batch."""
    return self._element_spec

  def __next__(self) -> Batch:
    batch = next(self._iterator)
    self._count += 1
    return batch

  def reset(self) -> None:
    """Starts over."""
    self._iterator = iter(self._dataset)
    self._count = 0

  def state(self) -> dict[str, Any]:
    """Returns the number of batches so far, and the state of the dataset, for JSON."""
    dataset = {"shard": self._shard, "iterator": self._iterator.get_state()}
    return {"batches": self._count, "dataset": dataset}

  def set_state(self, state: Mapping[str, Any]) -> None:
    """Continues after the batches of a state; only before the first batch.

    Raises:
      ValueError: the state is of another share of the rows.
    """
    if (shard := state["dataset"]["shard"]) != self._shard:
      raise ValueError(f"it is of shard {shard} of the data, not {self._shard}")
    self._count = int(state["batches"])
    self._iterator.set_state(state["dataset"]["iterator"])

  def save(self, filename: Any) -> None:
    """Writes the state, for upstream T5X."""
    epath.Path(filename).write_text(json.dumps(self.state()))

  def restore(self, filename: Any) -> None:
    """Reads the state, for upstream T5X."""
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
) -> BatchIterator:
  """Returns batches of rows, each from one dataset; drops an incomplete last batch.

  Args:
    rows: Datasets of some rows at a time, as columns [N, ...].
    rates: How often each dataset is sampled.
    spec: Shape and dtype of the columns of a row.
    size: Rows per batch.
    shard: Number of this share of the rows, and number of shares.
    seed: See `length_batches`.
    boundaries: See `length_batches`; with None, batches have texts of any length.
  """
  if boundaries is None:
    batches = [grain.experimental.RebatchIterDataset(x, size, drop_remainder=True) for x in rows]
  else:
    longest = max(spec[name].shape[0] for name in SIDES if name in spec)
    batches = [length_batches(x, size, longest, seed, boundaries) for x in rows]
  dataset = batches[0] if len(batches) == 1 else grain.IterDataset.mix(batches, rates)
  columns = {name: jax.ShapeDtypeStruct((size, *x.shape), x.dtype) for name, x in spec.items()}
  return BatchIterator(dataset, columns, shard)


def length_batches(
  rows: grain.IterDataset,
  size: int,
  longest: int,
  seed: int | None,
  boundaries: Sequence[int] = BOUNDARIES,
) -> grain.IterDataset:
  """Returns batches of rows of similar length; drops an incomplete last batch.

  Sorts the rows of at least `GROUP` batches and at least `GROUP_ROWS` rows at a time.

  Args:
    rows: Some rows at a time, as columns [N, ...], with token ids under `inputs` and perhaps
      `targets` and `negatives`; 0 is padding.
    size: Rows per batch.
    longest: Maximum length of `inputs` and `targets`.
    seed: Seed of the order of a group's batches; None puts short batches first.
    boundaries: Maximum length of each length class, ascending; the longest length is added.
  """
  bounds = [*(bound for bound in boundaries if bound < longest), longest]

  def cut(number: int, rows: Batch) -> list[Batch]:
    texts = [rows[name] for name in (*SIDES, "negatives") if name in rows]
    # The length of the longest text of each row; hard negatives are [N, K, T].
    lengths = [np.count_nonzero(x, axis=-1).max(axis=tuple(range(1, x.ndim - 1))) for x in texts]
    # Rows of one length class keep their order, because the sort is stable.
    class_N = np.searchsorted(bounds, np.max(lengths, axis=0))
    count = len(class_N) // size
    order_KN = np.argsort(class_N[: count * size], kind="stable").reshape(count, size)
    if seed is not None:
      order_KN = np.random.default_rng([seed % 2**63, number]).permutation(order_KN)
    return [{name: column[row_N] for name, column in rows.items()} for row_N in order_KN]

  group_size = size * max(GROUP, -(-GROUP_ROWS // size))
  groups = grain.experimental.RebatchIterDataset(rows, group_size)
  return grain.experimental.FlatMapIterDataset(groups.map_with_index(cut), _Flatten())


class _Flatten(grain.experimental.FlatMapTransform):
  max_fan_out = 1 << 20

  def flat_map(self, element: list[Batch]) -> list[Batch]:
    return element
