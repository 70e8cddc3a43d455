"""Files of datasets of `vmsst data build`, read and written without importing TensorFlow.

A file is TFRecord (https://www.tensorflow.org/tutorials/load_data/tfrecord); its records are
tf.train.Example messages, whose features are single texts. TensorFlow verifies the checksums when
it trains on them; `read_examples` does not.
"""

import functools
import os
import re
import struct
from collections.abc import Iterable, Iterator
from typing import Any

from vmsst import errors
from vmsst.io import input_files, storage

FEATURES = ("corpus", "source", "source_language", "target", "target_language")
"""Names of the texts of an example."""
# "opus_bitext-train_deu_eng.tfrecord-00000-of-00002"; codes as of `readers.compact_code`.
_NAME = re.compile(
  r".*-[a-z]+_([a-z]{3}(?:[A-Z][a-z]{3})?)_([a-z]{3}(?:[A-Z][a-z]{3})?)\.tfrecord(?:-\d+-of-\d+)?"
)
_HEADER, _CHECKSUM = struct.Struct("<QI"), 4
_RECORD_BYTES = 1 << 26  # A longer record is not a pair of texts.


def is_shard(path: str) -> bool:
  """Returns whether a name is that of a shard."""
  return re.search(r"\.tfrecord(-\d+-of-\d+)?$", path) is not None


def language_codes(path: str) -> tuple[str, str] | None:
  """Returns the compact codes of the two languages in a file's name, or None."""
  match = _NAME.fullmatch(os.path.basename(path))
  return (match[1], match[2]) if match else None


def read_examples(path: str) -> Iterator[dict[str, str]]:
  """Yields the features of every example, texts by name.

  Raises:
    InputError: the file is damaged, or is not a file of texts; the message names it.
  """
  input_files.check_local(path)
  for number, record in enumerate(_tfrecords(path), 1):
    try:
      yield texts(record)
    except ValueError:
      location = f"{path}: record {number}"
      raise errors.InputError(f"{location} is not an example of texts; build it again") from None


def _tfrecords(path: str) -> Iterator[bytes]:
  with storage.open_binary(path) as stream:
    number = 0
    while header := stream.read(_HEADER.size):
      number += 1
      location = f"{path}: record {number}"
      size = _HEADER.unpack(header)[0] if len(header) == _HEADER.size else 0
      if size > _RECORD_BYTES:
        raise errors.InputError(f"{location} has {size} bytes: not a TFRecord file")
      record = stream.read(size)
      if len(header) < _HEADER.size or len(record) < size or len(stream.read(4)) < _CHECKSUM:
        raise errors.InputError(f"{location} is truncated; copy or build the file again")
      yield record


def texts(example: bytes) -> dict[str, str]:
  """Returns the features of an Example, which are single texts.

  Raises:
    ValueError: it is not such an Example.
  """
  from google.protobuf import message

  try:
    features = _example_class().FromString(example).features.feature
    return {name: feature.bytes_list.value[0].decode() for name, feature in features.items()}
  except (message.DecodeError, IndexError) as error:
    raise ValueError(str(error)) from None


class Examples:
  """Makes tf.train.Example messages of one language pair.

  Args:
    source_language: Code of the first side.
    target_language: Code of the second side.
  """

  def __init__(self, source_language: str, target_language: str):
    self._example = _example_class()()
    codes = {"source_language": source_language, "target_language": target_language}
    for name in FEATURES:
      self._example.features.feature[name].bytes_list.value.append(codes.get(name, "").encode())

  def example(self, corpus: bytes, source: bytes, target: bytes) -> bytes:
    """Returns a serialized example; the texts are UTF-8."""
    features = self._example.features.feature
    features["corpus"].bytes_list.value[0] = corpus
    features["source"].bytes_list.value[0] = source
    features["target"].bytes_list.value[0] = target
    return self._example.SerializeToString(deterministic=True)


@functools.cache
def _example_class() -> Any:
  with errors.requires("train", "reading a dataset"):
    from tensorflow_datasets.proto import tf_example_generated_pb2

  return tf_example_generated_pb2.Example


def write(path: str | os.PathLike[str], records: Iterable[bytes]) -> tuple[int, int]:
  """Writes a file; the same records give the same bytes.

  Returns:
    The number of records, and the sum of their sizes in bytes.

  Raises:
    OSError: the file cannot be written.
  """
  import google_crc32c

  def checksum(content: bytes) -> bytes:
    crc = google_crc32c.value(content)
    rotated = crc >> 15 | crc << 17
    return struct.pack("<I", (rotated + 0xA282EAD8) & 0xFFFFFFFF)

  count = size = 0
  with open(path, "wb") as stream:
    for record in records:
      length = struct.pack("<Q", len(record))
      stream.write(b"".join((length, checksum(length), record, checksum(record))))
      count += 1
      size += len(record)
  return count, size
