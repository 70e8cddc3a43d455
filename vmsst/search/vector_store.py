"""A folder of sentence vectors: shards `vectors-00000.npy`, ... and `vectors.json`.

Shards are written in any order, by any process, each atomically (`npy_files.write_shard`); `start`
and `finish` write `vectors.json` before and after them.
"""

import bisect
import functools
import hashlib
import json
import os
import re
from collections.abc import Callable, Iterator, Sequence
from concurrent import futures
from typing import Annotated, Any

import msgspec
import numpy as np

from vmsst import errors, storage
from vmsst.io import checksums, input_files, npy_files, stored_settings
from vmsst.jobs import atomic_files, work_folders

DTYPES = ("float32", "float16")
_MAPS = 128  # Open maps. Each has a descriptor, of 1,024 that a process may usually have.
_CHECKED = 1 << 14  # Rows of an array that are checked together.
_AGAIN = "delete the folder and embed again"
_STATE = "vectors.json"
_Count = Annotated[int, msgspec.Meta(ge=0, lt=1 << 40)]  # Larger ones overflow in NumPy.
_SHARD = re.compile(r"vectors-\d{5,}\.npy(\.json)?")
_RESULT = re.compile(r"vectors-\d{5,}\.npy\.json")


class State(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
  """The content of `vectors.json`.

  Attributes:
    dimension: Width of the vectors.
    dtype: float32, or float16 for half the space.
    rows: Number of vectors of each shard.
    settings: What the vectors are computed from, as for JSON.
    sha256: Checksum of each shard; None: the folder is not finished.
  """

  dimension: _Count
  dtype: Annotated[str, msgspec.Meta(pattern=rf"\A({'|'.join(DTYPES)})\Z")]
  rows: list[_Count]
  settings: dict[str, Any]
  sha256: list[str] | None = None

  def differences(self, given: "State") -> str:
    """Returns how these vectors differ from others, for messages; "" if they are the same."""
    keys = ("dimension", "dtype")
    return stored_settings.differences(
      *({**{key: getattr(store, key) for key in keys}, **store.settings} for store in (self, given))
    )

  def write(self, folder: str | os.PathLike[str]) -> None:
    """Writes the file."""
    path = storage.path(folder) / _STATE
    atomic_files.write_json(path, dict(sorted(msgspec.structs.asdict(self).items())))

  @classmethod
  def read(cls, folder: storage.Path) -> "State":
    """Reads the file; raises InputError if it is broken."""
    path = folder / _STATE
    try:
      state = msgspec.convert(input_files.read_json(path), cls)
      if state.sha256 is not None and len(state.sha256) != len(state.rows):
        raise ValueError("`sha256` and `rows` have different lengths")
      encoder = state.settings.get("encoder")
      named = encoder.get("name") if isinstance(encoder, dict) else None
      if not all(isinstance(x, str | None) for x in (named, state.settings.get("field"))):
        raise ValueError("a name is not text")
    except ValueError as error:
      raise errors.InputError(f"{path}: broken: {_AGAIN} ({error})") from None
    return state


def shard_path(folder: str | os.PathLike[str], number: int) -> str:
  """Returns the path of a shard, numbered from 0; `npy_files.write_shard` writes it."""
  return os.path.join(folder, f"vectors-{number:05d}.npy")


def check_free(folder: str | os.PathLike[str]) -> None:
  """Raises InputError if a folder has files of other origin where shards would be written."""
  names = storage.names(folder)
  foreign = sorted(filter(_SHARD.fullmatch, names))
  if foreign and _STATE not in names:
    raise errors.InputError(
      f"{os.path.join(folder, foreign[0])} is not by `vmsst embed`, which would replace it; give "
      "another folder"
    )


def start(folder: str | os.PathLike[str], state: State) -> bool:
  """Starts a folder, or resumes an unfinished one; returns whether it is finished already.

  Args:
    folder: The folder.
    state: What the vectors are; without checksums.

  Raises:
    InputError: the folder has other vectors or broken files.
  """
  folder = storage.path(folder)
  state = msgspec.structs.replace(state, settings=json.loads(json.dumps(state.settings)))
  if storage.exists(folder / _STATE):
    before = State.read(folder)
    if differences := before.differences(state):
      raise errors.InputError(
        f"{folder} has other vectors: {differences}; give another folder, or delete it"
      )
    if before.sha256 is not None:
      _finished_files(folder)
      _remove_results(folder)
      return True
  state.write(folder)
  return False


def finish(folder: str | os.PathLike[str], sha256: Sequence[str]) -> None:
  """Marks the vectors as complete, so that `open_vectors` accepts them.

  Args:
    folder: The folder.
    sha256: What `npy_files.write_shard` has returned for each shard.

  Raises:
    InputError: a shard is missing or broken.
  """
  folder = storage.path(folder)
  state = State.read(folder)
  for number, rows in enumerate(state.rows):
    npy_files.check_shard(shard_path(folder, number), (rows, state.dimension), state.dtype)
  msgspec.structs.replace(state, sha256=list(sha256)).write(folder)
  _remove_results(folder)


def abandon(folder: str | os.PathLike[str]) -> None:
  """Leaves nothing of a folder that `start` has started, if it has no shard yet."""
  if not any(_SHARD.fullmatch(name) for name in storage.names(folder)):
    storage.remove(os.path.join(folder, _STATE))
    work_folders.remove_if_empty(os.fspath(folder))


def _remove_results(folder: storage.Path) -> None:
  """Removes the results of the units that wrote the shards, and what killed ones have left."""
  storage.remove_files(folder, list(filter(_RESULT.fullmatch, storage.names(folder))))
  work_folders.clear(work_folders.work_path(folder, is_folder=True))


class Vectors:
  """Vectors of a finished folder; slices of rows are memory-mapped arrays.

  Attributes:
    folder: The folder.
    shape: Number and width of the vectors.
    dtype: Of the vectors: float16 if they are stored so, else float32.
    settings: What the vectors were computed from.
    digest: Hash of the checksums of all files.
    shard_rows: Number of rows of each shard.
  """

  def __init__(self, folder: storage.Path):
    """Reads and checks the files; see `open_vectors`."""
    state, self._paths = _finished_files(folder)
    self.folder = os.fspath(folder)
    self.dtype, self._sha256 = np.dtype(state.dtype), state.sha256 or []
    self.settings, self.shard_rows = state.settings, state.rows
    self.digest = hashlib.sha256("".join(self._sha256).encode()).hexdigest()
    self._ends = np.cumsum([0, *state.rows], dtype=np.int64).tolist()[1:]
    self.shape: tuple[int, int] = (sum(state.rows), state.dimension)

  def __getstate__(self) -> dict[str, Any]:
    # Another process maps the files itself, and may run in another folder.
    state = {name: value for name, value in self.__dict__.items() if name != "_mapped"}
    return {**state, "_paths": list(map(storage.absolute, self._paths))}

  def __len__(self) -> int:
    return self.shape[0]

  def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
    """Returns all rows in memory, for NumPy."""
    return np.array(self[:], dtype, copy=copy)

  def __getitem__(self, rows: slice | int) -> np.ndarray:
    """Returns consecutive rows, [B, D], or one row, [D]; read-only if they are in one file."""
    if not isinstance(rows, slice):
      row = range(len(self))[rows]
      return self[row : row + 1][0]
    start, stop, step = rows.indices(len(self))
    if step != 1:
      raise IndexError(f"rows can be read in order only, not in steps of {step}")
    index = bisect.bisect_right(self._ends, start)
    if start < stop <= self._ends[index]:
      return self._rows(index, start, stop)
    found_BD = np.empty((max(0, stop - start), self.shape[1]), self.dtype)
    done = 0
    while done < len(found_BD):  # A copy, so that one file is open at a time.
      index = bisect.bisect_right(self._ends, start + done)
      part_PD = self._rows(index, start + done, min(stop, self._ends[index]))
      found_BD[done : done + len(part_PD)] = part_PD
      done += len(part_PD)
    return found_BD

  def shards(self) -> Iterator[np.ndarray]:
    """Yields the arrays of the shards, read-only."""
    return map(self._read, range(len(self._paths)))

  def take(self, row_N: np.ndarray) -> np.ndarray:
    """Returns some rows, [N, D], in any order and repeatedly."""
    shard_N = np.searchsorted(self._ends, row_N, side="right")
    found_ND = np.empty((len(row_N), self.shape[1]), self.dtype)
    for index in np.unique(shard_N).tolist():
      place_P = np.flatnonzero(shard_N == index)
      row_P = row_N[place_P] - (self._ends[index] - self.shard_rows[index])
      if storage.is_url(self._paths[index]):
        shape = self.shard_rows[index], self.shape[1]
        part_PD = npy_files.read_rows(self._paths[index], shape, self.dtype.name, row_P)
      else:
        part_PD = self._mapped(index)[row_P]
      found_ND[place_P] = part_PD
    return found_ND

  def _rows(self, index: int, start: int, stop: int) -> np.ndarray:
    """Returns rows that are in one file."""
    first = self._ends[index] - self.shard_rows[index]
    return self._read(index)[start - first : stop - first]

  def _read(self, index: int) -> np.ndarray:
    """Returns the rows of a file."""
    shape = self.shard_rows[index], self.shape[1]
    return npy_files.read_shard(self._paths[index], shape, self.dtype.name, self._sha256[index])

  @functools.cached_property
  def _mapped(self) -> Callable[[int], np.ndarray]:
    """`_read` of local files; the last ones used stay open."""
    return functools.lru_cache(_MAPS)(self._read)


class ArrayVectors(Vectors):
  """Vectors of another source: an array in memory, or a .npy file, which is memory-mapped."""

  def __init__(self, source: Any, name: str):
    """Checks the vectors and computes their digest; see `open_vectors`."""
    self._source, self.folder, self._paths, self.settings = source, name, [name], {}
    array_ND = self._array
    if array_ND.ndim != 2 or array_ND.dtype not in (np.float32, np.float16):
      raise errors.InputError(
        f"{name}: {array_ND.dtype} of shape {array_ND.shape}; give vectors as rows, [N, D], of "
        "float32 or float16 (`astype`)"
      )
    self.shape, self.dtype, self.shard_rows = array_ND.shape, array_ND.dtype, [len(array_ND)]
    self._ends = self.shard_rows
    digest = hashlib.sha256(npy_files.header(self.shape, self.dtype.name))
    for start in range(0, len(array_ND), _CHECKED):
      block_BD = array_ND[start : start + _CHECKED]
      try:
        digest.update(npy_files.checked_rows(block_BD, self.shape[1], self.dtype.name, start).data)
      except ValueError as error:
        raise errors.InputError(f"{name}: {error}; remove it, or compute it again") from None
    self.digest = digest.hexdigest()

  def __getstate__(self) -> dict[str, Any]:
    # Another process maps a file itself.
    return {name: value for name, value in super().__getstate__().items() if name != "_array"}

  @functools.cached_property
  def _array(self) -> np.ndarray:
    source = self._source
    return npy_files.mapped(source) if isinstance(source, str) else np.asarray(source)

  def _read(self, index: int) -> np.ndarray:
    return self._array


def open_vectors(vectors: Any) -> Vectors:
  """Opens vectors: of a finished folder, of a .npy file, or in an array.

  Checksums of local files are verified now, those of files in object stores when they are read. A
  .npy file in a store is copied to this machine.

  Args:
    vectors: A folder that `vmsst embed` wrote; a .npy file or an array of NumPy, JAX or torch, [N,
      D], float32 or float16; or what this function has returned.

  Raises:
    InputError: there are no vectors, they are incomplete, or a file is missing, broken or
      truncated; or an array has another shape or dtype, or a value that is not finite.
  """
  if isinstance(vectors, Vectors):
    return vectors
  if hasattr(vectors, "__array__"):
    return ArrayVectors(vectors, "the array")
  path = storage.path(vectors)
  if storage.is_file(path):
    return ArrayVectors(storage.absolute(storage.cached_copy(os.fspath(path))), os.fspath(path))
  return Vectors(path)


def _finished_files(folder: storage.Path) -> tuple[State, list[str]]:
  """Reads and checks the state of a finished folder; returns it and the paths of its shards."""
  if not storage.exists(folder / _STATE):
    raise errors.InputError(
      f"{folder}: no vectors.json: give a folder that `vmsst embed` wrote, or a .npy file"
    )
  state = State.read(folder)
  if state.sha256 is None:
    raise errors.InputError(f"{folder} is not finished; rerun the same command to resume")
  paths = [shard_path(folder, number) for number in range(len(state.rows))]
  for path, rows in zip(paths, state.rows, strict=True):
    npy_files.check_shard(path, (rows, state.dimension), state.dtype)
  if not storage.is_url(folder):
    with futures.ThreadPoolExecutor(os.cpu_count()) as pool:
      list(pool.map(functools.partial(checksums.check, fix=_AGAIN), paths, state.sha256))
  return state, paths
