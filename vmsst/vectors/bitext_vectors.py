"""Precomputed vectors of bitexts by a trained encoder, for distillation into a student.

`embed_files` writes one NumPy file per bitext of N pairs, float32 [N, 2, S]: the vectors of source
and target of every line. Nothing here imports TensorFlow.
"""

import functools
import os
import pathlib
import tempfile
from collections.abc import Sequence

import numpy as np

from vmsst import errors
from vmsst.bitext import derived_files, readers
from vmsst.bitext.readers import BitextFile
from vmsst.files import storage
from vmsst.inference import loading
from vmsst.vectors import encoding, npy_files

# Texts whose vectors are in memory at once; even, so that windows contain whole pairs.
_WINDOW = 1 << 14


def embed_files(
  run: str,
  patterns: str | Sequence[str],
  folder: str,
  *,
  languages: tuple[str, str] | None = None,
  fields: tuple[str, str] | None = None,
  batch_size: int = 128,
  refresh: bool = False,
  progress: bool | None = None,
) -> dict[str, derived_files.Counts]:
  """Writes the vectors of every bitext that has none in the folder yet.

  Args:
    run: Path of an encoder, as in `vmsst.load`.
    patterns: Bitext files or shell patterns, as in training.
    folder: Output folder, local or in an object store; pass it to `bitext.files` as `teacher`.
    languages: Codes of both sides, if file names do not contain them.
    fields: Names of both fields of JSONL files, if they are not language codes.
    batch_size: Sentences per batch.
    refresh: Recompute all files, as after a change of the encoder or the bitexts.
    progress: Show a progress bar; None: on a terminal only.

  Returns:
    For each file, new or existing, `lines` and `dimension`.

  Raises:
    InputError: a checkpoint or file is missing or broken, or the folder has vectors by another
      encoder.
  """
  bitexts = readers.find_bitext(patterns, languages, fields)
  encoder = loading.load(run)

  def make(bitext: BitextFile, path: str) -> derived_files.Counts:
    lines = sum(1 for _ in readers.read_pairs(bitext))
    codes = [readers.code_of(bitext.source), readers.code_of(bitext.target)]
    embed = encoding.embedder(encoder, batch_size=batch_size, on_cut=None)
    windows = encoding.encode_windows(
      lambda texts: embed(texts, language=codes * (len(texts) // 2)),
      (side for pair in readers.read_pairs(bitext) for side in pair),
      _WINDOW,
      total=2 * lines,
      unit=" sentences",
      title=str(bitext),
      progress=progress,
    )
    npy_files.write(path, (lines, 2, encoder.dimension), windows)
    return {"lines": lines, "dimension": encoder.dimension}

  return derived_files.make_files(
    bitexts,
    folder,
    settings={"encoder": encoding.identity(encoder, str(encoder.path))},
    place_of=_place,
    make=make,
    refresh=refresh,
  )


def open_vectors(folder: str, bitext: BitextFile) -> np.memmap:
  """Opens the vectors of a bitext, float32 [lines, 2, S], as a memory map.

  Raises:
    InputError: the file is missing or cannot be read, or contains something else.
  """
  local = local_path(folder, bitext)
  with storage.naming(local, path_of(folder, bitext)):
    return npy_files.open_mapped(local, ("lines", 2, "width"))


def local_path(folder: str, bitext: BitextFile) -> str:
  """Returns the path of a bitext's vectors on this machine.

  A file in an object store is copied, once per process, because training reads it in each epoch.

  Raises:
    InputError: the file is missing or cannot be read.
  """
  path = path_of(folder, bitext)
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


def path_of(folder: str, bitext: BitextFile) -> str:
  """Returns the path of a bitext's vectors."""
  return os.path.join(folder, _place(bitext))


def _place(bitext: BitextFile) -> str:
  return derived_files.place(bitext, f"{os.path.basename(bitext.paths[0])}.npy")


def check_count(folder: str, bitext: BitextFile, count: int) -> None:
  """Raises InputError unless a bitext has vectors of `count` lines."""
  found = len(open_vectors(folder, bitext))
  if found != count:
    raise errors.InputError(
      f"{path_of(folder, bitext)}: has vectors of {found} lines, but {bitext} has {count} lines: "
      "recompute them (`vmsst data embed --refresh`)"
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
