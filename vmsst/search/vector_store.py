"""Sentence vectors on disk, in an object store or in memory, and the corresponding texts.

A folder written by `vmsst embed` contains vector shards (`vectors-00000.npy` and so on) and the job
record, `job.json`; see `vmsst.io.manifest`.
"""

import bisect
import functools
import hashlib
import itertools
import mmap
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from concurrent import futures
from typing import Any, NamedTuple

import numpy as np

from vmsst import errors, storage
from vmsst.io import array_files, input_files, manifest, text_files

DTYPES = ("float32", "float16")
_CHECKED = 1 << 14  # Rows to check at once.
_LINES = 1 << 14  # Lines per span of a text. This number does not affect results.
_AGAIN = "delete the folder and embed again"
# The cache is limited because every open shard holds a file descriptor.
_cached_shard = functools.lru_cache(128)(array_files.read_shard)


class Vectors:
  """Vectors in a finished `vmsst embed` folder. Slices of rows are memory-mapped arrays.

  Attributes:
    folder: The folder.
    shape: Number and width of the vectors.
    dtype: Stored data type, float16 or float32.
    settings: Inputs and options of the job that computed the vectors; see
      `manifest.Record.settings`.
    digest: Hash of the contents of all files.
  """

  def __init__(self, folder: str | os.PathLike[str]):
    """Reads the job record and verifies the files; see `open_vectors`."""
    self.folder = os.fspath(folder)
    record = manifest.read(folder, "use a folder that `vmsst embed` wrote, or embed again")
    self.settings = record.settings
    names = sorted(record.parts, key=lambda name: (len(name), name))
    records = [record.parts[name] for name in names]
    try:
      width, self.dtype = int(record.facts["dimension"]), np.dtype(record.facts["dtype"])
      rows = [int(shard.facts["rows"]) for shard in records]
    except (KeyError, TypeError, ValueError) as error:
      raise errors.InputError(f"{folder} contains no vectors ({error!r}); {_AGAIN}") from None
    self._sha256 = [shard.sha256 for shard in records]
    self._paths = [storage.absolute(os.path.join(folder, name)) for name in names]
    self.digest = hashlib.sha256("".join(self._sha256).encode()).hexdigest()
    # Shard i contains the rows from bound i up to bound i + 1.
    self._bounds: list[int] = [0, *itertools.accumulate(rows)]
    self.shape: tuple[int, int] = (self._bounds[-1], width)
    if not storage.is_url(folder):
      with futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        check = functools.partial(input_files.check_sha256, fix=_AGAIN)
        list(pool.map(check, self._paths, self._sha256))

  def __len__(self) -> int:
    return self.shape[0]

  def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
    """Returns all rows in memory, for NumPy."""
    return np.array(self[:], dtype, copy=copy)

  def __getitem__(self, rows: slice | int) -> np.ndarray:
    """Returns consecutive rows, [B, D], or one row, [D]. Rows from a single file are read-only."""
    if not isinstance(rows, slice):
      row = range(len(self))[rows]
      return self[row : row + 1][0]
    start, stop, step = rows.indices(len(self))
    if step != 1:
      raise IndexError(f"rows can be read in order only, not in steps of {step}")
    blocks = []
    while start < stop:
      index = bisect.bisect_right(self._bounds, start) - 1
      first = self._bounds[index]
      blocks.append(self._read(index)[start - first : stop - first])
      start = self._bounds[index + 1]
    if len(blocks) == 1:
      return blocks[0]
    return np.concatenate([np.empty((0, self.shape[1]), self.dtype), *blocks])

  def take(self, row_N: np.ndarray) -> np.ndarray:
    """Returns the rows with the given indices, [N, D], in the order given. Indices may repeat."""
    shard_N = np.searchsorted(self._bounds, row_N, side="right") - 1
    vector_ND = np.empty((len(row_N), self.shape[1]), self.dtype)
    for index in np.unique(shard_N).tolist():
      position_P = np.flatnonzero(shard_N == index)
      row_P, path = row_N[position_P] - self._bounds[index], self._paths[index]
      if storage.is_url(path):
        shape = self._bounds[index + 1] - self._bounds[index], self.shape[1]
        vector_ND[position_P] = array_files.read_rows(path, shape, self.dtype.name, row_P)
      else:
        vector_ND[position_P] = self._read(index)[row_P]
    return vector_ND

  def _read(self, index: int) -> np.ndarray:
    """Returns all rows in a shard."""
    path, sha256 = self._paths[index], self._sha256[index]
    read = array_files.read_shard if storage.is_url(path) else _cached_shard
    return read(path, sha256)


class ArrayVectors(Vectors):
  """Vectors in an array or a memory-mapped .npy file, not written by `vmsst embed`."""

  def __init__(self, source: Any, name: str):
    """Checks the vectors and computes their digest; see `open_vectors`."""
    self._source, self.folder, self.settings = source, name, {}
    self._paths: list[str] = [""]
    array_ND = self._array
    if array_ND.ndim != 2 or array_ND.dtype not in (np.float32, np.float16):
      raise errors.InputError(
        f"{name}: {array_ND.dtype} of shape {array_ND.shape}; pass vectors as rows, [N, D], in "
        "float32 or float16 (`astype`)"
      )
    self.shape, self.dtype, self._bounds = array_ND.shape, array_ND.dtype, [0, len(array_ND)]
    digest = hashlib.sha256(array_files.header(self.shape, self.dtype.name))
    for start in range(0, len(array_ND), _CHECKED):
      block_BD = array_ND[start : start + _CHECKED]
      try:
        digest.update(
          array_files.checked_rows(block_BD, self.shape[1], self.dtype.name, start).data
        )
      except ValueError as error:
        raise errors.InputError(f"{name}: {error}; remove the vector or recompute it") from None
    self.digest = digest.hexdigest()

  def __getstate__(self) -> dict[str, Any]:
    # Do not pickle the array. A process that unpickles this object maps the file again.
    return {name: value for name, value in vars(self).items() if name != "_array"}

  @functools.cached_property
  def _array(self) -> np.ndarray:
    source = self._source
    return array_files.map_file(source) if isinstance(source, str) else np.asarray(source)

  def _read(self, index: int) -> np.ndarray:
    return self._array


def shard_name(number: int) -> str:
  """Returns the name of a shard, numbered from 0."""
  return f"vectors-{number:05d}.npy"


def open_vectors(vectors: Any) -> Vectors:
  """Opens the vectors in a finished `vmsst embed` folder, a .npy file or an array.

  The checksums of local files are verified immediately. Files in object stores are verified when
  they are read. A .npy file in a store is copied to this machine.

  Args:
    vectors: A folder written by `vmsst embed`; a .npy file or a NumPy, JAX or torch array, [N, D],
      float32 or float16; or vectors that this function has already opened.

  Raises:
    InputError: If the vectors are missing or incomplete; a file is missing, damaged or truncated;
      or an array has an unsupported shape or dtype or contains a value that is not finite.
  """
  if isinstance(vectors, Vectors):
    return vectors
  if hasattr(vectors, "__array__"):
    return ArrayVectors(vectors, "the array")
  path = storage.path(vectors)
  if storage.is_file(path):
    return ArrayVectors(storage.absolute(storage.cached_copy(os.fspath(path))), os.fspath(path))
  return Vectors(path)


class EmbeddedText(NamedTuple):
  """Texts and their vectors. The texts are a file's lines, or one column or JSON key of each line.

  Attributes:
    path: The text file.
    vectors: One row per line.
    digest: Hash of the text. Reading the file raises InputError if the text has changed.
  """

  path: str
  vectors: Vectors
  digest: str

  @property
  def encoder(self) -> dict[str, Any]:
    """`encoding.identity` of the encoder that computed the vectors, or {} if it is unknown."""
    name = self.vectors.settings.get("encoder")
    return name if isinstance(name, dict) else {} if name is None else {"name": str(name)}

  @property
  def dimensions(self) -> int | None:
    """Number of the encoder's leading dimensions that the vectors contain; None if all."""
    count = self.vectors.settings.get("dimensions")
    return count if isinstance(count, int) else None

  def texts(self) -> Iterator[str]:
    """Yields all texts; reads the file once."""
    return text_files.read_texts(self.path, self.vectors.settings.get("field"), self.digest)

  def visible_rows(self) -> np.ndarray:
    """Reads the file; returns the rows whose texts contain a visible character, int64 [M].

    Raises:
      InputError: If no text has a visible character.
    """
    rows = (row for row, text in enumerate(self.texts()) if not text_files.is_blank(text))
    row_M = array_files.concatenate(map(np.array, rows), np.int64)
    if not len(row_M):
      raise errors.InputError(f"{self.path} contains no sentence; use a file that contains text")
    return row_M

  def reader(self) -> Callable[[int], str]:
    """Returns a function that maps a row number to its text.

    Reads the file once, and copies the texts to a temporary file for random access.
    """
    end_N = array_files.full(len(self.vectors) + 1, 0, np.int64)
    with tempfile.TemporaryFile() as file:
      for row, text in enumerate(self.texts()):
        end_N[row + 1] = end_N[row] + file.write(text.encode())
      file.write(b"\n")  # an empty file cannot be mapped
      file.flush()
      content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    return lambda row: content[end_N[row] : end_N[row + 1]].decode()


def open_text(path: str | os.PathLike[str], vectors: Any) -> EmbeddedText:
  """Opens a text and its vectors, as `vmsst embed` writes them.

  Vectors that `vmsst embed` did not write are accepted if there is one vector per line.

  Args:
    path: The text.
    vectors: As in `open_vectors`.

  Raises:
    InputError: If the text or the vectors are missing, incomplete or damaged, or if they do not
      match each other.
  """
  path, vectors = os.fspath(path), open_vectors(vectors)
  text = fingerprint(path)
  recorded = vectors.settings.get("text")
  is_other = isinstance(recorded, dict) and recorded.get("digest") != text["digest"]
  if is_other or text["lines"] != len(vectors):
    raise errors.InputError(
      f"the {len(vectors):,} vectors in {vectors.folder} do not match the current text in {path} "
      f"({text['lines']:,} lines); recompute them (`vmsst embed`)"
    )
  return EmbeddedText(path, vectors, text["digest"])


def fingerprint(path: str) -> Mapping[str, Any]:
  """Returns a text's identity as a JSON object: its path, line count, and digest.

  A text and its gzipped copy have the same digest.

  Raises:
    InputError: If the file cannot be read.
  """
  return text_files.cut([path], _LINES).identity
