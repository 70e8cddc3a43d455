"""Vectors of both sides of bitexts by a trained encoder, on disk: what a student's teacher says.

Beside a bitext of N pairs stands, in a folder made by `embed_files`, one NumPy file, float32
[N, 2, S]: of every line the vectors of source and target. Nothing here imports TensorFlow.
"""

import functools
import os
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import tqdm

from vmsst import errors
from vmsst.bitext import derived_files, readers
from vmsst.bitext.readers import BitextFile
from vmsst.checkpoints import t5x as t5x_checkpoints
from vmsst.files import input_files
from vmsst.inference import loading
from vmsst.inference.encoder import Encoder

# Texts whose vectors are in memory at once.
_CHUNK = 1 << 14


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
    run: An encoder's MODEL_DIR or one checkpoint in it (see `vmsst.load`).
    patterns: Bitext files or shell patterns, as in training.
    folder: Where the vectors are put; give it to `bitext.files` as `teacher`.
    languages: Codes of both sides, where the names of the files do not tell.
    fields: Names of both fields of JSONL files, where they are not language codes.
    batch_size: Sentences computed at once.
    refresh: Make all again, as after a change of the encoder or of the files.
    progress: Show a progress bar; None: on a terminal only.

  Returns:
    For each file written, now or before, `lines` and `dimension`.

  Raises:
    InputError: no such checkpoint or files, broken ones, or a folder of another encoder's vectors.
  """
  checkpoint = t5x_checkpoints.find_checkpoint(run)
  load = functools.cache(lambda: loading.load(checkpoint))

  def make(bitext: BitextFile, path: str) -> derived_files.Counts:
    encoder = load()
    lines = sum(1 for _ in readers.read_pairs(bitext))
    array = np.lib.format.open_memmap(path, "w+", np.dtype("<f4"), (lines, 2, encoder.dimension))
    texts = (side for pair in readers.read_pairs(bitext) for side in pair)
    flat_ND = array.reshape(2 * lines, -1)
    chunks = encode_chunks(
      encoder,
      texts,
      [readers.code_of(bitext.source), readers.code_of(bitext.target)],
      total=2 * lines,
      title=str(bitext),
      batch_size=batch_size,
      progress=progress,
    )
    for start, vectors_BD in chunks:
      flat_ND[start : start + len(vectors_BD)] = vectors_BD
    array.flush()
    return {"lines": lines, "dimension": encoder.dimension}

  return derived_files.make_files(
    readers.find_bitext(patterns, languages, fields),
    folder,
    settings={"encoder": str(checkpoint)},
    place_of=_place,
    make=make,
    refresh=refresh,
  )


def encode_chunks(
  encoder: Encoder,
  texts: Iterable[str],
  codes: Sequence[str],
  *,
  total: int,
  title: str,
  batch_size: int = 128,
  progress: bool | None = None,
) -> Iterator[tuple[int, np.ndarray]]:
  """Yields the vectors of texts, some thousand at a time, each with the number of its first text.

  Args:
    encoder: What makes vectors.
    texts: The texts, whose languages take turns.
    codes: Codes of the languages; text i is in the language i modulo their number.
    total: Number of texts.
    title: What the progress bar is called.
    batch_size: Texts computed at once.
    progress: Show a progress bar; None: on a terminal only.
  """
  size = _CHUNK // len(codes) * len(codes)
  disable = None if progress is None else not progress
  with tqdm.tqdm(total=total, unit=" sentences", desc=title, disable=disable) as bar:
    for start, chunk in _chunks(texts, size):
      language = codes[0] if len(codes) == 1 else (list(codes) * size)[: len(chunk)]
      yield (
        start,
        encoder.encode(
          chunk, language=language, batch_size=batch_size, progress=False, on_cut=None
        ),
      )
      bar.update(len(chunk))


def _chunks(texts: Iterable[str], size: int) -> Iterator[tuple[int, list[str]]]:
  start = 0
  chunk: list[str] = []
  for text in texts:
    chunk.append(text)
    if len(chunk) == size:
      yield start, chunk
      start, chunk = start + size, []
  if chunk:
    yield start, chunk


def open_vectors(folder: str, bitext: BitextFile) -> np.memmap:
  """The vectors of a bitext, float32 [lines, 2, S], read when they are used.

  Raises:
    InputError: there are none, or the file holds something else.
  """
  path = path_of(folder, bitext)
  if not os.path.exists(path):
    raise errors.InputError(
      f"{path}: no such file: write a teacher's vectors of {bitext} into {folder} with "
      "`vmsst data embed`"
    )
  input_files.check(path)
  try:
    array = np.lib.format.open_memmap(path, mode="r")
  except Exception as error:  # NumPy has an exception of another kind for each damage
    raise errors.InputError(f"{path}: not a NumPy file of vectors: {error}") from None
  if (
    array.dtype != np.dtype("<f4")
    or array.ndim != 3
    or array.shape[1] != 2
    or not array.flags.c_contiguous
  ):
    raise errors.InputError(
      f"{path}: vectors have to be float32 [lines, 2, width], not {array.dtype} {array.shape}"
    )
  return array


def path_of(folder: str, bitext: BitextFile) -> str:
  """The file of a bitext's vectors."""
  return os.path.join(folder, _place(bitext))


def _place(bitext: BitextFile) -> str:
  return derived_files.place(bitext, f"{os.path.basename(bitext.paths[0])}.npy")


def check_count(folder: str, bitext: BitextFile, count: int) -> None:
  """Raises InputError unless there are vectors of so many lines."""
  found = len(open_vectors(folder, bitext))
  if found != count:
    raise errors.InputError(
      f"{path_of(folder, bitext)}: vectors of {found} lines, but {bitext} has {count}: it is not "
      "what they were made from; make them again (`vmsst data embed --refresh`)"
    )


def take(arrays: Sequence[np.ndarray], numbers_N: np.ndarray, side: int) -> np.ndarray:
  """Rows of one side, float32 [N, S]; rows are counted through all arrays and ascend."""
  ends = np.cumsum([0, *map(len, arrays)])
  cuts = np.searchsorted(numbers_N, ends)
  return np.concatenate(
    [
      array[numbers_N[first:last] - start, side]
      for array, start, first, last in zip(arrays, ends[:-1], cuts[:-1], cuts[1:], strict=True)
    ]
  )
