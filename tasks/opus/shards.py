"""Writes files of pairs without TensorFlow, which a worker needs seconds to import.

A record is a tf.train.Example of
five texts: corpus, source, source_language, target, target_language.
"""

import functools
import pathlib
import struct
from collections.abc import Callable, Iterable

import google_crc32c

from vmsst.bitext import array_records

FEATURES = ("corpus", "source", "source_language", "target", "target_language")
"""Names of the texts of an example, in the order of the record."""


def write(path: pathlib.Path, records: Iterable[bytes], file_format: str) -> tuple[int, int]:
  """Writes a file of one of `dataset_shards.FORMATS`.

  Returns:
    The number of records, and the sum of their sizes in bytes.
  """
  if file_format == "array_record":
    return array_records.write(path, records)
  with path.open("wb") as stream:
    return write_tfrecord(stream.write, records)


def write_tfrecord(put: Callable[[bytes], object], records: Iterable[bytes]) -> tuple[int, int]:
  """Writes records in TFRecord format: https://www.tensorflow.org/tutorials/load_data/tfrecord.

  Args:
    put: Writes bytes to the file.
    records: Serialized examples.

  Returns:
    The number of records, and the sum of their sizes in bytes.
  """
  count = size = 0
  for record in records:
    length = struct.pack("<Q", len(record))
    put(b"".join((length, _masked_crc32c(length), record, _masked_crc32c(record))))
    count += 1
    size += len(record)
  return count, size


def _masked_crc32c(content: bytes) -> bytes:
  """Returns the checksum that TFRecord files store for a content."""
  crc = google_crc32c.value(content)
  rotated = crc >> 15 | crc << 17
  return struct.pack("<I", (rotated + 0xA282EAD8) & 0xFFFFFFFF)


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
    """Returns a serialized example; the texts are UTF-8."""
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
  """Returns an entry of a Features message: a name and a list of one text."""
  # Every field has number 1 or 2 and wire type 2: a length and as many bytes.
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
