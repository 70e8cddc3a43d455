"""Files of datasets of `vmsst data build`, read and written without importing TensorFlow.

A file is TFRecord or ArrayRecord; its records are tf.train.Example messages, whose features are
single texts. TensorFlow verifies the checksums of TFRecord files when it trains on them, and
`ArrayRecords` those of every record; `read_examples` does not verify those of TFRecord files.

Formats: https://www.tensorflow.org/tutorials/load_data/tfrecord and
https://github.com/google/array_record.
"""

import contextlib
import errno
import functools
import os
import pathlib
import re
import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from vmsst import errors
from vmsst.files import input_files, storage

FORMATS = ("tfrecord", "array_record")
"""Formats of the files, by their names in TFDS; the default first."""
FEATURES = ("corpus", "source", "source_language", "target", "target_language")
"""Names of the texts of an example."""
# "opus_bitext-train_deu_eng.tfrecord-00000-of-00002"; codes as of `readers.compact_code`.
_NAME = re.compile(
  r".*-[a-z]+_([a-z]{3}(?:[A-Z][a-z]{3})?)_([a-z]{3}(?:[A-Z][a-z]{3})?)\.(?:tfrecord|array_record)(?:-\d+-of-\d+)?"
)
_HEADER, _CHECKSUM = struct.Struct("<QI"), 4
_READ_ROWS = 1024  # Records of an ArrayRecord file that are read together.
_RECORD_BYTES = 1 << 26  # A longer record is not a pair of texts.
# Each record is compressed alone, so that reading one reads no others; as in TFDS.
_OPTIONS = "group_size:1"


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
    except ValueError:
      place = f"{path}: record {number}"
      raise errors.InputError(f"{place} is not an example of texts; build it again") from None


def _array_records(path: str) -> Iterator[bytes]:
  records = ArrayRecords(path)
  for start in range(0, len(records), _READ_ROWS):
    yield from records.read(range(start, min(start + _READ_ROWS, len(records))))


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


def write(
  path: str | os.PathLike[str], records: Iterable[bytes], file_format: str
) -> tuple[int, int]:
  """Writes a file of one of FORMATS; the same records give the same bytes.

  Returns:
    The number of records, and the sum of their sizes in bytes.

  Raises:
    OSError: the file cannot be written.
  """
  count = size = 0
  with _writing(path, file_format) as put:
    for record in records:
      put(record)
      count += 1
      size += len(record)
  return count, size


@contextlib.contextmanager
def _writing(path: str | os.PathLike[str], file_format: str) -> Iterator[Any]:
  """Yields a function that writes a record to a file."""
  if file_format == "tfrecord":
    import google_crc32c

    def masked_crc32c(content: bytes) -> bytes:
      crc = google_crc32c.value(content)
      rotated = crc >> 15 | crc << 17
      return struct.pack("<I", (rotated + 0xA282EAD8) & 0xFFFFFFFF)

    def put(record: bytes) -> None:
      length = struct.pack("<Q", len(record))
      stream.write(b"".join((length, masked_crc32c(length), record, masked_crc32c(record))))

    with open(path, "wb") as stream:
      yield put
    return
  try:
    writer = _array_record_module().ArrayRecordWriter(os.fspath(path), _OPTIONS)
    yield writer.write
    writer.close()
  except RuntimeError as error:
    raise OSError(errno.EIO, str(error).splitlines()[0], os.fspath(path)) from None


class ArrayRecords:
  """The records of an ArrayRecord file, of which only those asked for are read.

  Args:
    path: The file, on this machine.
    count: Number of records that the file should have; None: unknown.

  Raises:
    InputError: the file is missing, is not an ArrayRecord file, or has another number of records.
  """

  def __init__(self, path: str | os.PathLike[str], count: int | None = None):
    storage.check_local(path, "reading an ArrayRecord file")
    if not pathlib.Path(path).is_file():
      raise errors.InputError(f"{path}: no such file; copy it or build the dataset again")
    self._path = path
    self._reader = _array_record_module().ArrayRecordReader(os.fspath(path))
    if not self._reader.ok():
      raise errors.InputError(
        f"{path} is truncated, or is not an ArrayRecord file; copy or build it again"
      )
    self._count = self._reader.num_records()
    if count is not None and self._count != count:
      raise errors.InputError(
        f"{path} has {self._count} records, but its dataset lists {count}; copy or build it again"
      )

  def __len__(self) -> int:
    return self._count

  def read(self, numbers: Sequence[int]) -> list[bytes]:
    """Returns the records of these numbers.

    Raises:
      InputError: a record is damaged.
    """
    try:
      return self._reader.read(list(numbers)) if numbers else []
    except RuntimeError as error:
      reason = str(error).splitlines()[0]
      raise errors.InputError(f"{self._path}: {reason}; copy or build the file again") from None


@functools.lru_cache(maxsize=512)  # files, of 1,024 that a process may usually open
def opened(path: str, count: int | None = None) -> ArrayRecords:
  """Returns the records of a file, which stays open for later calls; arguments as of the class."""
  return ArrayRecords(path, count)


def _array_record_module() -> Any:
  with errors.requires("train", "the ArrayRecord format"):
    from array_record.python import array_record_module

  return array_record_module
