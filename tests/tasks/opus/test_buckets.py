import numpy as np
import pyarrow as pa
import pytest

from vmsst import errors
from vmsst.tasks.opus import buckets


def _rows(count):
  """Made-up rows: key, texts; keys of all 64 bits, empty and long texts."""
  for i in range(count):
    key = (i * 0x9E3779B97F4A7C15) % 2**64
    yield key, ("ä" * (i % 5)).encode(), ("文" * (i % 11) + str(i)).encode()


def _write(path, count=500, **options):
  with buckets.writing(str(path), 4, **options) as writer:
    for row in _rows(count):
      writer.add(*row)


def _read(path, bucket):
  tables = list(buckets.read(str(path), buckets.CLEANED, bucket))
  names = ("key", "source", "target")
  return [
    row for table in tables for row in zip(*(table[x].to_pylist() for x in names), strict=True)
  ]


@pytest.mark.parametrize("memory_bytes", [1, 2000, None])
def test_rows_come_back_by_bucket_in_their_order(tmp_path, memory_bytes):
  path = tmp_path / "new" / "x.parquet"
  _write(path, memory_bytes=memory_bytes)
  for bucket in range(4):
    assert _read(path, bucket) == [row for row in _rows(500) if row[0] % 4 == bucket]
  assert [entry.name for entry in path.parent.iterdir()] == ["x.parquet"]


def test_merged_tables_come_back_in_their_order(tmp_path, monkeypatch):
  monkeypatch.setattr(buckets, "_GROUP_ROWS", 7)
  texts = [str(i).encode() for i in range(50)]
  rows = pa.table([np.arange(50), np.arange(50) % 3, texts, texts[::-1]], buckets.MERGED)
  buckets.write_table(str(tmp_path / "x"), rows)
  groups = list(buckets.read(str(tmp_path / "x"), buckets.MERGED))
  assert [len(group) for group in groups] == [7] * 7 + [1]
  assert pa.concat_tables(groups).to_pydict() == rows.to_pydict()


def test_a_file_without_rows_is_whole(tmp_path):
  _write(tmp_path / "x", 0)
  assert list(buckets.read(str(tmp_path / "x"), buckets.CLEANED, 2)) == []
  buckets.write_table(str(tmp_path / "y"), buckets.CLEANED.empty_table())
  assert [len(table) for table in buckets.read(str(tmp_path / "y"), buckets.CLEANED)] in ([], [0])


@pytest.mark.parametrize("damage", ["empty", "cut", "index", "page"])
def test_damaged_files_are_named(tmp_path, damage):
  path = tmp_path / "x.parquet"
  _write(path)
  content = bytearray(path.read_bytes())
  footer = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
  if damage == "empty":
    content = b""
  elif damage == "cut":
    content = content[:-7]
  elif damage == "index":
    content[footer] ^= 1
  else:
    content[100] ^= 1
  path.write_bytes(bytes(content))
  with pytest.raises(errors.InputError, match=r"x\.parquet: damaged .*delete it"):
    [list(buckets.read(str(path), buckets.CLEANED, bucket)) for bucket in range(4)]
