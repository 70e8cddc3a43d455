import numpy as np
import pyarrow as pa
import pytest

from vmsst.opus import buckets


def _numbered(count):
  """Rows of key and texts: keys of all 64 bits, empty and long texts."""
  for i in range(count):
    key = (i * 0x9E3779B97F4A7C15) % 2**64
    yield key, ("ä" * (i % 5)).encode(), ("文" * (i % 11) + str(i)).encode()


def _write(path, count):
  with buckets.Writer(path, 4) as writer:
    for row in _numbered(count):
      writer.add(*row)


@pytest.mark.parametrize("memory_bytes", [1, 2000, buckets.MEMORY_BYTES])
def test_rows_come_back_by_bucket_in_their_order(tmp_path, monkeypatch, memory_bytes):
  monkeypatch.setattr(buckets, "MEMORY_BYTES", memory_bytes)
  _write(tmp_path / "x", 500)
  for bucket in range(4):
    rows = [
      tuple(row.values())
      for table in buckets.read(tmp_path / "x", bucket)
      for row in table.to_pylist()
    ]
    assert rows == [row for row in _numbered(500) if row[0] % 4 == bucket]


def test_merged_tables_and_empty_files_come_back(tmp_path, monkeypatch):
  monkeypatch.setattr(buckets, "_GROUP_ROWS", 7)
  texts = [str(i).encode() for i in range(50)]
  rows = pa.table([np.arange(50), np.arange(50) % 3, texts, texts[::-1]], buckets.MERGED)
  buckets.write_table(tmp_path / "x", rows)
  assert pa.concat_tables(buckets.read(tmp_path / "x")).to_pydict() == rows.to_pydict()
  _write(tmp_path / "y", 0)
  assert list(buckets.read(tmp_path / "y", 2)) == []


def test_a_damaged_page_is_found(tmp_path):
  _write(tmp_path / "x", 500)
  content = bytearray((tmp_path / "x").read_bytes())
  content[100] ^= 1
  (tmp_path / "x").write_bytes(content)
  with pytest.raises(OSError, match="CRC checksum"):
    [list(buckets.read(tmp_path / "x", bucket)) for bucket in range(4)]
