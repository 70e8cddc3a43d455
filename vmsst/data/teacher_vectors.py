"""Precomputed vectors of bitexts by a trained encoder, for distillation into a student.

`vmsst data embed` writes one NumPy file per bitext of N pairs, float32 [N, 2, S]: the vectors of
source and target of every line. Nothing here imports TensorFlow.
"""

import os
from collections.abc import Mapping, Sequence

import numpy as np

from vmsst import errors, storage
from vmsst.data import readers
from vmsst.data.readers import BitextFile
from vmsst.io import array_files, manifest


def open_vectors(folder: str, bitext: BitextFile) -> np.memmap:
  """Opens the vectors of a bitext, float32 [lines, 2, S], as a memory map.

  A file in an object store is copied, once per process.

  Raises:
    InputError: the file is missing or cannot be read, or contains something else.
  """
  path = vectors_path(folder, bitext)
  local = storage.cached_copy(path)
  with storage.naming(local, path):
    return array_files.open_mapped(local, ("lines", 2, "width"))


def vectors_path(folder: str, bitext: BitextFile) -> str:
  """Returns the path of a bitext's vectors."""
  return os.path.join(folder, file_name(bitext))


def file_name(bitext: BitextFile) -> str:
  """Returns the path of a bitext's vectors in their folder.

  It contains the name of the bitext's folder, so that files of several folders do not collide.
  """
  folder, name = os.path.split(bitext.paths[0])
  return os.path.join(os.path.basename(folder), f"{name}.npy")


def check(folder: str, counts: Mapping[BitextFile, int]) -> None:
  """Raises InputError unless a folder has the vectors of bitexts as they are now.

  Args:
    folder: The folder. If `vmsst data embed` wrote it, the content of the bitexts is compared, too.
    counts: The bitexts, and their numbers of lines.
  """
  paths = [os.path.join(folder, below, manifest.NAME) for below in ("", storage.UNFINISHED)]
  record = manifest.read(folder) if any(map(storage.exists, paths)) else None
  for bitext, count in counts.items():
    stored, problem = len(open_vectors(folder, bitext)), ""
    if stored != count:
      problem = f"has vectors of {stored} lines, but {bitext} has {count} lines"
    elif record is not None:
      part = record.parts.get(file_name(bitext))
      if part is None or part.facts["bitext"] != readers.digest(bitext):
        problem = f"does not have the vectors of {bitext} as it is now"
    if problem:
      raise errors.InputError(
        f"{vectors_path(folder, bitext)}: {problem}; recompute them with `vmsst data embed`"
      )


class Column:
  """The vectors of one side of rows of several arrays [lines, 2, S].

  Args:
    arrays: The vectors.
    side: 0 or 1.
    line_N: The line of each row, counted through all arrays; None: all lines.
  """

  def __init__(self, arrays: Sequence[np.ndarray], side: int, line_N: np.ndarray | None = None):
    self._arrays = arrays
    self._side = side
    self._line_N = line_N
    self._starts = np.cumsum([0, *map(len, arrays)])

  def __getitem__(self, number_B: np.ndarray) -> np.ndarray:
    """Returns the vectors of rows, float32 [B, S]."""
    line_B = number_B if self._line_N is None else self._line_N[number_B]
    array_B = np.searchsorted(self._starts, line_B, side="right") - 1
    vector_BS = np.empty([len(line_B), self._arrays[0].shape[2]], np.float32)
    for array in np.unique(array_B):
      rows = array_B == array
      vector_BS[rows] = self._arrays[array][line_B[rows] - self._starts[array], self._side]
    return vector_BS
