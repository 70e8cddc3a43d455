"""Parquet files between the stages of a build.

The stage *clean* distributes its rows over buckets by their keys. In its files, row group i belongs
to bucket i modulo the number of buckets:

    with buckets.Writer("x.parquet", count=16) as writer:
      writer.add(key, b"Hallo", b"hello")
    for table in buckets.read("x.parquet", bucket=3):
      table["key"], table["source"], table["target"]

Pages have checksums, which are verified when they are read.
"""

import os
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import parquet

MEMORY_BYTES = 32 << 20
"""Memory of the rows that a writer holds before it writes them."""
_TEXTS = {"source": pa.large_binary(), "target": pa.large_binary()}
CLEANED = pa.schema({"key": pa.uint64(), **_TEXTS})
"""Columns of cleaned rows: the key, and two texts in UTF-8."""
MERGED = pa.schema({"rank": pa.uint64(), "tag": pa.uint16(), **_TEXTS})
"""Columns of merged rows: the rank, the number of the corpus, and the texts."""
_ROW_BYTES = 160  # Memory of a row's Python objects.
_GROUP_ROWS = 4000
_COUNT = b"buckets"
_OPTIONS: dict[str, Any] = {
  "compression": "zstd",
  "compression_level": 1,
  "use_dictionary": False,
  "write_statistics": False,
  "write_page_checksum": True,
}


class Writer:
  """Writes a file of cleaned rows in buckets, in a `with` statement.

  Args:
    path: The file.
    count: Number of buckets.
  """

  def __init__(self, path: str | os.PathLike[str], count: int):
    self._count = count
    schema = CLEANED.with_metadata({_COUNT: str(count)})
    self._file = parquet.ParquetWriter(path, schema, **_OPTIONS)
    self._clear()

  def __enter__(self) -> "Writer":
    return self

  def __exit__(self, kind: object, error: object, trace: object) -> None:
    """Writes the remaining rows and closes the file."""
    with self._file:
      if error is None:
        self._flush()

  def add(self, key: int, source: bytes, target: bytes) -> None:
    """Adds a row to the bucket of its key: `key % count`."""
    self._keys.append(key)
    self._sources.append(source)
    self._targets.append(target)
    self._bytes += len(source) + len(target) + _ROW_BYTES
    if self._bytes >= MEMORY_BYTES:
      self._flush()

  def _flush(self) -> None:
    """Writes the rows so far: one row group for each bucket."""
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


def write_table(path: str | os.PathLike[str], rows: pa.Table) -> None:
  """Writes a file of one bucket."""
  schema = rows.schema.with_metadata({_COUNT: "1"})
  with parquet.ParquetWriter(path, schema, **_OPTIONS) as file:
    file.write_table(rows, row_group_size=_GROUP_ROWS)


def read(path: str, bucket: int = 0, columns: Sequence[str] | None = None) -> Iterator[pa.Table]:
  """Yields the rows of a bucket in the order in which they were written, one row group at a time.

  Args:
    path: The file.
    bucket: Number of the bucket.
    columns: Names of the columns to read; default: all.
  """
  with parquet.ParquetFile(path, page_checksum_verification=True) as file:
    count = int(file.schema_arrow.metadata[_COUNT])
    for group in range(bucket, file.num_row_groups, count):
      yield file.read_row_group(group, columns, use_threads=False)
