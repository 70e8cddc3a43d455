"""Precomputed vectors of bitexts by a trained encoder, for distillation into a student.

`vmsst data embed` writes one NumPy file per bitext of N pairs, float32 [N, 2, S]: the vectors of
source and target of every line. Nothing here imports TensorFlow.
"""

import functools
import os
import pathlib
import tempfile
from collections.abc import Sequence

import numpy as np

from vmsst import errors
from vmsst.data import derived_files
from vmsst.data.readers import BitextFile
from vmsst.io import npy_files, storage


def open_vectors(folder: str, bitext: BitextFile) -> np.memmap:
  """Opens the vectors of a bitext, float32 [lines, 2, S], as a memory map.

  Raises:
    InputError: the file is missing or cannot be read, or contains something else.
  """
  local = local_path(folder, bitext)
  with storage.naming(local, vectors_path(folder, bitext)):
    return npy_files.open_mapped(local, ("lines", 2, "width"))


def local_path(folder: str, bitext: BitextFile) -> str:
  """Returns the path of a bitext's vectors on this machine.

  A file in an object store is copied, once per process, because training reads it in each epoch.

  Raises:
    InputError: the file is missing or cannot be read.
  """
  path = vectors_path(folder, bitext)
  if not storage.exists(path):
    raise errors.InputError(
      f"{path}: no such file: write vectors of {bitext} into {folder} with `vmsst data embed`"
    )
  return _copy(path) if storage.is_url(path) else path


@functools.cache
def _copy(url: str) -> str:
  """Returns the path of a local copy, which lasts as long as the process."""
  local = pathlib.Path(tempfile.mkdtemp(dir=storage.process_folder()), "vectors.npy")
  with storage.explained(url, "read"):
    storage.download(url, local)
  return str(local)


def vectors_path(folder: str, bitext: BitextFile) -> str:
  """Returns the path of a bitext's vectors."""
  return os.path.join(folder, relative_path(bitext))


def relative_path(bitext: BitextFile) -> str:
  """Returns the path of a bitext's vectors in their folder."""
  return derived_files.relative_path(bitext, f"{os.path.basename(bitext.paths[0])}.npy")


def check_count(folder: str, bitext: BitextFile, count: int) -> None:
  """Raises InputError unless a bitext has vectors of `count` lines."""
  stored = len(open_vectors(folder, bitext))
  if stored != count:
    raise errors.InputError(
      f"{vectors_path(folder, bitext)}: has vectors of {stored} lines, but {bitext} has {count} "
      "lines: recompute them (`vmsst data embed --refresh`)"
    )


def take(arrays: Sequence[np.ndarray], numbers_N: np.ndarray, side: int) -> np.ndarray:
  """Returns rows of one side, float32 [N, S]; row numbers count through all arrays and ascend."""
  ends = np.cumsum([0, *map(len, arrays)])
  cuts = np.searchsorted(numbers_N, ends)
  return np.concatenate(
    [
      array[numbers_N[first:last] - start, side]
      for array, start, first, last in zip(arrays, ends[:-1], cuts[:-1], cuts[1:], strict=True)
    ]
  )
