"""Parquet files between the stages of a build.

The stage *clean* distributes its rows over buckets by their keys. In its files, row group i belongs
to bucket i modulo the number of buckets:

    with buckets.writing("clean/x.parquet", count=16) as writer:
      writer.add(key, b"Hallo", b"hello")
    for table in buckets.read("clean/x.parquet", buckets.CLEANED, bucket=3):
      table["key"], table["source"], table["target"]

Files are written atomically. Their pages have checksums, which are verified when they are read.
"""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import parquet

from vmsst import errors
from vmsst.jobs import atomic_files

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
  """Adds rows to a file that `writing` makes."""

  def __init__(self, file: parquet.ParquetWriter, count: int):
    self._file = file
    self._count = count
    self._clear()

  def add(self, key: int, source: bytes, target: bytes) -> None:
    """Adds a row to the bucket of its key: `key % count`."""
    self._keys.append(key)
    self._sources.append(source)
    self._targets.append(target)
    self._bytes += len(source) + len(target) + _ROW_BYTES
    if self._bytes >= MEMORY_BYTES:
      self.flush()

  def flush(self) -> None:
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


@contextlib.contextmanager
def writing(path: str, count: int) -> Iterator[Writer]:
  """Yields the writer of a file; if the context raises, the file stays as it was.

  Args:
    path: The file; its folder is made.
    count: Number of buckets.
  """
  schema = CLEANED.with_metadata({_COUNT: str(count)})
  with _parquet_file(path, schema) as file:
    writer = Writer(file, count)
    yield writer
    writer.flush()


def write_table(path: str, rows: pa.Table) -> None:
  """Writes a file of one bucket."""
  with _parquet_file(path, rows.schema.with_metadata({_COUNT: "1"})) as file:
    file.write_table(rows, row_group_size=_GROUP_ROWS)


def read(
  path: str, schema: pa.Schema, bucket: int = 0, columns: Sequence[str] | None = None
) -> Iterator[pa.Table]:
  """Yields the rows of a bucket in the order in which they were written, one row group at a time.

  Args:
    path: The file.
    schema: Its columns.
    bucket: Number of the bucket.
    columns: Names of the columns to read; None: all.

  Raises:
    InputError: the file is damaged.
    OSError: the file cannot be opened or read.
  """
  try:
    with parquet.ParquetFile(path, page_checksum_verification=True) as file:
      if not file.schema_arrow.equals(schema):
        raise ValueError("other columns")
      count = int(file.schema_arrow.metadata[_COUNT])
      for group in range(bucket, file.num_row_groups, count):
        yield file.read_row_group(group, columns, use_threads=False)
  except (pa.ArrowException, OSError, ValueError, KeyError, TypeError) as error:
    if getattr(error, "errno", None):
      raise
    reason = " ".join(str(error).split())
    raise errors.InputError(
      f"{path}: damaged ({reason}); delete it and rerun the same command"
    ) from None


@contextlib.contextmanager
def _parquet_file(path: str, schema: pa.Schema) -> Iterator[parquet.ParquetWriter]:
  with (
    atomic_files.atomic_file(path) as stream,
    parquet.ParquetWriter(stream, schema, **_OPTIONS) as file,
  ):
    yield file
