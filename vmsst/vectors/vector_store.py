"""A folder of sentence vectors: shards `vectors-00000.npy`, ... and `vectors.json`.

Shards are written in any order, by any process, each atomically (`shard_files.write`); `start` and
`finish` write `vectors.json` before and after them. Readers also accept folders of earlier
versions, which may consist of subfolders `part-<i>-of-<n>`.
"""

import bisect
import functools
import hashlib
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent import futures
from typing import Any, NamedTuple

import numpy as np

from vmsst import errors
from vmsst.files import (
  atomic_files,
  checksums,
  input_files,
  storage,
  stored_settings,
  work_folders,
)
from vmsst.process import interrupts
from vmsst.vectors import npy_files, shard_files
from vmsst.vectors.shard_files import Kind

_MOST_SHARDS = 10**7
_MAPS = 128  # Open maps. Each has a descriptor, of 1,024 that a process may usually have.
_AGAIN = "delete the folder and embed again"
_STATE = "vectors.json"
_PART = re.compile(r"part-(\d+)-of-(\d+)")
_SHARD = re.compile(r"vectors-\d{5,}\.npy(\.json)?")
_RESULT = re.compile(r"vectors-\d{5,}\.npy\.json")


def shard_path(folder: str | os.PathLike[str], number: int) -> str:
  """Returns the path of a shard, numbered from 0; `shard_files.write` writes it."""
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


def start(
  folder: str | os.PathLike[str], kind: Kind, rows: Sequence[int], settings: Mapping[str, Any]
) -> bool:
  """Starts a folder, or resumes an unfinished one; returns whether it is finished already.

  Args:
    folder: The folder.
    kind: What the vectors are.
    rows: Number of vectors of each shard.
    settings: What the vectors are computed from, as for JSON.

  Raises:
    InputError: the folder has other vectors or broken files.
  """
  folder = storage.path(folder)
  state = {
    "dimension": int(kind.dimension),
    "dtype": kind.dtype,
    "settings": json.loads(json.dumps(dict(settings))),
    "rows": list(rows),
    "ranges": None,
    "sha256": None,
    "count": None,
  }
  if storage.exists(folder / _STATE):
    before = _read_state(folder)
    if differences := _differences(before, state):
      raise errors.InputError(
        f"{folder} has other vectors: {differences}; give another folder, or delete it"
      )
    if before["count"] is not None:
      _finished_state(folder)
      _remove_results(folder)
      return True
  atomic_files.write_json(folder / _STATE, dict(sorted(state.items())))
  return False


def finish(folder: str | os.PathLike[str], kind: Kind, sha256: Sequence[str]) -> None:
  """Marks the vectors as complete, so that `open_vectors` accepts them.

  Args:
    folder: The folder.
    kind: How its vectors are stored.
    sha256: What `shard_files.write` has returned for each shard.

  Raises:
    InputError: a shard is missing or broken.
  """
  folder = storage.path(folder)
  state = _read_state(folder)
  for number, rows in enumerate(state["rows"]):
    shard_files.check(shard_path(folder, number), kind, rows)
  state["ranges"] = kind.ranges
  state["sha256"] = list(sha256)
  state["count"] = sum(state["rows"])
  atomic_files.write_json(folder / _STATE, dict(sorted(state.items())))
  _remove_results(folder)


def abandon(folder: str | os.PathLike[str]) -> None:
  """Leaves nothing of a folder that `start` has started, if it has no shard yet."""
  with interrupts.Uninterrupted():
    if not any(_SHARD.fullmatch(name) for name in storage.names(folder)):
      storage.remove(os.path.join(folder, _STATE))
      work_folders.remove_if_empty(os.fspath(folder))


def _remove_results(folder: storage.Path) -> None:
  """Removes the results of the units that wrote the shards, and what killed ones have left."""
  storage.remove_files(folder, list(filter(_RESULT.fullmatch, storage.names(folder))))
  work_folders.clear(work_folders.path_of(folder, is_folder=True))


class Writer:
  """Writes vectors from another source to a new folder, in order.

  Attributes:
    done: Number of vectors appended.
  """

  def __init__(
    self,
    folder: str | os.PathLike[str],
    dimension: int,
    *,
    dtype: str = "float32",
    settings: Mapping[str, Any] | None = None,
    shard_rows: int = 1 << 14,
  ):
    """Starts the folder.

    Args:
      folder: The folder.
      dimension: See `Kind`.
      dtype: See `Kind`.
      settings: What the vectors are computed from, as for JSON.
      shard_rows: Vectors per shard.

    Raises:
      InputError: the folder has vectors already, or see `Kind`.
    """
    self.done = 0
    self._folder = folder
    self._kind = Kind(dimension, dtype)
    self._settings = dict(settings or {})
    self._shard_rows = shard_rows
    self._waiting: list[np.ndarray] = []
    self._rows: list[int] = []
    self._sha256: list[str] = []
    if storage.exists(os.path.join(folder, _STATE)):
      raise errors.InputError(f"{folder} has vectors already; give another folder, or delete it")
    check_free(folder)

  def append(self, vectors_ND: Any) -> None:
    """Appends vectors.

    Raises:
      ValueError: the shape is not [N, dimension], or a value is not finite in the stored dtype.
    """
    kind = self._kind
    array_ND = npy_files.checked_rows(vectors_ND, kind.dimension, kind.read_dtype, self.done)
    self._waiting.append(array_ND)
    self.done += len(array_ND)
    while self.done - sum(self._rows) >= self._shard_rows:
      self._flush(self._shard_rows)

  def finish(self) -> None:
    """Writes what is left, and marks the vectors as complete."""
    if self._waiting:
      self._flush(self.done - sum(self._rows))
    start(self._folder, self._kind, self._rows, self._settings)
    finish(self._folder, self._kind, self._sha256)

  def _flush(self, rows: int) -> None:
    waiting_ND = np.concatenate(self._waiting)
    if rows:
      path = shard_path(self._folder, len(self._rows))
      self._sha256.append(shard_files.write(path, waiting_ND[:rows], self._kind))
      self._rows.append(rows)
    self._waiting = [waiting_ND[rows:]]


class _File(NamedTuple):
  """A shard: its path, what its vectors are, their number, and its checksum if it is known."""

  path: str
  kind: Kind
  rows: int
  sha256: str | None

  def read(self) -> np.ndarray:
    """Returns the vectors as they are stored."""
    return shard_files.read(*self)


class Vectors:
  """Vectors of a folder; slices of rows are memory-mapped arrays, or decoded bytes and bits.

  Attributes:
    shape: Number and width of the vectors.
    dtype: Of the vectors that are returned: float16 if they are stored so, else float32.
    settings: What the vectors were computed from (of the first part, if there are parts).
  """

  def __init__(self, parts: Sequence[tuple[storage.Path, Mapping[str, Any]]]):
    """Joins finished parts.

    Args:
      parts: Folder and state of each part; at least one, all with one width and dtype.
    """
    state = parts[0][1]
    self.dtype = np.dtype(_kind(state).read_dtype)
    self.settings: dict[str, Any] = state["settings"]
    self._files = [file for folder, own in parts for file in _files(folder, own)]
    self._ends = np.cumsum([file.rows for file in self._files], dtype=np.int64).tolist()
    self.shape: tuple[int, int] = (sum(own["count"] for _, own in parts), state["dimension"])

  def __getstate__(self) -> dict[str, Any]:
    # Another process maps the files itself, and may run in another folder.
    files = [file._replace(path=storage.absolute(file.path)) for file in self._files]
    state = {name: value for name, value in self.__dict__.items() if name != "_mapped"}
    return {**state, "_files": files}

  def __len__(self) -> int:
    return self.shape[0]

  def __getitem__(self, rows: slice) -> np.ndarray:
    """Returns consecutive rows, [B, D]; read-only if they are in one file."""
    start, stop, step = rows.indices(len(self))
    if step != 1:
      raise IndexError(f"rows can be read in order only, not in steps of {step}")
    index = bisect.bisect_right(self._ends, start)
    if start < stop <= self._ends[index]:
      return self._read(index, start, stop)
    found_BD = np.empty((max(0, stop - start), self.shape[1]), self.dtype)
    done = 0
    while done < len(found_BD):  # A copy, so that one file is open at a time.
      index = bisect.bisect_right(self._ends, start + done)
      part_PD = self._read(index, start + done, min(stop, self._ends[index]))
      found_BD[done : done + len(part_PD)] = part_PD
      done += len(part_PD)
    return found_BD

  @property
  def shard_rows(self) -> list[int]:
    """Number of rows of each shard."""
    return [file.rows for file in self._files]

  def shards(self) -> Iterator[np.ndarray]:
    """Yields the arrays of the shards, read-only."""
    for file in self._files:
      yield shard_files.decoded(file.read(), file.kind)

  def take(self, row_N: np.ndarray) -> np.ndarray:
    """Returns some rows, [N, D], in any order and repeatedly."""
    shard_N = np.searchsorted(self._ends, row_N, side="right")
    shards = np.unique(shard_N).tolist()
    if len(shards) == 1:
      return self._taken(shards[0], row_N)
    found_ND = np.empty((len(row_N), self.shape[1]), self.dtype)
    for index in shards:
      place_P = np.flatnonzero(shard_N == index)
      found_ND[place_P] = self._taken(index, row_N[place_P])
    return found_ND

  @functools.cached_property
  def digest(self) -> str:
    """Hash of the checksums of all files; of vectors of earlier versions, of the files."""
    known = [file.sha256 for file in self._files]
    if None in known:
      known = list(_checksums(self._files))
    return hashlib.sha256("".join(map(str, known)).encode()).hexdigest()

  def _read(self, index: int, start: int, stop: int) -> np.ndarray:
    """Returns rows that are in one file."""
    file = self._files[index]
    first = self._ends[index] - file.rows
    return shard_files.decoded(file.read()[start - first : stop - first], file.kind)

  def _taken(self, index: int, row_P: np.ndarray) -> np.ndarray:
    """Returns some rows of the file that has them."""
    file = self._files[index]
    first = self._ends[index] - file.rows
    return shard_files.decoded(self._stored(index, row_P - first), file.kind)

  def _stored(self, index: int, row_P: np.ndarray) -> np.ndarray:
    """Returns some rows of a file as they are stored."""
    file = self._files[index]
    if storage.is_url(file.path):
      return shard_files.read_rows(file.path, file.kind, file.rows, row_P)
    return np.take(self._mapped(index), row_P, axis=0)

  @functools.cached_property
  def _mapped(self) -> Callable[[int], np.ndarray]:
    """A function that returns the memory map of a file; the last ones used stay open."""
    files = self._files
    return functools.lru_cache(_MAPS)(lambda index: files[index].read())


def shape(folder: str | os.PathLike[str]) -> tuple[int, int]:
  """Returns number and width of the vectors of a finished folder, without reading them.

  Raises:
    InputError: there is no folder of vectors, or it is not finished.
  """
  state = _complete_state(storage.path(folder))
  return state["count"], state["dimension"]


def open_vectors(folder: str | os.PathLike[str]) -> Vectors:
  """Opens the vectors of a finished folder, or of all its parts in order.

  Checksums of local files are verified now, those of files in object stores when they are read.

  Raises:
    InputError: there are no vectors, they are incomplete, a part is missing or does not match, or a
      file is missing, broken or truncated.
  """
  folder = storage.path(folder)
  inside = sorted(storage.names(folder))
  found = [match for match in map(_PART.fullmatch, inside) if match]
  if _STATE in inside or not found:
    return Vectors([(folder, _finished_state(folder))])
  counts = sorted({int(match[2]) for match in found})
  if len(counts) > 1:
    raise errors.InputError(
      f"{folder} has parts of {' and of '.join(map(str, counts))}: delete those that do not belong"
    )
  folders = [folder / f"part-{part}-of-{counts[0]}" for part in range(1, counts[0] + 1)]
  missing = [path.name for path in folders if path.name not in inside]
  if missing:
    raise errors.InputError(f"{folder} lacks {', '.join(missing[:10])}: {_AGAIN}")
  states = [_finished_state(path) for path in folders]
  first = states[0]
  for path, state in zip(folders, states, strict=True):
    if differences := _differences(state, first):
      raise errors.InputError(
        f"{path} and {folders[0]} have different vectors: {differences}; {_AGAIN}"
      )
  return Vectors(list(zip(folders, states, strict=True)))


def _differences(state: Mapping[str, Any], given: Mapping[str, Any]) -> str:
  keys = ("dimension", "dtype")
  return stored_settings.differences(
    *({**{key: each[key] for key in keys}, **each["settings"]} for each in (state, given))
  )


def _complete_state(folder: storage.Path) -> dict[str, Any]:
  """Reads the state of a finished folder."""
  if not storage.exists(folder / _STATE):
    raise errors.InputError(f"{folder}: no vectors.json: give a folder that `vmsst embed` wrote")
  state = _read_state(folder)
  if state["count"] is None:
    raise errors.InputError(f"{folder} is not finished; rerun the same command to resume")
  return state


def _finished_state(folder: storage.Path) -> dict[str, Any]:
  """Reads and checks the state and files of a finished folder."""
  state = _complete_state(folder)
  files = _files(folder, state)
  for file in files:
    shard_files.check(file.path, file.kind, file.rows)
  if state["sha256"] is None:  # of earlier versions
    for file in files:
      row_P = np.flatnonzero(~np.isfinite(shard_files.decoded(file.read(), file.kind)).all(axis=1))
      if len(row_P):
        raise errors.InputError(f"{file.path}: row {row_P[0]} is not finite: {_AGAIN}")
  elif not storage.is_url(folder):
    for file, own in zip(files, _checksums(files), strict=True):
      if own != file.sha256:
        raise errors.InputError(
          f"{file.path}: damaged: it has changed since it was written: {_AGAIN}"
        )
  return state


def _checksums(files: Sequence[_File]) -> list[str]:
  """Returns the SHA-256 of files, computed on all cores."""
  with futures.ThreadPoolExecutor(os.cpu_count()) as pool:
    return list(pool.map(checksums.of_file, [file.path for file in files]))


def _read_state(folder: storage.Path) -> dict[str, Any]:
  path = folder / _STATE
  try:
    state = {"sha256": None, "ranges": None, **input_files.read_json(path)}
    if "rows" not in state:
      state["rows"] = _equal_shards(state.pop("done"), state.pop("shard_rows"))
    whole = [state["dimension"], *state["rows"]]
    good = all(type(value) is int and value >= 0 for value in whole)
    good = good and state["count"] in (None, sum(state["rows"]))
    good = good and state["dtype"] in shard_files.DTYPES
    good = good and _are_ranges(state["ranges"], state)
    good = good and isinstance(state["settings"], dict)
    good = good and (state["sha256"] is None or len(state["sha256"]) == len(state["rows"]))
  except errors.InputError as error:
    raise errors.InputError(f"{path}: broken: {_AGAIN} ({error})") from None
  except (KeyError, OverflowError, TypeError, ValueError):
    good = False
  if not good:
    raise errors.InputError(f"{path}: broken: {_AGAIN}")
  return state


def _are_ranges(ranges: Any, state: Mapping[str, Any]) -> bool:
  """Returns whether finished vectors of int8 have ranges, and others none."""
  if state["dtype"] != "int8" or state["count"] is None:
    return ranges is None
  ranges_2D = np.asarray(ranges, np.float32)
  return ranges_2D.shape == (2, state["dimension"]) and bool(np.isfinite(ranges_2D).all())


def _equal_shards(count: int, most: int) -> list[int]:
  """Returns the rows of shards as earlier versions store them; raises TypeError or ValueError."""
  starts = range(0, count, most)
  if len(starts) > _MOST_SHARDS:
    raise ValueError("there cannot be so many files")
  return [min(most, count - start) for start in starts]


def _kind(state: Mapping[str, Any]) -> Kind:
  ranges = state["ranges"] and tuple(map(tuple, state["ranges"]))
  return Kind(state["dimension"], state["dtype"], ranges)


def _files(folder: storage.Path, state: Mapping[str, Any]) -> list[_File]:
  kind, sha256 = _kind(state), state["sha256"] or [None] * len(state["rows"])
  return [
    _File(shard_path(folder, number), kind, rows, own)
    for number, (rows, own) in enumerate(zip(state["rows"], sha256, strict=True))
  ]
