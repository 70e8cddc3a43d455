"""Reads and writes the shards of a `vmsst data build` dataset without importing TensorFlow.

Shards are TFRecord files (https://www.tensorflow.org/tutorials/load_data/tfrecord) of
tf.train.Example messages, with one text per feature.
"""

import array
import functools
import mmap
import os
import re
import struct
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from vmsst import errors, storage
from vmsst.io import input_files

FEATURES = ("corpus", "source", "source_language", "target", "target_language")
"""Feature names in each example."""
# Matches names such as "opus_bitext-train_deu_eng.tfrecord-00000-of-00002". The language codes are
# from `readers.compact_code`.
_NAME = re.compile(
  r".*-[a-z]+_([a-z]{3}(?:[A-Z][a-z]{3})?)_([a-z]{3}(?:[A-Z][a-z]{3})?)\.tfrecord(?:-\d+-of-\d+)?"
)
_HEADER, _CHECKSUM = struct.Struct("<QI"), struct.Struct("<I")


def language_codes(path: str) -> tuple[str, str] | None:
  """Returns the two compact language codes in a shard's file name, or None."""
  match = _NAME.fullmatch(os.path.basename(path))
  return (match[1], match[2]) if match else None


class Records:
  """The records in a TFRecord file, with random access.

  A file in an object store is copied to the local disk, once per process.

  Raises:
    InputError: If the file is damaged.
  """

  def __init__(self, path: str):
    self._path = path
    self._starts = array.array("q")
    input_files.check(path)
    with open(storage.cached_copy(path), "rb") as stream:
      size = os.fstat(stream.fileno()).st_size
      self._content: Any = b""
      if size:
        self._content = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
    # A record consists of the length, its checksum, the content, and the content's checksum.
    position = 0
    while position < size:
      self._starts.append(position)
      position += _HEADER.size + _CHECKSUM.size
      if position <= size:
        position += _HEADER.unpack_from(self._content, self._starts[-1])[0]
    if position > size:
      raise errors.InputError(f"{path}: record {len(self)} is truncated; copy or rebuild the file")

  def __len__(self) -> int:
    return len(self._starts)

  def pair(self, number: int) -> tuple[str, str]:
    """Returns the source and target texts in an example.

    Raises:
      InputError: If the record is damaged or was not written by `vmsst data build`.
    """
    texts = self.texts(number, ("source", "target"))
    return texts["source"], texts["target"]

  def texts(self, number: int, names: Sequence[str] = FEATURES) -> dict[str, str]:
    """Returns the texts in an example, by feature name.

    Raises:
      InputError: If the record is damaged or was not written by `vmsst data build`.
    """
    from google.protobuf import message

    start = self._starts[number] + _HEADER.size
    end = start + _HEADER.unpack_from(self._content, self._starts[number])[0]
    record = self._content[start:end]
    try:
      if _checksum(record) != self._content[end : end + _CHECKSUM.size]:
        raise ValueError("damaged")
      features = _example_class().FromString(record).features.feature
      return {name: features[name].bytes_list.value[0].decode() for name in names}
    except (message.DecodeError, IndexError, ValueError):
      raise errors.InputError(
        f"{self._path}: record {number + 1} is damaged or was not written by `vmsst data build`; "
        "copy or rebuild the file"
      ) from None


class Examples:
  """Serializes tf.train.Example messages for one language pair.

  Args:
    source_language: Language code of the source texts.
    target_language: Language code of the target texts.
  """

  def __init__(self, source_language: str, target_language: str):
    self._example = _example_class()()
    codes = {"source_language": source_language, "target_language": target_language}
    for name in FEATURES:
      self._example.features.feature[name].bytes_list.value.append(codes.get(name, "").encode())

  def example(self, corpus: bytes, source: bytes, target: bytes) -> bytes:
    """Returns a serialized example for a corpus name and two texts, all in UTF-8."""
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
  """Writes records to a TFRecord file. The same records always produce the same bytes.

  Returns:
    The number of records and their total size in bytes.

  Raises:
    OSError: If the file cannot be written.
  """
  count = size = 0
  with open(path, "wb") as stream:
    for record in records:
      length = struct.pack("<Q", len(record))
      stream.write(b"".join((length, _checksum(length), record, _checksum(record))))
      count += 1
      size += len(record)
  return count, size


def _checksum(content: bytes) -> bytes:
  """Returns the masked CRC-32C checksum that TFRecord uses."""
  crc = _crc32c()(content)
  rotated = crc >> 15 | crc << 17
  return _CHECKSUM.pack((rotated + 0xA282EAD8) & 0xFFFFFFFF)


@functools.cache
def _crc32c() -> Callable[[bytes], int]:
  with errors.requires("train", "reading a dataset"):
    import google_crc32c

  return google_crc32c.value
