import pytest

from vmsst import errors
from vmsst.tasks.opus import blocks


def _rows(count):
  """Made-up rows: bucket, key, tag, texts; keys of all 64 bits, empty and long texts."""
  for i in range(count):
    key = (i * 0x9E3779B97F4A7C15) % 2**64
    yield key % 4, key, i % 7, ("ä" * (i % 5)).encode(), ("文" * (i % 11) + str(i)).encode()


def _write(path, count=500, **options):
  with blocks.writing(str(path), 4, **options) as writer:
    for row in _rows(count):
      writer.add(*row)


@pytest.mark.parametrize("block_bytes", [1, 2000, 1 << 20])
def test_rows_come_back_by_bucket_in_their_order(tmp_path, block_bytes):
  path = tmp_path / "new" / "x.blocks"
  _write(path, block_bytes=block_bytes)
  for bucket in range(4):
    found = [
      (bucket, int(block.keys_N[i]), int(block.tags_N[i]), *block.text(i))
      for block in blocks.read(str(path), bucket)
      for i in range(len(block))
    ]
    assert found == [row for row in _rows(500) if row[0] == bucket]
  assert [entry.name for entry in path.parent.iterdir()] == ["x.blocks"]


def test_rows_of_many_buckets_fill_no_more_memory(tmp_path, monkeypatch):
  monkeypatch.setattr(blocks, "MEMORY_BYTES", 40_000)
  with blocks.writing(str(tmp_path / "x"), 64) as writer:
    for i in range(3000):
      writer.add(i % 64, i, 0, b"text", b"text")
      assert sum(pending.bytes for pending in writer._pending) < 40_000 + 64 * 200
  assert (
    sum(len(block) for bucket in range(64) for block in blocks.read(str(tmp_path / "x"), bucket))
    == 3000
  )


def test_a_file_without_rows_is_whole(tmp_path):
  _write(tmp_path / "x", 0)
  assert list(blocks.read(str(tmp_path / "x"), 2)) == []


def test_an_error_leaves_the_old_file_and_nothing_else(tmp_path):
  path = tmp_path / "x"
  _write(path)
  before = path.read_bytes()

  def fail():
    with blocks.writing(str(path)) as writer:
      writer.add(0, 1, 0, b"a", b"b")
      raise ZeroDivisionError

  with pytest.raises(ZeroDivisionError):
    fail()
  assert path.read_bytes() == before
  assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("damage", ["empty", "cut", "index", "block"])
def test_damaged_files_are_named(tmp_path, damage):
  path = tmp_path / "x.blocks"
  _write(path)
  content = bytearray(path.read_bytes())
  if damage == "empty":
    content = b""
  elif damage == "cut":
    content = content[:-7]
  elif damage == "index":
    content[-40] ^= 1
  else:
    content[100] ^= 1
  path.write_bytes(bytes(content))
  with pytest.raises(errors.InputError, match=r"x\.blocks: damaged .*delete it"):
    [list(blocks.read(str(path), bucket)) for bucket in range(4)]
