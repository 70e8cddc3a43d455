"""A folder of sentence vectors: shards `vectors-00000.npy`, ... and `vectors.json`.

Shards are written in any order, by any process, each atomically; `start` and `finish` write
`vectors.json` before and after them. Shards can also be safetensors (one tensor, `vectors`) or
Parquet (one column, `vector`). Readers also accept folders of earlier versions, which may consist
of subfolders `part-<i>-of-<n>`.
"""

import bisect
import contextlib
import dataclasses
import functools
import json
import os
import pathlib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import IO, Any

import numpy as np

from vmsst import errors
from vmsst.files import atomic_files, input_files, stored_settings
from vmsst.vectors import npy_files

FORMATS = ("npy", "safetensors", "parquet")
_DTYPES = ("float32", "float16")
_PARQUET_ROWS = 1 << 12  # Per row group.
_MOST_SHARDS = 10**7
_AGAIN = "delete the folder and embed again"
_STATE = "vectors.json"
_PART = re.compile(r"part-(\d+)-of-(\d+)")
_SHARD = re.compile(r"vectors-\d{5,}\..*")


@dataclasses.dataclass(frozen=True)
class Kind:
  """What the vectors of a folder are.

  Attributes:
    dimension: Width of the vectors.
    dtype: float32, or float16 for half the space.
    file_format: npy and safetensors are memory-mapped by readers; parquet is not, and needs
      pyarrow.

  Raises:
    InputError: the dtype or format is unknown, or pyarrow is not installed.
  """

  dimension: int
  dtype: str = "float32"
  file_format: str = "npy"

  def __post_init__(self) -> None:
    if self.dtype not in _DTYPES:
      raise errors.InputError(f"dtype is {self.dtype}; choose {' or '.join(_DTYPES)}")
    if self.file_format not in FORMATS:
      raise errors.InputError(f"format is {self.file_format}; choose {', '.join(FORMATS)}")
    if self.file_format == "parquet":
      _import_pyarrow()


def shard_path(folder: str | os.PathLike[str], kind: Kind, number: int) -> str:
  """Returns the path of a shard, numbered from 0."""
  return os.path.join(folder, f"vectors-{number:05d}.{kind.file_format}")


def write_shard(path: str, vectors_ND: Any, kind: Kind, first: int = 0) -> None:
  """Writes the file of a shard atomically; several processes may write the same one.

  Args:
    path: The file; see `shard_path`.
    vectors_ND: Its vectors.
    kind: What they are.
    first: Number of the first vector, for error messages.

  Raises:
    ValueError: the shape is not [N, dimension], or a value is not finite in the stored dtype.
    OSError: the file cannot be written.
  """
  array_ND = npy_files.checked_rows(vectors_ND, kind.dimension, kind.dtype, first)
  with atomic_files.atomic_file(path, shared=True) as stream:
    if kind.file_format == "parquet":
      _write_parquet(stream, array_ND)
    else:
      stream.write(_header(kind.file_format, array_ND.shape, kind.dtype))
      stream.write(array_ND.data)


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
  folder = pathlib.Path(folder)
  state = {
    "dimension": int(kind.dimension),
    "dtype": kind.dtype,
    "format": kind.file_format,
    "settings": json.loads(json.dumps(dict(settings))),
    "rows": list(rows),
    "count": None,
  }
  if (folder / _STATE).exists():
    before = _read_state(folder)
    if differences := _differences(before, state, "format"):
      raise errors.InputError(
        f"{folder} has other vectors: {differences}; give another folder, or delete it"
      )
    if before["count"] is not None:
      _finished_state(folder)
      _remove_results(folder)
      return True
  atomic_files.write_json(folder / _STATE, dict(sorted(state.items())))
  return False


def finish(folder: str | os.PathLike[str]) -> None:
  """Marks the vectors as complete, so that `open_vectors` accepts them.

  Raises:
    InputError: a shard is missing or broken.
  """
  folder = pathlib.Path(folder)
  state = _read_state(folder)
  for number, rows in enumerate(state["rows"]):
    _check_shard(folder, state, number, rows)
  state["count"] = sum(state["rows"])
  atomic_files.write_json(folder / _STATE, dict(sorted(state.items())))
  _remove_results(folder)


def abandon(folder: str | os.PathLike[str]) -> None:
  """Leaves nothing of a folder that `start` has started, if it has no shard yet."""
  folder = pathlib.Path(folder)
  if folder.is_dir() and not any(_SHARD.fullmatch(path.name) for path in folder.iterdir()):
    (folder / _STATE).unlink(missing_ok=True)
    with contextlib.suppress(OSError):  # not empty
      folder.rmdir()


def _remove_results(folder: pathlib.Path) -> None:
  """Removes the results of the units that wrote the shards, and what killed ones have left."""
  for path in folder.glob("vectors-*.json"):
    path.unlink(missing_ok=True)
  atomic_files.remove_partial(folder)


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
    file_format: str = "npy",
  ):
    """Starts the folder.

    Args:
      folder: The folder.
      dimension: See `Kind`.
      dtype: See `Kind`.
      settings: What the vectors are computed from, as for JSON.
      shard_rows: Vectors per shard.
      file_format: See `Kind`.

    Raises:
      InputError: the folder has vectors already, or see `Kind`.
    """
    self.done = 0
    self._folder = folder
    self._kind = Kind(dimension, dtype, file_format)
    self._settings = dict(settings or {})
    self._shard_rows = shard_rows
    self._waiting: list[np.ndarray] = []
    self._rows: list[int] = []
    if os.path.exists(os.path.join(folder, _STATE)):
      raise errors.InputError(f"{folder} has vectors already; give another folder, or delete it")

  def append(self, vectors_ND: Any) -> None:
    """Appends vectors.

    Raises:
      ValueError: the shape is not [N, dimension], or a value is not finite in the stored dtype.
    """
    array_ND = npy_files.checked_rows(vectors_ND, self._kind.dimension, self._kind.dtype, self.done)
    self._waiting.append(array_ND)
    self.done += len(array_ND)
    while self.done - sum(self._rows) >= self._shard_rows:
      self._flush(self._shard_rows)

  def finish(self) -> None:
    """Writes what is left, and marks the vectors as complete."""
    if self._waiting:
      self._flush(self.done - sum(self._rows))
    start(self._folder, self._kind, self._rows, self._settings)
    finish(self._folder)

  def _flush(self, rows: int) -> None:
    waiting_ND = np.concatenate(self._waiting)
    if rows:
      write_shard(
        shard_path(self._folder, self._kind, len(self._rows)), waiting_ND[:rows], self._kind
      )
      self._rows.append(rows)
    self._waiting = [waiting_ND[rows:]]


class Vectors:
  """Vectors of a folder; slices of rows are memory-mapped arrays.

  Attributes:
    shape: Number and width of the vectors.
    dtype: float32 or float16.
    settings: What the vectors were computed from (of the first part, if there are parts).
  """

  def __init__(self, parts: Sequence[tuple[pathlib.Path, Mapping[str, Any]]]):
    """Joins finished parts.

    Args:
      parts: Folder and state of each part; at least one, all with one width and dtype.
    """
    state = parts[0][1]
    self.dtype = np.dtype(state["dtype"])
    self.settings: dict[str, Any] = state["settings"]
    self._files = [(*part, *shard) for part in parts for shard in enumerate(part[1]["rows"])]
    self._ends = np.cumsum([rows for *_, rows in self._files], dtype=np.int64).tolist()
    self.shape: tuple[int, int] = (sum(own["count"] for _, own in parts), state["dimension"])

  def __len__(self) -> int:
    return self.shape[0]

  def __getitem__(self, rows: slice) -> np.ndarray:
    """Returns consecutive rows, [B, D]; read-only if they are in one file."""
    start, stop, step = rows.indices(len(self))
    if step != 1:
      raise IndexError(f"rows can be read in order only, not in steps of {step}")
    parts = []
    while start < stop:
      index = bisect.bisect_right(self._ends, start)
      end = min(stop, self._ends[index])
      before = self._ends[index] - self._files[index][-1]
      parts.append(_rows_of_shard(*self._files[index])[start - before : end - before])
      start = end
    if not parts:
      return np.empty((0, self.shape[1]), self.dtype)
    return parts[0] if len(parts) == 1 else np.concatenate(parts)

  def shards(self) -> Iterator[np.ndarray]:
    """Yields the arrays of the shards, read-only."""
    for file in self._files:
      yield _rows_of_shard(*file)


def open_vectors(folder: str | os.PathLike[str]) -> Vectors:
  """Opens the vectors of a finished folder, or of all its parts in order.

  Raises:
    InputError: there are no vectors, they are incomplete, a part is missing or does not match, or a
      file is missing, broken or truncated.
  """
  folder = pathlib.Path(folder)
  inside = [path.name for path in folder.iterdir()] if folder.is_dir() else []
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


def _differences(state: Mapping[str, Any], given: Mapping[str, Any], *more: str) -> str:
  keys = ("dimension", "dtype", *more)
  return stored_settings.differences(
    *({**{key: each[key] for key in keys}, **each["settings"]} for each in (state, given))
  )


def _finished_state(folder: pathlib.Path) -> dict[str, Any]:
  """Reads and checks the state and files of a finished folder."""
  if not (folder / _STATE).exists():
    raise errors.InputError(f"{folder}: no vectors.json: give a folder that `vmsst embed` wrote")
  state = _read_state(folder)
  if state["count"] is None:
    raise errors.InputError(f"{folder} is not finished; rerun the same command to resume")
  for number, rows in enumerate(state["rows"]):
    _check_shard(folder, state, number, rows)
  return state


def safetensors_header(shape: tuple[int, int], dtype: str) -> bytes:
  """Returns the header of a safetensors file of vectors; it has one size for any number of rows."""
  size = shape[0] * shape[1] * np.dtype(dtype).itemsize
  name = {"float32": "F32", "float16": "F16"}[dtype]
  tensor = {"dtype": name, "shape": list(shape), "data_offsets": [0, size]}
  return (120).to_bytes(8, "little") + f"{json.dumps({'vectors': tensor}):<120}".encode("ascii")


def _read_state(folder: pathlib.Path) -> dict[str, Any]:
  path = folder / _STATE
  try:
    # The first folders had a single format, which they do not name.
    state = {"format": "npy", **input_files.read_json(path)}
    if "rows" not in state:
      state["rows"] = _equal_shards(state.pop("done"), state.pop("shard_rows"))
    whole = [state["dimension"], *state["rows"]]
    good = all(type(value) is int and value >= 0 for value in whole)
    good = good and state["count"] in (None, sum(state["rows"]))
    good = good and state["dtype"] in _DTYPES and state["format"] in FORMATS
    good = good and isinstance(state["settings"], dict)
  except errors.InputError as error:
    raise errors.InputError(f"{path}: broken: {_AGAIN} ({error})") from None
  except (KeyError, TypeError, ValueError):
    good = False
  if not good:
    raise errors.InputError(f"{path}: broken: {_AGAIN}")
  return state


def _equal_shards(count: int, most: int) -> list[int]:
  """Returns the rows of shards as earlier versions store them; raises TypeError or ValueError."""
  starts = range(0, count, most)
  if len(starts) > _MOST_SHARDS:
    raise ValueError("there cannot be so many files")
  return [min(most, count - start) for start in starts]


def _check_shard(folder: pathlib.Path, state: Mapping[str, Any], number: int, rows: int) -> None:
  path = _path(folder, state, number)
  if state["format"] == "parquet":
    if (found := _parquet_shape(path)) != (rows, state["dimension"]):
      raise errors.InputError(f"{path}: broken: it has {found}, not {rows} vectors: {_AGAIN}")
    return
  header = _header(state["format"], (rows, state["dimension"]), state["dtype"])
  try:
    input_files.check(path)
    with open(path, "rb") as file:
      found = file.read(len(header))
    length = path.stat().st_size
  except errors.InputError as error:
    raise errors.InputError(f"{error}: {_AGAIN}") from None
  except OSError as error:
    raise errors.InputError(f"{path}: cannot be read: {error.strerror}: {_AGAIN}") from None
  if found != header:
    raise errors.InputError(
      f"{path}: broken: its header is not that of {rows} {state['dtype']} vectors of width "
      f"{state['dimension']}: {_AGAIN}"
    )
  row_bytes = state["dimension"] * np.dtype(state["dtype"]).itemsize
  if length < len(header) + rows * row_bytes:
    raise errors.InputError(f"{path}: truncated: it has fewer than {rows} vectors: {_AGAIN}")


def _path(folder: pathlib.Path, state: Mapping[str, Any], number: int) -> pathlib.Path:
  return folder / f"vectors-{number:05d}.{state['format']}"


def _header(file_format: str, shape: tuple[int, ...], dtype: str) -> bytes:
  make: Any = safetensors_header if file_format == "safetensors" else npy_files.header
  return make(shape, dtype)


def _rows_of_shard(
  folder: pathlib.Path, state: Mapping[str, Any], number: int, rows: int
) -> np.ndarray:
  path = _path(folder, state, number)
  if state["format"] == "parquet":
    return _read_parquet(path)
  shape = (rows, state["dimension"])
  dtype = np.dtype(state["dtype"]).newbyteorder("<")
  offset = len(_header(state["format"], shape, state["dtype"]))
  return np.memmap(path, dtype, "r", offset, shape).view(np.ndarray)


# --------------------------------------------------------------------------------------------
# Parquet


def _import_pyarrow() -> tuple[Any, Any]:
  with errors.requires("parquet", "Parquet"):
    import pyarrow
    from pyarrow import parquet
  return pyarrow, parquet


def _write_parquet(stream: IO[bytes], vectors_ND: np.ndarray) -> None:
  pyarrow, parquet = _import_pyarrow()
  width = vectors_ND.shape[1]
  item = pyarrow.from_numpy_dtype(vectors_ND.dtype)
  schema = pyarrow.schema([("vector", pyarrow.list_(item, width))])
  with parquet.ParquetWriter(stream, schema) as writer:
    for start in range(0, len(vectors_ND), _PARQUET_ROWS):
      flat = np.ascontiguousarray(vectors_ND[start : start + _PARQUET_ROWS]).reshape(-1)
      column = pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(flat), width)
      writer.write_table(pyarrow.Table.from_arrays([column], schema=schema))


@functools.lru_cache(maxsize=1)
def _parquet_of(path: pathlib.Path, changed: int) -> np.ndarray:
  del changed  # part of the cache key
  _, parquet = _import_pyarrow()
  column = parquet.read_table(path).column("vector").combine_chunks()
  width = column.type.list_size
  array_ND = column.flatten().to_numpy(zero_copy_only=False).reshape(-1, width)
  array_ND.flags.writeable = False
  return array_ND


def _read_parquet(path: pathlib.Path) -> np.ndarray:
  """Returns the rows of a file; the last file stays in memory."""
  return _parquet_of(path, path.stat().st_mtime_ns)


def _parquet_shape(path: pathlib.Path) -> Any:
  """Returns rows and width of a file, or what is wrong with it."""
  pyarrow, parquet = _import_pyarrow()
  try:
    file = parquet.ParquetFile(path)
    return file.metadata.num_rows, file.schema_arrow.field("vector").type.list_size
  except (pyarrow.ArrowException, OSError, KeyError, AttributeError) as error:
    return f"no vectors ({error})"
