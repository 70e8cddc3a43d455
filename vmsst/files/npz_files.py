"""Reads .npz files, which units of work write with `numpy.savez`."""

import os
import zipfile
import zlib
from collections.abc import Sequence

import numpy as np

from vmsst import errors
from vmsst.files import storage


def read(path: str | os.PathLike[str], names: Sequence[str]) -> list[np.ndarray]:
  """Returns arrays of a file, by their names.

  Raises:
    InputError: the file is missing or broken.
  """
  try:
    with storage.open_binary(path) as stream, np.load(stream, allow_pickle=False) as content:
      return [content[name] for name in names]
  except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error) as error:
    raise errors.InputError(
      f"{path}: broken ({error}): delete it and rerun the same command"
    ) from None
