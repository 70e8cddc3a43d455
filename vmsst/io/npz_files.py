"""Reads .npz and .npy files, which units of work write with `numpy.savez` and `numpy.save`."""

import contextlib
import math
import os
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from typing import IO

import numpy as np

from vmsst import errors
from vmsst.io import storage


def read(path: str | os.PathLike[str], names: Sequence[str]) -> list[np.ndarray]:
  """Returns arrays of a file, by their names.

  Raises:
    InputError: the file is missing or broken.
  """
  with _opened(path) as stream, np.load(stream, allow_pickle=False) as content:
    return [content[name] for name in names]


def read_array(path: str | os.PathLike[str], rows: range | None = None) -> np.ndarray:
  """Returns the array of a .npy file, or some rows of it.

  Args:
    path: The file, of a C-ordered array.
    rows: Consecutive rows to read; None: all.

  Raises:
    InputError: the file is missing or broken.
  """
  with _opened(path) as stream:
    if rows is None:
      return np.load(stream, allow_pickle=False)
    np.lib.format.read_magic(stream)
    shape, _, dtype = np.lib.format.read_array_header_1_0(stream)
    row_bytes = dtype.itemsize * math.prod(shape[1:])
    stream.seek(rows.start * row_bytes, os.SEEK_CUR)
    return np.frombuffer(stream.read(len(rows) * row_bytes), dtype).reshape(len(rows), *shape[1:])


@contextlib.contextmanager
def _opened(path: str | os.PathLike[str]) -> Iterator[IO[bytes]]:
  try:
    with storage.open_binary(path) as stream:
      yield stream
  except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error) as error:
    raise errors.InputError(
      f"{path}: broken ({error}): delete it and rerun the same command"
    ) from None
