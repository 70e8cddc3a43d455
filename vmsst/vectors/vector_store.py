"""A folder of sentence vectors: shards `vectors-00000.npy`, ... and `vectors.json`.

Appended vectors survive a kill; a `Writer` on the same folder resumes after them. Shards can also
be safetensors (one tensor, `vectors`) or Parquet (one column, `vector`). Several processes can fill
one folder, each a subfolder `part-<i>-of-<n>`; all parts are read as one.
"""

import bisect
import contextlib
import functools
import json
import os
import pathlib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from vmsst import errors
from vmsst.files import atomic_files, input_files, stored_settings
from vmsst.vectors import npy_files

FORMATS = ("npy", "safetensors", "parquet")
_DTYPES = ("float32", "float16")
_SHARD_ROWS = 1 << 17
_PARQUET_ROWS = 1 << 12  # Per row group.
_AGAIN = "delete the folder and embed again"
_PART = re.compile(r"part-(\d+)-of-(\d+)")


class Writer:
  """Appends vectors to a new or unfinished folder.

  Attributes:
    done: Number of vectors written.
  """

  def __init__(
    self,
    folder: str | os.PathLike[str],
    dimension: int,
    *,
    dtype: str = "float32",
    settings: Mapping[str, Any] | None = None,
    shard_rows: int = _SHARD_ROWS,
    file_format: str = "npy",
  ):
    """Starts a folder, which the first vectors create, or resumes an unfinished one.

    Args:
      folder: The folder.
      dimension: Width of the vectors.
      dtype: float32, or float16 for half the space.
      settings: What the vectors are computed from, as for JSON; must not change on resuming.
      shard_rows: Vectors per shard; unfinished folders keep theirs.
      file_format: npy and safetensors are memory-mapped by readers; parquet is not, and needs
        pyarrow.

    Raises:
      InputError: the folder has other vectors or broken files, the format is unknown, or pyarrow is
        not installed.
    """
    if dtype not in _DTYPES:
      raise errors.InputError(f"dtype is {dtype}; choose {' or '.join(_DTYPES)}")
    if file_format not in FORMATS:
      raise errors.InputError(f"format is {file_format}; choose {', '.join(FORMATS)}")
    if file_format == "parquet":
      _import_pyarrow()
    self._folder = pathlib.Path(folder)
    self._state: dict[str, Any] = {
      "dimension": int(dimension),
      "dtype": dtype,
      "format": file_format,
      "settings": json.loads(json.dumps(dict(settings or {}))),
      "shard_rows": int(shard_rows),
      "done": 0,
      "count": None,
    }
    if (self._folder / "vectors.json").exists():
      before = _read_state(self._folder)
      if differences := _differences(before, self._state, "format"):
        raise errors.InputError(
          f"{self._folder} has other vectors: {differences}; give another folder, or delete it"
        )
      self._state = before
      for number, rows in _shards(self._state):
        _check_shard(self._folder, self._state, number, rows)
      self._seal()
    self.done: int = self._state["done"]

  @property
  def finished(self) -> bool:
    """Whether `finish` was called."""
    return self._state["count"] is not None

  def append(self, vectors_ND: np.ndarray) -> None:
    """Appends vectors; they are on disk when this returns.

    Raises:
      ValueError: the shape is not [N, dimension], a value is not finite in the stored dtype, or
        the folder is finished.
    """
    if self.finished:
      raise ValueError(f"{self._folder} is finished: nothing can be appended")
    array_ND = npy_files.checked_rows(
      vectors_ND, self._state["dimension"], self._state["dtype"], self.done
    )
    start = 0
    try:
      while start < len(array_ND):
        number, place = divmod(self.done + start, self._state["shard_rows"])
        part_PD = array_ND[start : start + self._state["shard_rows"] - place]
        self._write(number, place, part_PD)
        start += len(part_PD)
      self._commit(done=self.done + start)
    except BaseException:
      self._remove_uncommitted(1 + start // self._state["shard_rows"])
      raise
    self._seal()

  def finish(self) -> None:
    """Marks the vectors as complete, so that `open_vectors` accepts them."""
    number, rows = divmod(self.done, self._state["shard_rows"])
    if rows:
      # Corrects the row count of the last shard and removes what an interruption left after it.
      path = _open_path(self._folder, self._state, number)
      header = _header(self._state, rows)
      with atomic_files.naming(path), open(path, "r+b") as file:
        file.write(header)
        file.truncate(len(header) + rows * _row_bytes(self._state))
        _sync(file)
    self._commit(count=self.done)
    self._seal()

  def _write(self, number: int, place: int, part_PD: np.ndarray) -> None:
    self._folder.mkdir(parents=True, exist_ok=True)
    path = _open_path(self._folder, self._state, number)
    header = _header(self._state, self._state["shard_rows"])
    with atomic_files.naming(path), open(path, "r+b" if place else "wb") as file:
      file.write(header)
      file.seek(len(header) + place * _row_bytes(self._state))
      file.write(part_PD.tobytes())
      _sync(file)

  def _remove_uncommitted(self, shards: int) -> None:
    """Leaves nothing if not even the first vectors could be written."""
    if (self._folder / "vectors.json").exists():
      return
    for number in range(shards):
      _open_path(self._folder, self._state, number).unlink(missing_ok=True)
    with contextlib.suppress(OSError):  # not empty
      self._folder.rmdir()

  def _commit(self, **changes: Any) -> None:
    """Updates the state atomically; rows count only once it includes them."""
    self._state |= changes
    path = self._folder / "vectors.json"
    atomic_files.write_json(path, dict(sorted(self._state.items())))
    self.done = self._state["done"]

  def _seal(self) -> None:
    """Converts full shards, or all at the end, to their final format."""
    if self._state["format"] != "parquet":
      return
    for number, rows in _shards(self._state):
      path = _open_path(self._folder, self._state, number)
      if (rows == self._state["shard_rows"] or self.finished) and path.exists():
        _write_parquet(_kept_path(self._folder, self._state, number), _map(path, self._state, rows))
        path.unlink()


class Vectors:
  """Vectors of a folder; slices of rows are memory-mapped arrays.

  Attributes:
    shape: Number and width of the vectors.
    dtype: float32 or float16.
    settings: What the vectors were computed from (of the first part, if there are parts).
  """

  def __init__(self, parts: Sequence[tuple[pathlib.Path, Mapping[str, Any]]]):
    """Joins parts that `Writer`s finished.

    Args:
      parts: Folder and state of each part; at least one, all with one width and dtype.
    """
    state = parts[0][1]
    self.dtype = np.dtype(state["dtype"])
    self.settings: dict[str, Any] = state["settings"]
    self._files = [(*part, number, rows) for part in parts for number, rows in _shards(part[1])]
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


def part_folder(folder: str | os.PathLike[str], part: int, parts: int) -> pathlib.Path:
  """Returns the subfolder for part `part` of `parts`, from 1."""
  return pathlib.Path(folder) / f"part-{part}-of-{parts}"


def open_vectors(folder: str | os.PathLike[str]) -> Vectors:
  """Opens the vectors of a finished folder, or of all its parts in order.

  Raises:
    InputError: there are no vectors, they are incomplete, a part is missing or does not match, or a
      file is missing, broken or truncated.
  """
  folder = pathlib.Path(folder)
  inside = [path.name for path in folder.iterdir()] if folder.is_dir() else []
  found = [match for match in map(_PART.fullmatch, inside) if match]
  if "vectors.json" in inside or not found:
    return Vectors([(folder, _finished_state(folder))])
  counts = sorted({int(match[2]) for match in found})
  if len(counts) > 1:
    raise errors.InputError(
      f"{folder} has parts of {' and of '.join(map(str, counts))}: delete those that do not belong"
    )
  folders = [part_folder(folder, part, counts[0]) for part in range(1, counts[0] + 1)]
  missing = [path.name for path in folders if path.name not in inside]
  if missing:
    raise errors.InputError(f"{folder} lacks {', '.join(missing[:10])}: embed these parts too")
  states = [_finished_state(path) for path in folders]
  first = states[0]
  for path, state in zip(folders, states, strict=True):
    if differences := _differences(state, first):
      raise errors.InputError(
        f"{path} and {folders[0]} have different vectors: {differences}; embed all parts with the "
        "same encoder, text and options"
      )
  return Vectors(list(zip(folders, states, strict=True)))


def _differences(state: Mapping[str, Any], given: Mapping[str, Any], *more: str) -> str:
  keys = ("dimension", "dtype", *more)
  return stored_settings.differences(
    *({**{key: each[key] for key in keys}, **each["settings"]} for each in (state, given))
  )


def _finished_state(folder: pathlib.Path) -> dict[str, Any]:
  """Reads and checks the state and files of a finished folder."""
  if not (folder / "vectors.json").exists():
    raise errors.InputError(f"{folder}: no vectors.json: give a folder that `vmsst embed` wrote")
  state = _read_state(folder)
  if state["count"] is None:
    raise errors.InputError(
      f"{folder} is not finished: it has {state['done']} vectors; rerun the same command to resume"
    )
  for number, rows in _shards(state):
    _check_shard(folder, state, number, rows)
  return state


def safetensors_header(shape: tuple[int, int], dtype: str) -> bytes:
  """Returns the header of a safetensors file of vectors; it has one size for any number of rows."""
  size = shape[0] * shape[1] * np.dtype(dtype).itemsize
  name = {"float32": "F32", "float16": "F16"}[dtype]
  tensor = {"dtype": name, "shape": list(shape), "data_offsets": [0, size]}
  return (120).to_bytes(8, "little") + f"{json.dumps({'vectors': tensor}):<120}".encode("ascii")


def _read_state(folder: pathlib.Path) -> dict[str, Any]:
  path = folder / "vectors.json"
  try:
    # The first folders had a single format, which they do not name.
    state = {"format": "npy", **input_files.read_json(path)}
    whole = [state[key] for key in ("dimension", "shard_rows", "done")]
    good = all(type(value) is int and value >= 0 for value in whole) and state["shard_rows"]
    good = good and state["dtype"] in _DTYPES and state["count"] in (None, state["done"])
    good = good and state["format"] in FORMATS and isinstance(state["settings"], dict)
  except errors.InputError as error:
    raise errors.InputError(f"{path}: broken: {_AGAIN} ({error})") from None
  except (KeyError, TypeError):
    good = False
  if not good:
    raise errors.InputError(f"{path}: broken: {_AGAIN}")
  return state


def _shards(state: Mapping[str, Any]) -> Iterator[tuple[int, int]]:
  """Yields number and rows of each shard."""
  for number in range(-(-state["done"] // state["shard_rows"])):
    yield number, min(state["shard_rows"], state["done"] - number * state["shard_rows"])


def _check_shard(folder: pathlib.Path, state: Mapping[str, Any], number: int, rows: int) -> None:
  path = _open_path(folder, state, number)
  kept = _kept_path(folder, state, number)
  if kept != path and kept.exists():
    if (found := _parquet_shape(kept)) != (rows, state["dimension"]):
      raise errors.InputError(f"{kept}: broken: it has {found}, not {rows} vectors: {_AGAIN}")
    return
  # The header of the last shard gives the full size until it is finished.
  headers = {_header(state, rows), _header(state, state["shard_rows"])}
  size = max(map(len, headers))
  try:
    input_files.check(path)
    with open(path, "rb") as file:
      found = file.read(size)
    length = path.stat().st_size
  except errors.InputError as error:
    raise errors.InputError(f"{error}: {_AGAIN}") from None
  except OSError as error:
    raise errors.InputError(f"{path}: cannot be read: {error.strerror}: {_AGAIN}") from None
  if found not in headers:
    raise errors.InputError(
      f"{path}: broken: its header is not that of {state['dtype']} vectors of width "
      f"{state['dimension']}: {_AGAIN}"
    )
  if length < size + rows * _row_bytes(state):
    raise errors.InputError(f"{path}: truncated: it has fewer than {rows} vectors: {_AGAIN}")


def _kept_path(folder: pathlib.Path, state: Mapping[str, Any], number: int) -> pathlib.Path:
  """Returns the path of a full shard."""
  return folder / f"vectors-{number:05d}.{state['format']}"


def _open_path(folder: pathlib.Path, state: Mapping[str, Any], number: int) -> pathlib.Path:
  """Returns the path of a shard while rows are appended; only Parquet has another one then."""
  if state["format"] == "parquet":
    return folder / f"vectors-{number:05d}.npy"
  return _kept_path(folder, state, number)


def _row_bytes(state: Mapping[str, Any]) -> int:
  return state["dimension"] * np.dtype(state["dtype"]).itemsize


def _header(state: Mapping[str, Any], rows: int) -> bytes:
  make = safetensors_header if state["format"] == "safetensors" else npy_files.header
  return make((rows, state["dimension"]), state["dtype"])


def _rows_of_shard(
  folder: pathlib.Path, state: Mapping[str, Any], number: int, rows: int
) -> np.ndarray:
  path = _kept_path(folder, state, number)
  if state["format"] == "parquet" and path.exists():
    return _read_parquet(path)
  return _map(_open_path(folder, state, number), state, rows)


def _map(path: pathlib.Path, state: Mapping[str, Any], rows: int) -> np.ndarray:
  """Maps the rows of a file to memory, read-only."""
  dtype = np.dtype(state["dtype"]).newbyteorder("<")
  shape = (rows, state["dimension"])
  return np.memmap(path, dtype, "r", len(_header(state, rows)), shape).view(np.ndarray)


def _sync(file: Any) -> None:
  file.flush()
  os.fsync(file.fileno())


# --------------------------------------------------------------------------------------------
# Parquet


def _import_pyarrow() -> tuple[Any, Any]:
  with errors.requires("parquet", "Parquet"):
    import pyarrow
    from pyarrow import parquet
  return pyarrow, parquet


def _write_parquet(path: pathlib.Path, vectors_ND: np.ndarray) -> None:
  pyarrow, parquet = _import_pyarrow()
  width = vectors_ND.shape[1]
  item = pyarrow.from_numpy_dtype(vectors_ND.dtype)
  schema = pyarrow.schema([("vector", pyarrow.list_(item, width))])
  with atomic_files.atomic_file(path) as file, parquet.ParquetWriter(file, schema) as writer:
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
