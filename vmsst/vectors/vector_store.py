"""Sentence vectors on disk: shards `vectors-00000.npy`, ... and `vectors.json` in one folder.

What was appended stays, whenever the process ends; a `Writer` on the same folder goes on behind it.
Shards may be safetensors (one tensor, `vectors`) or Parquet (one column, `vector`) too. Several
processes fill one folder by parts: each writes a folder of its own in it, `part-<i>-of-<n>`, and
all are read as one.
"""

import bisect
import functools
import json
import os
import pathlib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from vmsst import errors
from vmsst.files import atomic_files, input_files
from vmsst.vectors import npy_files

FORMATS = ("npy", "safetensors", "parquet")
_DTYPES = ("float32", "float16")
_SHARD_ROWS = 1 << 17
_PARQUET_ROWS = 1 << 12  # Of a row group.
_AGAIN = "delete the folder and embed again"
_PART = re.compile(r"part-(\d+)-of-(\d+)")


class Writer:
  """Appends vectors to a folder, a new one or one that is not finished.

  Attributes:
    done: Number of vectors that are there.
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
    """Makes the folder, or goes on with what is there.

    Args:
      folder: Where the files are.
      dimension: Width of the vectors.
      dtype: float32, or float16, which takes half the space.
      settings: What the vectors are of, as for JSON; other ones than before are an error.
      shard_rows: Vectors in a file; unfinished folders keep theirs.
      file_format: Of the shards: npy and safetensors, which are mapped to memory when they are
        read, or parquet, which is not (needs pyarrow).

    Raises:
      InputError: the folder has vectors of another kind, or broken files, or there is no such
        format, or pyarrow is not installed.
    """
    if dtype not in _DTYPES:
      raise errors.InputError(f"dtype is {dtype}; vectors are kept as {' or '.join(_DTYPES)}")
    if file_format not in FORMATS:
      raise errors.InputError(f"format is {file_format}; shards are {', '.join(FORMATS)}")
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
    self._folder.mkdir(parents=True, exist_ok=True)
    if (self._folder / "vectors.json").exists():
      before = _read_state(self._folder)
      for key in ("dimension", "dtype", "format", "settings"):
        if before[key] != self._state[key]:
          raise errors.InputError(
            f"{self._folder} holds vectors with {key} {before[key]!r}, not {self._state[key]!r}: "
            "give another folder, or delete that one"
          )
      self._state = before
      for number, rows in _shards(self._state):
        _check_shard(self._folder, self._state, number, rows)
      self._seal()
    self.done: int = self._state["done"]

  @property
  def finished(self) -> bool:
    """Whether all vectors are there."""
    return self._state["count"] is not None

  def append(self, vectors_ND: np.ndarray) -> None:
    """Writes vectors behind those that are there; they are on the disk when this returns.

    Raises:
      ValueError: the array is not [N, dimension], a value is not finite in the files' dtype, or
        `finish` was called.
    """
    if self.finished:
      raise ValueError(f"{self._folder} is finished: nothing can be appended")
    array_ND = npy_files.checked_rows(
      vectors_ND, self._state["dimension"], self._state["dtype"], self.done
    )
    start = 0
    while start < len(array_ND):
      number, place = divmod(self.done + start, self._state["shard_rows"])
      part_PD = array_ND[start : start + self._state["shard_rows"] - place]
      self._write(number, place, part_PD)
      start += len(part_PD)
    self._commit(done=self.done + start)
    self._seal()

  def finish(self) -> None:
    """Says that all vectors are there; only then `open_vectors` gives them."""
    number, rows = divmod(self.done, self._state["shard_rows"])
    if rows:
      # The last file says how many it really has, and what an interruption left behind goes.
      path = _open_path(self._folder, self._state, number)
      header = _header(self._state, rows)
      with atomic_files.naming(path), open(path, "r+b") as file:
        file.write(header)
        file.truncate(len(header) + rows * _row_bytes(self._state))
        _sync(file)
    self._commit(count=self.done)
    self._seal()

  def _write(self, number: int, place: int, part_PD: np.ndarray) -> None:
    path = _open_path(self._folder, self._state, number)
    header = _header(self._state, self._state["shard_rows"])
    with atomic_files.naming(path), open(path, "r+b" if place else "wb") as file:
      file.write(header)
      file.seek(len(header) + place * _row_bytes(self._state))
      file.write(part_PD.tobytes())
      _sync(file)

  def _commit(self, **changes: Any) -> None:
    """Rows count from when they are in the file of the state, which changes as a whole."""
    self._state |= changes
    path = self._folder / "vectors.json"
    atomic_files.write_json(path, dict(sorted(self._state.items())))
    self.done = self._state["done"]

  def _seal(self) -> None:
    """Gives shards that are full, or all if this is the end, the form that they are kept in."""
    if self._state["format"] != "parquet":
      return
    for number, rows in _shards(self._state):
      path = _open_path(self._folder, self._state, number)
      if (rows == self._state["shard_rows"] or self.finished) and path.exists():
        _write_parquet(_kept_path(self._folder, self._state, number), _map(path, self._state, rows))
        path.unlink()


class Vectors:
  """Vectors of a folder; slices of rows are arrays mapped to memory for as long as they live.

  Attributes:
    shape: Their number and width.
    dtype: float32 or float16.
    settings: What the writer said they are of; that of the first part, where there are parts.
  """

  def __init__(self, parts: Sequence[tuple[pathlib.Path, Mapping[str, Any]]]):
    """Joins what `Writer`s finished.

    Args:
      parts: Folder and state of each, at least one, all of one width and dtype.
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
    """Some rows in order, [B, D], read-only where they lie in one file."""
    start, stop, step = rows.indices(len(self))
    if step != 1:
      raise IndexError(f"rows are read in order, not in steps of {step}")
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
    """The arrays of the files, one by one, read-only."""
    for file in self._files:
      yield _rows_of_shard(*file)


def part_folder(folder: str | os.PathLike[str], part: int, parts: int) -> pathlib.Path:
  """Where a `Writer` puts part `part` of `parts`, from 1, of the vectors of a folder."""
  return pathlib.Path(folder) / f"part-{part}-of-{parts}"


def open_vectors(folder: str | os.PathLike[str]) -> Vectors:
  """The vectors of a folder that a `Writer` finished, or of all its parts, in their order.

  Raises:
    InputError: there are none, they are not finished, a part is missing or of something else, or a
      file is missing, broken or too short.
  """
  folder = pathlib.Path(folder)
  inside = [path.name for path in folder.iterdir()] if folder.is_dir() else []
  found = [match for match in map(_PART.fullmatch, inside) if match]
  if "vectors.json" in inside or not found:
    return Vectors([(folder, _finished_state(folder))])
  counts = sorted({int(match[2]) for match in found})
  if len(counts) > 1:
    raise errors.InputError(
      f"{folder} holds parts of {' and of '.join(map(str, counts))}: delete those that do not "
      "belong"
    )
  folders = [part_folder(folder, part, counts[0]) for part in range(1, counts[0] + 1)]
  missing = [path.name for path in folders if path.name not in inside]
  if missing:
    raise errors.InputError(f"{folder} lacks {', '.join(missing[:10])}: embed those parts too")
  states = [_finished_state(path) for path in folders]
  first = states[0]
  for path, state in zip(folders, states, strict=True):
    for key in ("dimension", "dtype", "settings"):
      if state[key] != first[key]:
        raise errors.InputError(
          f"{path} holds vectors with {key} {state[key]!r}, {folders[0]} with {first[key]!r}: they "
          "are not parts of one whole"
        )
  return Vectors(list(zip(folders, states, strict=True)))


def _finished_state(folder: pathlib.Path) -> dict[str, Any]:
  """The state of a folder whose files are as it says."""
  if not (folder / "vectors.json").exists():
    raise errors.InputError(f"{folder} holds no vectors.json: not a folder of vectors")
  state = _read_state(folder)
  if state["count"] is None:
    raise errors.InputError(
      f"{folder} is not finished: {state['done']} vectors are there; give the same command again "
      "to go on"
    )
  for number, rows in _shards(state):
    _check_shard(folder, state, number, rows)
  return state


def safetensors_header(shape: tuple[int, int], dtype: str) -> bytes:
  """Returns what a safetensors file of vectors starts with; it has one size for any row count."""
  size = shape[0] * shape[1] * np.dtype(dtype).itemsize
  name = {"float32": "F32", "float16": "F16"}[dtype]
  tensor = {"dtype": name, "shape": list(shape), "data_offsets": [0, size]}
  return (120).to_bytes(8, "little") + f"{json.dumps({'vectors': tensor}):<120}".encode("ascii")


def _read_state(folder: pathlib.Path) -> dict[str, Any]:
  path = folder / "vectors.json"
  try:
    # Folders from before there were other formats do not say theirs.
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
  """Number and rows of each file."""
  for number in range(-(-state["done"] // state["shard_rows"])):
    yield number, min(state["shard_rows"], state["done"] - number * state["shard_rows"])


def _check_shard(folder: pathlib.Path, state: Mapping[str, Any], number: int, rows: int) -> None:
  path = _open_path(folder, state, number)
  kept = _kept_path(folder, state, number)
  if kept != path and kept.exists():
    if (found := _parquet_shape(kept)) != (rows, state["dimension"]):
      raise errors.InputError(f"{kept}: broken: it holds {found}, not {rows} vectors: {_AGAIN}")
    return
  # Until it is finished, the last file says that it is as long as all others.
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
      f"{path}: broken: it does not start as a file of {state['dtype']} vectors of width "
      f"{state['dimension']}: {_AGAIN}"
    )
  if length < size + rows * _row_bytes(state):
    raise errors.InputError(f"{path}: truncated: it has no {rows} vectors: {_AGAIN}")


def _kept_path(folder: pathlib.Path, state: Mapping[str, Any], number: int) -> pathlib.Path:
  """The file of a shard that is full."""
  return folder / f"vectors-{number:05d}.{state['format']}"


def _open_path(folder: pathlib.Path, state: Mapping[str, Any], number: int) -> pathlib.Path:
  """The file of a shard that rows are appended to; the same, but for Parquet."""
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
  """The rows of a file, read-only."""
  dtype = np.dtype(state["dtype"]).newbyteorder("<")
  shape = (rows, state["dimension"])
  return np.memmap(path, dtype, "r", len(_header(state, rows)), shape).view(np.ndarray)


def _sync(file: Any) -> None:
  file.flush()
  os.fsync(file.fileno())


# --------------------------------------------------------------------------------------------
# Parquet


def _import_pyarrow() -> tuple[Any, Any]:
  try:
    import pyarrow
    from pyarrow import parquet
  except ImportError:
    raise errors.InputError(
      "Parquet is written and read by pyarrow, which is not installed: pip install 'vmsst[parquet]'"
    ) from None
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
  del changed  # tells what is cached from what was written since
  _, parquet = _import_pyarrow()
  column = parquet.read_table(path).column("vector").combine_chunks()
  width = column.type.list_size
  array_ND = column.flatten().to_numpy(zero_copy_only=False).reshape(-1, width)
  array_ND.flags.writeable = False
  return array_ND


def _read_parquet(path: pathlib.Path) -> np.ndarray:
  """The rows of a file; those of the last one stay in memory."""
  return _parquet_of(path, path.stat().st_mtime_ns)


def _parquet_shape(path: pathlib.Path) -> Any:
  """Rows and width of a file, or what is wrong with it."""
  pyarrow, parquet = _import_pyarrow()
  try:
    file = parquet.ParquetFile(path)
    return file.metadata.num_rows, file.schema_arrow.field("vector").type.list_size
  except (pyarrow.ArrowException, OSError, KeyError, AttributeError) as error:
    return f"no vectors ({error})"
