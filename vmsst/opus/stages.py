"""The stages of a dataset build: clean releases, merge buckets, and write shards.

Each stage is a function that writes one file and returns statistics for the data card.

The intermediate files are Parquet files with checksums, which are verified on reading. The stage
`clean` assigns each row to a bucket by the row's key. In the files that `clean` writes, Parquet row
group i belongs to bucket i modulo the number of buckets.
"""

import collections
import functools
import hashlib
import heapq
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import parquet

from vmsst.data import dataset_shards, formats
from vmsst.opus import cleaning, releases

READ, KEPT, HELD_OUT = "read", "kept", "held_out"
DUPLICATE, NEAR_DUPLICATE = "duplicate", "near_duplicate"
REASONS = (*cleaning.REASONS, HELD_OUT, DUPLICATE, NEAR_DUPLICATE)
"""Reasons for dropping a pair, in the order of the checks."""
FAULTS_KEPT = 20
"""Maximum number of faults to list for each release. All faults are counted."""
FORMAT = 2
"""Version of the stages. Increase it when a stage's output changes for the same input."""
MEMORY_BYTES = 32 << 20  # bytes of rows that a writer buffers in memory before it writes them
_TEXTS = {"source": pa.large_binary(), "target": pa.large_binary()}
CLEANED = pa.schema({"key": pa.uint64(), **_TEXTS})
"""Columns of cleaned rows: the key and the two UTF-8 texts."""
MERGED = pa.schema({"rank": pa.uint64(), "tag": pa.uint16(), **_TEXTS})
"""Columns of merged rows: the rank, the corpus index (`tag`) and the two UTF-8 texts."""
_ROW_BYTES = 160  # Bytes of memory for a row's Python objects.
_GROUP_ROWS = 4000
_COUNT = b"buckets"
_OPTIONS: dict[str, Any] = {
  "compression": "zstd",
  "compression_level": 1,
  "use_dictionary": False,
  "write_statistics": False,
  "write_page_checksum": True,
}

CleanFile = tuple[str, str]  # path of a cleaned release, and the name of its corpus
Bounds = Mapping[str, tuple[int, int]]
"""For each corpus, the half-open range [low, high) of ranks to select."""


class BucketWriter:
  """Context manager that writes cleaned rows to a file with buckets.

  Args:
    path: The file.
    count: Number of buckets.
  """

  def __init__(self, path: str | os.PathLike[str], count: int):
    self._count = count
    schema = CLEANED.with_metadata({_COUNT: str(count)})
    self._file = parquet.ParquetWriter(path, schema, **_OPTIONS)
    self._clear()

  def __enter__(self) -> "BucketWriter":
    return self

  def __exit__(self, kind: object, error: object, trace: object) -> None:
    """Writes the remaining rows and closes the file."""
    with self._file:
      if error is None:
        self._flush()

  def add(self, key: int, source: bytes, target: bytes) -> None:
    """Adds a row to the bucket `key % count`."""
    self._keys.append(key)
    self._sources.append(source)
    self._targets.append(target)
    self._bytes += len(source) + len(target) + _ROW_BYTES
    if self._bytes >= MEMORY_BYTES:
      self._flush()

  def _flush(self) -> None:
    """Writes the buffered rows, as one row group for each bucket."""
    if not self._keys:
      return
    keys_N = np.array(self._keys, np.uint64)
    buckets_N = keys_N % np.uint64(self._count)
    order_N = np.argsort(buckets_N, kind="stable")
    rows = pa.table([keys_N, self._sources, self._targets], CLEANED).take(order_N)
    ends_B = np.searchsorted(buckets_N[order_N], np.arange(self._count), side="right")
    start = 0
    for end in ends_B.tolist():
      self._file.write_table(rows.slice(start, end - start))
      start = end
    self._clear()

  def _clear(self) -> None:
    self._keys: list[int] = []
    self._sources: list[bytes] = []
    self._targets: list[bytes] = []
    self._bytes = 0


def read_bucket(
  path: str, bucket: int = 0, columns: Sequence[str] | None = None
) -> Iterator[pa.Table]:
  """Yields a bucket's rows, one row group at a time, in the order in which they were added.

  Args:
    path: The file.
    bucket: Number of the bucket.
    columns: Columns to read (default: all columns).
  """
  with parquet.ParquetFile(path, page_checksum_verification=True) as file:
    count = int(file.schema_arrow.metadata[_COUNT])
    for group in range(bucket, file.num_row_groups, count):
      yield file.read_row_group(group, columns, use_threads=False)


def clean(
  path: str | os.PathLike[str],
  release: releases.Release,
  rules: cleaning.Cleaning,
  held_out: tuple[str, str],
  count: int,
) -> dict[str, Any]:
  """Reads, normalizes and filters one release.

  Args:
    path: Output file.
    release: The release.
    rules: Rules for normalizing and filtering.
    held_out: Path of a file with the `EvaluationSentences` to exclude, and the sentences' digest.
    count: Number of buckets. Each pair is written to the bucket `key % count`, where `key` is the
      hash of the pair from `cleaning.keys`.

  Returns:
    The numbers of pairs that were read, kept, and dropped for each reason; the numbers of held-out
    pairs by evaluation set; the first faults; and the number of faults of each kind.
  """
  counts: collections.Counter[str] = collections.Counter()
  by_set: collections.Counter[str] = collections.Counter()
  kinds: collections.Counter[str] = collections.Counter()
  faults: list[formats.Fault] = []
  cleaner = cleaning.Cleaner(rules, *release.pair)
  matching_sets = _evaluation_sentences(*held_out).sets
  with BucketWriter(path, count) as writer:
    for row in releases.read(release):
      if isinstance(row, formats.Fault):
        kinds[row.what] += 1
        if len(faults) < FAULTS_KEPT:
          faults.append(row)
        continue
      counts[READ] += 1
      texts = cleaner(*row.texts)
      if isinstance(texts, str):
        counts[texts] += 1
        continue
      source_key, target_key, key = cleaning.keys(*texts)
      if sets := {*matching_sets(source_key), *matching_sets(target_key)}:
        counts[HELD_OUT] += 1
        by_set.update(sets)
        continue
      counts[KEPT] += 1
      writer.add(key, *(text.encode() for text in texts))
  return {"counts": counts, "held_out": by_set, "faults": faults, "fault_kinds": kinds}


@functools.lru_cache(maxsize=1)  # Load the sentences only once per process.
def _evaluation_sentences(path: str, digest: str) -> cleaning.EvaluationSentences:
  del digest
  return cleaning.EvaluationSentences.load(path)


def merge(
  path: str | os.PathLike[str], files: Sequence[CleanFile], bucket: int, seed: int
) -> dict[str, dict[str, int]]:
  """Removes duplicates from one bucket of a language pair and shuffles the remaining rows.

  If several pairs have the same key, only the first pair (by file, then by row) is kept.

  Args:
    path: Output file. The tag of each row is the index of its corpus in `corpora(files)`.
    files: The cleaned releases of the language pair, in order of precedence.
    bucket: Number of the bucket.
    seed: Seed for shuffling.

  Returns:
    The numbers of rows, duplicates and kept rows for each corpus.
  """
  names = corpora(files)
  tables, tags = [CLEANED.empty_table()], [0]
  for file, corpus in files:
    for table in read_bucket(file, bucket):
      tables.append(table)
      tags.append(names.index(corpus))
  tags_N = np.repeat(tags, [len(table) for table in tables])
  rows = pa.concat_tables([table.replace_schema_metadata() for table in tables])
  keys_N = rows["key"].to_numpy()
  texts = rows.select(["source", "target"])
  # For each key, np.unique returns the index of the first row with this key. All later rows with
  # the key are repeats. A repeat is a duplicate if its texts are the same as the first row's texts.
  # Otherwise, it is a near duplicate, which differs in case, punctuation or spaces.
  _, first_K, group_N = np.unique(keys_N, return_index=True, return_inverse=True)
  first_N = first_K[group_N]
  repeated_R = np.flatnonzero(first_N != np.arange(len(first_N)))
  same_R = np.logical_and.reduce(
    [
      pc.equal(column.take(repeated_R), column.take(first_N[repeated_R])).to_numpy()
      for column in texts.columns
    ]
  )
  ranks_K = ranks(keys_N[first_K], tags_N[first_K], names, seed)
  order_K = np.lexsort((keys_N[first_K], ranks_K))
  ranks_K, row_K = ranks_K[order_K], first_K[order_K]
  tags_K = tags_N[row_K]
  merged = [ranks_K, tags_K.astype(np.uint16), *texts.take(row_K).columns]
  schema = MERGED.with_metadata({_COUNT: "1"})
  with parquet.ParquetWriter(path, schema, **_OPTIONS) as file:
    file.write_table(pa.table(merged, schema), row_group_size=_GROUP_ROWS)
  tags_by_fact = {
    READ: tags_N,
    DUPLICATE: tags_N[repeated_R[same_R]],
    NEAR_DUPLICATE: tags_N[repeated_R[~same_R]],
    KEPT: tags_K,
  }
  return {
    corpus: {fact: int(np.sum(tags == tag)) for fact, tags in tags_by_fact.items()}
    for tag, corpus in enumerate(names)
  }


def corpora(files: Sequence[CleanFile]) -> list[str]:
  """Returns the distinct corpora of cleaned files, in order of precedence."""
  return list(dict.fromkeys(corpus for _, corpus in files))


def ranks(keys_N: np.ndarray, tags_N: np.ndarray, corpora: Sequence[str], seed: int) -> np.ndarray:
  """Returns pseudo-random ranks, uint64 [N], that depend only on the seed, pair key and corpus."""
  secret = f"rank {seed}".encode()
  # Use a hash that is keyed with the seed. Hash each corpus name only once and copy the state.
  states = [hashlib.blake2b(name.encode(), digest_size=8, key=secret) for name in corpora]
  keys = keys_N.astype("<u8").tobytes()
  digests = bytearray()
  for row, tag in enumerate(tags_N.tolist()):
    state = states[tag].copy()
    state.update(keys[8 * row : 8 * row + 8])
    digests += state.digest()
  return np.frombuffer(bytes(digests), "<u8").astype(np.uint64)


def load_ranks(path: str) -> np.ndarray:
  """Returns the ranks in a merged bucket, uint64 [N], sorted by corpus and then by rank."""
  rows = pa.concat_tables(
    [MERGED.empty_table().select(["rank", "tag"]), *read_bucket(path, 0, ["rank", "tag"])]
  )
  return rows["rank"].to_numpy()[np.argsort(rows["tag"].to_numpy(), kind="stable")]


def write(
  path: str | os.PathLike[str],
  merged: Sequence[str],
  names: Sequence[str],
  bounds: Bounds,
  languages: tuple[str, str],
) -> dict[str, int]:
  """Writes one shard of a split, with rows from merged buckets, sorted by rank.

  Args:
    path: Output file, in the format of `dataset_shards`.
    merged: Files with merged buckets.
    names: Corpus names. The tag of a row is the index of its corpus in this list.
    bounds: Range of ranks to select from each corpus.
    languages: Source and target language codes.

  Returns:
    The number of rows, and the total size of the records in bytes.
  """
  # Convert to inclusive ranges, because 2**64 does not fit in uint64. The range (1, 0) is empty.
  bounds_C = [bounds[name] for name in names]
  ranges = [(low, high - 1) if low < high else (1, 0) for low, high in bounds_C]
  low_C, last_C = np.array(ranges, np.uint64).T

  def rows(file: str) -> Iterator[tuple[int, bytes, bytes, bytes]]:
    for table in read_bucket(file):
      rank_N, tag_N = table["rank"].to_numpy(), table["tag"].to_numpy()
      # Rows are sorted by rank. After a rank above all ranges, no row is selected.
      if not len(table) or rank_N[0] > last_C.max():
        return
      inside_N = np.flatnonzero((rank_N >= low_C[tag_N]) & (rank_N <= last_C[tag_N]))
      selection = table.take(inside_N)
      yield from zip(
        selection["rank"].to_pylist(),
        (names[tag].encode() for tag in tag_N[inside_N].tolist()),
        selection["source"].to_pylist(),
        selection["target"].to_pylist(),
        strict=True,
      )

  examples = dataset_shards.Examples(*languages)
  # The rows in each file are sorted by rank, so the merged rows are also sorted by rank.
  records = (examples.example(*texts) for _, *texts in heapq.merge(*map(rows, merged)))
  count, size = dataset_shards.write(path, records)
  return {"rows": count, "bytes": size}
