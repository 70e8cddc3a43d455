"""Reads the files of datasets of `vmsst data build` without TensorFlow.

They are TFRecord or ArrayRecord files of tf.train.Example messages, whose features are single
texts. TensorFlow verifies the checksums of TFRecord files when it trains on them; these functions
do not.

Format: https://www.tensorflow.org/tutorials/load_data/tfrecord.
"""

import os
import re
import struct
from collections.abc import Iterator

from vmsst import errors
from vmsst.bitext import array_records
from vmsst.files import input_files, storage

FORMATS = ("tfrecord", "array_record")
"""Formats of the files, by their names in TFDS; the default first."""
# "opus_bitext-train_deu_eng.tfrecord-00000-of-00002"; codes as of `readers.compact_code`.
_NAME = re.compile(
  r".*-[a-z]+_([a-z]{3}(?:[A-Z][a-z]{3})?)_([a-z]{3}(?:[A-Z][a-z]{3})?)\.(?:tfrecord|array_record)(?:-\d+-of-\d+)?"
)
_HEADER, _CHECKSUM = struct.Struct("<QI"), 4
_READ_ROWS = 1024  # Records of an ArrayRecord file that are read together.
_RECORD_BYTES = 1 << 26  # A longer record is not a pair of texts.


def format_of(path: str) -> str | None:
  """Returns the format in the name of a shard, one of FORMATS; None: it is another file."""
  match = re.search(r"\.(tfrecord|array_record)(-\d+-of-\d+)?$", path)
  return match and match[1]


def codes_of(path: str) -> tuple[str, str] | None:
  """Returns the compact codes of the two languages in a file's name, or None."""
  match = _NAME.fullmatch(os.path.basename(path))
  return (match[1], match[2]) if match else None


def read_examples(path: str) -> Iterator[dict[str, str]]:
  """Yields the features of every example, texts by name.

  Raises:
    InputError: the file is damaged, or is not a file of texts; the message names it.
  """
  input_files.check_local(path)
  records = _array_records(path) if format_of(path) == "array_record" else _tfrecords(path)
  for number, record in enumerate(records, 1):
    try:
      yield texts(record)
    except (ValueError, IndexError):
      place = f"{path}: record {number}"
      raise errors.InputError(f"{place} is not an example of texts; build it again") from None


def _array_records(path: str) -> Iterator[bytes]:
  records = array_records.ArrayRecords(path)
  for start in range(0, len(records), _READ_ROWS):
    yield from records[start : start + _READ_ROWS]


def _tfrecords(path: str) -> Iterator[bytes]:
  with storage.open_binary(path) as stream:
    number = 0
    while header := stream.read(_HEADER.size):
      number += 1
      place = f"{path}: record {number}"
      size = _HEADER.unpack(header)[0] if len(header) == _HEADER.size else 0
      if size > _RECORD_BYTES:
        raise errors.InputError(f"{place} has {size} bytes: not a TFRecord file")
      record = stream.read(size)
      if len(header) < _HEADER.size or len(record) < size or len(stream.read(4)) < _CHECKSUM:
        raise errors.InputError(f"{place} is truncated; copy or build the file again")
      yield record


def texts(example: bytes) -> dict[str, str]:
  """Returns the features of an Example, which are single texts.

  Raises:
    ValueError, IndexError: it is not such an Example.
  """
  found = {}
  for features in _fields(example, 1):
    for entry in _fields(features, 1):
      (name,), (feature,) = _fields(entry, 1), _fields(entry, 2)
      (listed,) = _fields(feature, 1)
      (text,) = _fields(listed, 1)
      found[name.decode()] = text.decode()
  return found


def _fields(message: bytes, number: int) -> list[bytes]:
  """Returns the contents of the fields of a protobuf message with a number.

  Raises:
    ValueError: a field is not a length and as many bytes.
    IndexError: the message ends within a field.
  """
  found, place = [], 0
  while place < len(message):
    key, place = _varint(message, place)
    size, place = _varint(message, place)
    if key & 7 != 2 or place + size > len(message):
      raise ValueError("not a field of bytes")
    if key >> 3 == number:
      found.append(message[place : place + size])
    place += size
  return found


def _varint(message: bytes, place: int) -> tuple[int, int]:
  """Returns the number at a place, and the place after it."""
  value = shift = 0
  while True:
    byte = message[place]
    place += 1
    value |= (byte & 0x7F) << shift
    if byte < 0x80:
      return value, place
    shift += 7
    if shift > 63:
      raise ValueError("not a number of 64 bits")
