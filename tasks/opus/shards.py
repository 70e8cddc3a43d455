"""TFRecord files of pairs, written without TensorFlow, which takes a worker seconds to load.

Format: https://www.tensorflow.org/tutorials/load_data/tfrecord. A record is a tf.train.Example of
five texts: source, target, source_language, target_language, corpus.
"""

import functools
import itertools
import struct
from collections.abc import Callable, Iterable, Sequence

import numpy as np

FEATURES = ("corpus", "source", "source_language", "target", "target_language")
"""Names of the texts of an example, in the order in which they are written."""
_CASTAGNOLI = 0x82F63B78
_CHECKED_TOGETHER = 4096


def write(put: Callable[[bytes], object], records: Iterable[bytes]) -> tuple[int, int]:
  """Puts a file's content; returns how many records, and how many bytes they themselves have."""
  count = size = 0
  remaining = iter(records)
  while batch := list(itertools.islice(remaining, _CHECKED_TOGETHER)):
    headers = [struct.pack("<Q", len(record)) for record in batch]
    header_checks, checks = masked_crc32c(headers).tolist(), masked_crc32c(batch).tolist()
    for header, header_check, record, check in zip(
      headers, header_checks, batch, checks, strict=True
    ):
      put(b"".join((header, _U32(header_check), record, _U32(check))))
      size += len(record)
    count += len(batch)
  return count, size


_U32 = struct.Struct("<I").pack


class Examples:
  """Makes tf.train.Example messages of one language pair.

  Args:
    source_language: Code of the first side.
    target_language: Code of the second side.
  """

  def __init__(self, source_language: str, target_language: str):
    self._source_language = _feature("source_language", source_language.encode())
    self._target_language = _feature("target_language", target_language.encode())

  def example(self, corpus: bytes, source: bytes, target: bytes) -> bytes:
    """An example; the texts are UTF-8."""
    features = b"".join(
      (
        _corpus(corpus),
        _feature("source", source),
        self._source_language,
        _feature("target", target),
        self._target_language,
      )
    )
    return b"\x0a" + _varint(len(features)) + features


@functools.cache
def _corpus(corpus: bytes) -> bytes:
  return _feature("corpus", corpus)


def _feature(name: str, value: bytes) -> bytes:
  """An entry of a Features message: a name and a list of one text."""
  # Every field here is of number 1 or 2 and holds a length and that many bytes (wire type 2).
  text = b"\x0a" + _varint(len(value)) + value
  listed = b"\x0a" + _varint(len(text)) + text
  key = name.encode()
  entry = b"\x0a" + _varint(len(key)) + key + b"\x12" + _varint(len(listed)) + listed
  return b"\x0a" + _varint(len(entry)) + entry


def _varint(value: int) -> bytes:
  if value < 0x80:
    return _ONE_BYTE[value]
  parts = bytearray()
  while value >= 0x80:
    parts.append(value & 0x7F | 0x80)
    value >>= 7
  parts.append(value)
  return bytes(parts)


_ONE_BYTE = [bytes([value]) for value in range(0x80)]


def masked_crc32c(records: Sequence[bytes]) -> np.ndarray:
  """Checksums of records as TFRecord has them, uint32 [N], of all records side by side."""
  lengths_N = np.fromiter(map(len, records), np.int64, len(records))
  order_N = np.argsort(-lengths_N, kind="stable")
  starts_N = np.zeros(len(records), np.int64)
  np.cumsum(lengths_N[:-1], out=starts_N[1:])
  starts_N = starts_N[order_N]
  content = np.frombuffer(b"".join(records), np.uint8)
  ascending_N = np.sort(lengths_N)
  table = _table()
  crc_N = np.full(len(records), 0xFFFFFFFF, np.uint32)
  longest = int(ascending_N[-1]) if len(records) else 0
  # How many records have a byte at each place: those come first in the order.
  live = len(records) - np.searchsorted(ascending_N, np.arange(longest), side="right")
  for place, count in enumerate(live.tolist()):
    crc = crc_N[:count]
    byte = content[starts_N[:count] + place]
    crc_N[:count] = table[(crc ^ byte) & 0xFF] ^ (crc >> 8)
  crc_N ^= np.uint32(0xFFFFFFFF)
  masked_N = ((crc_N >> 15) | (crc_N << 17)) + np.uint32(0xA282EAD8)
  result_N = np.empty_like(masked_N)
  result_N[order_N] = masked_N
  return result_N


@functools.cache
def _table() -> np.ndarray:
  crc = np.arange(256, dtype=np.uint32)
  for _ in range(8):
    crc = np.where(crc & 1, (crc >> 1) ^ np.uint32(_CASTAGNOLI), crc >> 1).astype(np.uint32)
  return crc
