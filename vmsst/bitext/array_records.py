"""ArrayRecord files: records that can be read in any order.

Format: https://github.com/google/array_record. The reader verifies the checksums of every record.
"""

import contextlib
import errno
import functools
import os
import pathlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from vmsst import errors
from vmsst.files import storage

# Each record is compressed alone, so that reading one reads no others; as in TFDS.
_OPTIONS = "group_size:1"


def write(path: str | os.PathLike[str], records: Iterable[bytes]) -> tuple[int, int]:
  """Writes a file; the same records give the same bytes.

  Returns:
    The number of records, and the sum of their sizes in bytes.

  Raises:
    OSError: the file cannot be written.
  """
  with _named_failure(path):
    writer = _module().ArrayRecordWriter(os.fspath(path), _OPTIONS)
  count = size = 0
  for record in records:
    with _named_failure(path):
      writer.write(record)
    count += 1
    size += len(record)
  with _named_failure(path):
    writer.close()
  return count, size


@contextlib.contextmanager
def _named_failure(path: str | os.PathLike[str]) -> Iterator[None]:
  try:
    yield
  except RuntimeError as error:
    raise OSError(errno.EIO, str(error).splitlines()[0], os.fspath(path)) from None


class ArrayRecords(Sequence[bytes]):
  """The records of a file, of which only those asked for are read.

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
    self._reader = _module().ArrayRecordReader(os.fspath(path))
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

  def __getitem__(self, number: Any) -> Any:
    if isinstance(number, slice):
      return self.read(range(*number.indices(self._count)))
    return self.read([range(self._count)[number]])[0]

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


def _module() -> Any:
  with errors.requires("train", "the ArrayRecord format"):
    from array_record.python import array_record_module

  return array_record_module
