"""Files of rows, by bucket, in compressed blocks, with an index: what the stages hand on.

A row is a 64-bit key, a small number (the tag) and two texts in UTF-8. A file is there whole or
not at all: it is written beside its place under another name first.

    with blocks.writing("clean/x.blocks", buckets=16) as writer:
      writer.add(key % 16, key, 0, b"Hallo", b"hello")
    for block in blocks.read("clean/x.blocks", bucket=3):
      block.keys_N, block.text(0)
"""

import contextlib
import os
import struct
import zlib
from collections.abc import Iterator
from typing import IO

import numpy as np

from vmsst import errors
from vmsst.files import atomic_files

BLOCK_BYTES = 1 << 18
"""What the rows of a block take in memory."""
MEMORY_BYTES = 64 << 20
"""What all rows take that a writer holds, however many its buckets."""
_ROW_BYTES = 160  # What Python's own objects take of a row.
_MAGIC = b"vmsstblk1"
_TRAILER = struct.Struct(f"<QQI{len(_MAGIC)}s")  # Blocks, start of the index, its CRC, magic.
_ENTRY = np.dtype([("bucket", "<u4"), ("rows", "<u4"), ("start", "<u8"), ("bytes", "<u8")])


class Block:
  """Some rows of one bucket, in the order in which they were written.

  Attributes:
    keys_N: uint64.
    tags_N: uint16.
    starts_N: Where each row's first text starts in `texts`.
    middles_N: Where its second text starts.
    ends_N: Where that ends.
    texts: All texts, UTF-8, one behind the other.
  """

  def __init__(self, payload: bytes, rows: int):
    self.keys_N = np.frombuffer(payload, "<u8", rows)
    self.tags_N = np.frombuffer(payload, "<u2", rows, 8 * rows)
    lengths_N2 = np.frombuffer(payload, "<u4", 2 * rows, 10 * rows).reshape(rows, 2)
    bounds = np.zeros(2 * rows + 1, np.int64)
    np.cumsum(lengths_N2.ravel(), out=bounds[1:])
    self.starts_N, self.middles_N, self.ends_N = bounds[:-1:2], bounds[1::2], bounds[2::2]
    self.texts = payload[18 * rows :]

  def __len__(self) -> int:
    return len(self.keys_N)

  def text(self, row: int) -> tuple[bytes, bytes]:
    """Both texts of a row."""
    middle = self.middles_N[row]
    return self.texts[self.starts_N[row] : middle], self.texts[middle : self.ends_N[row]]


class Writer:
  """Takes the rows of a file that `writing` makes."""

  def __init__(self, stream: IO[bytes], buckets: int, block_bytes: int):
    self._stream = stream
    self._limit = min(block_bytes, MEMORY_BYTES // buckets)
    self._pending = [_Pending() for _ in range(buckets)]
    self._index: list[tuple[int, int, int, int]] = []

  def add(self, bucket: int, key: int, tag: int, source: bytes, target: bytes) -> None:
    """Adds a row to a bucket."""
    pending = self._pending[bucket]
    pending.keys.append(key)
    pending.tags.append(tag)
    pending.texts += (source, target)
    pending.bytes += len(source) + len(target) + _ROW_BYTES
    if pending.bytes >= self._limit:
      self._flush(bucket)

  def finish(self) -> None:
    """Writes what is left, and the index."""
    for bucket, pending in enumerate(self._pending):
      if pending.keys:
        self._flush(bucket)
    index = np.array(self._index, _ENTRY).tobytes()
    start = self._stream.tell()
    self._stream.write(index)
    self._stream.write(_TRAILER.pack(len(self._index), start, zlib.crc32(index), _MAGIC))

  def _flush(self, bucket: int) -> None:
    pending = self._pending[bucket]
    rows = len(pending.keys)
    parts = [
      np.array(pending.keys, "<u8").tobytes(),
      np.array(pending.tags, "<u2").tobytes(),
      np.fromiter(map(len, pending.texts), "<u4", 2 * rows).tobytes(),
      *pending.texts,
    ]
    data = zlib.compress(b"".join(parts), 1)
    self._index.append((bucket, rows, self._stream.tell(), len(data)))
    self._stream.write(data)
    self._pending[bucket] = _Pending()


class _Pending:
  """Rows of a bucket that are not yet written."""

  def __init__(self) -> None:
    self.keys: list[int] = []
    self.tags: list[int] = []
    self.texts: list[bytes] = []
    self.bytes = 0


@contextlib.contextmanager
def writing(path: str, buckets: int = 1, block_bytes: int = BLOCK_BYTES) -> Iterator[Writer]:
  """Makes a file of blocks: the whole file, or nothing where an error comes out of the context.

  Args:
    path: The file; its folder is made.
    buckets: How many there are.
    block_bytes: About how much a block takes in memory. It is less where that much for every
      bucket would be more than MEMORY_BYTES.
  """
  with atomic_files.atomic_file(path, shared=True) as stream:
    writer = Writer(stream, buckets, block_bytes)
    yield writer
    writer.finish()


def read(path: str, bucket: int = 0) -> Iterator[Block]:
  """Yields the blocks of a bucket in the order in which they were written.

  Raises:
    InputError: the file is damaged.
    OSError: it cannot be opened or read.
  """
  with open(path, "rb") as stream:
    try:
      index = _read_index(stream)
      for entry in index[index["bucket"] == bucket]:
        stream.seek(int(entry["start"]))
        yield Block(zlib.decompress(stream.read(int(entry["bytes"]))), int(entry["rows"]))
    except (ValueError, struct.error, zlib.error) as error:
      raise errors.InputError(
        f"{path}: damaged ({error}): delete it, and call the same command again"
      ) from None


def _read_index(stream: IO[bytes]) -> np.ndarray:
  size = stream.seek(0, os.SEEK_END)
  if size < _TRAILER.size:
    raise ValueError("too short")
  stream.seek(size - _TRAILER.size)
  blocks, start, checksum, magic = _TRAILER.unpack(stream.read(_TRAILER.size))
  if magic != _MAGIC or start + blocks * _ENTRY.itemsize + _TRAILER.size != size:
    raise ValueError("no index at its end")
  stream.seek(start)
  index = stream.read(blocks * _ENTRY.itemsize)
  if zlib.crc32(index) != checksum:
    raise ValueError("its index is not what was written")
  return np.frombuffer(index, _ENTRY)
