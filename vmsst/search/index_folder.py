"""A folder with a FAISS index of stored vectors: `index.faiss` and `index.json`.

`build` trains the index on a sample, fills it in shards, which are units of work, and merges these.
FAISS reads and writes local files: those of object stores are copied to or from this machine.
"""

import dataclasses
import functools
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

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
from vmsst.search import exact_search, factory_strings, faiss_index
from vmsst.units import base, engines, local

_SHARD_ROWS = 1 << 20
_BLOCK_ROWS = 1 << 14  # Vectors in memory at once.
_SEED = 0
_STATE, _INDEX = "index.json", "index.faiss"
_AGAIN = "delete the folder and build it again (`vmsst index`)"


class StoredRows(exact_search.Rows, Protocol):
  """Vectors [N, D] of a folder."""

  def take(self, row_N: np.ndarray, /) -> np.ndarray:
    """Returns some rows as an array."""

  @property
  def digest(self) -> str:
    """Hash of all rows."""


@dataclasses.dataclass(frozen=True)
class Settings:
  """What an index is computed from.

  Attributes:
    factory: Factory string of FAISS.
    vectors: Number, width and `digest` of the vectors, and the `name` of their folder.
    shard_rows: Vectors per shard.
    seed: Seed of the training sample.
  """

  factory: str
  vectors: Mapping[str, Any]
  shard_rows: int
  seed: int = _SEED

  def shards(self) -> range:
    """Returns the numbers of the shards."""
    return range(-(-self.vectors["count"] // self.shard_rows))

  def rows_of_shard(self, number: int) -> range:
    """Returns the rows of a shard."""
    start = number * self.shard_rows
    return range(start, min(start + self.shard_rows, self.vectors["count"]))


@dataclasses.dataclass(frozen=True)
class StoredIndex:
  """An open index and the vectors from which it was built.

  Attributes:
    folder: The folder.
    settings: What it was computed from.
    reader: Searches it.
    rows: The vectors.
  """

  folder: storage.Path
  settings: Settings
  reader: faiss_index.Reader
  rows: StoredRows

  @property
  def exact(self) -> bool:
    """Whether it holds the vectors as they are, so that it finds what an exact search finds."""
    return self.settings.factory == "Flat"


def build(
  rows: StoredRows,
  folder: str | os.PathLike[str],
  *,
  name: str,
  factory: str | None = None,
  shard_rows: int | None = None,
  engine: engines.Engine | None = None,
  progress: bool | None = None,
) -> Settings:
  """Writes an index of vectors; resumes after interruption, and does nothing if it is complete.

  Args:
    rows: The vectors.
    folder: Output folder, local or in an object store.
    name: Name or path of the vectors, for people.
    factory: Factory string, see `factory_strings.parse`; None: the default.
    shard_rows: Vectors per shard; None: about a million.
    engine: Where to train and fill it; None: in this process.
    progress: Show a progress bar; None: on a terminal only.

  Returns:
    The settings.

  Raises:
    InputError: FAISS is not installed, there are no vectors or they are not finite, the string is
      not supported or does not suit them, or the folder has another index or broken files.
  """
  folder = storage.path(folder)
  count, width = rows.shape
  if not count:
    raise errors.InputError(f"{name} has no vectors: embed a text with lines")
  factory = factory_strings.parse(factory or factory_strings.default(count, width)).text
  faiss_index.check(factory, width)
  vectors = {"count": count, "dimension": width, "digest": rows.digest, "name": name}
  settings = Settings(factory, vectors, shard_rows or _SHARD_ROWS)
  work = work_folders.path_of(folder, is_folder=True)
  if storage.exists(folder / _STATE):
    before, checksum = _read_state(folder)
    if differences := stored_settings.differences(*map(dataclasses.asdict, (before, settings))):
      raise errors.InputError(
        f"{folder} has another index: {differences}; give another folder, or delete it"
      )
    if checksum is not None:
      _check_sum(folder / _INDEX, checksum)
      work_folders.clear(work)
      return before
  elif storage.exists(folder / _INDEX):
    raise errors.InputError(f"{folder / _INDEX} is not by `vmsst index`; give another folder")
  _write_state(folder, settings, None)
  engine = engine or local.Local()
  trained = TrainIndex(settings, rows, f"{work}/trained.faiss")
  made = engines.run("train", [trained], engine, progress=False)
  parts = [Part(trained.path, made[0]["sha256"])]
  shards = [
    FillShard(settings, rows, parts[0], number, f"{work}/shard-{number:05d}.faiss")
    for number in settings.shards()
  ]
  made = engines.run("index", shards, engine, progress=progress)
  parts += [Part(unit.path, each["sha256"]) for unit, each in zip(shards, made, strict=True)]
  _merge(settings, folder, parts)
  work_folders.clear(work)
  return settings


@dataclasses.dataclass(frozen=True)
class Part:
  """A file of an unfinished build.

  Attributes:
    path: The file.
    sha256: Its checksum.
  """

  path: str
  sha256: str

  def read(self) -> Any:
    """Returns the index; raises InputError if the file has changed."""
    with storage.local_copy(self.path) as local:
      _check_sum(local, self.sha256)
      return faiss_index.read(local)


@dataclasses.dataclass(frozen=True)
class TrainIndex(base.Unit):
  """Trains an index on a sample of the vectors and writes it without vectors.

  Attributes:
    settings: What the index is computed from.
    rows: The vectors.
    path: Output file.
  """

  settings: Settings
  rows: StoredRows
  path: str

  @functools.cached_property
  def key(self) -> str:
    """Hash of everything that the output depends on."""
    return base.digest("train index", dataclasses.asdict(self.settings))

  def make(self) -> dict[str, Any]:
    """Writes the file; returns its checksum."""
    count, width = self.rows.shape
    sample = min(count, factory_strings.parse(self.settings.factory).training_rows)
    row_S = np.sort(
      np.random.default_rng(self.settings.seed).choice(count, sample, replace=False, shuffle=False)
    )
    sample_SD = np.empty((sample, width), np.float32)
    for start in range(0, sample, _BLOCK_ROWS):
      row_B = row_S[start : start + _BLOCK_ROWS]
      sample_SD[start : start + len(row_B)] = exact_search.unit_rows(self.rows.take(row_B))
    return _write(faiss_index.train(self.settings.factory, sample_SD), self.path)


@dataclasses.dataclass(frozen=True)
class FillShard(base.Unit):
  """Writes the trained index with some of the vectors.

  Attributes:
    settings: What the index is computed from.
    rows: All vectors.
    trained: The trained index.
    number: Number of the shard.
    path: Output file.
  """

  settings: Settings
  rows: StoredRows
  trained: Part
  number: int
  path: str

  @functools.cached_property
  def key(self) -> str:
    """Hash of everything that the output depends on."""
    settings = dataclasses.asdict(self.settings)
    return base.digest("fill index", settings, self.trained.sha256, self.number)

  def make(self) -> dict[str, Any]:
    """Writes the file; returns its checksum."""
    index = self.trained.read()
    own = self.settings.rows_of_shard(self.number)
    try:
      faiss_index.fill(index, _unit_blocks(self.rows, own), own.start)
    except ValueError as error:
      name = self.settings.vectors["name"]
      raise errors.InputError(f"{name}: {error}: embed the text again") from None
    return _write(index, self.path)


def _write(index: Any, path: str) -> dict[str, Any]:
  with atomic_files.atomic_path(path) as partial:
    faiss_index.write(index, partial)
    return {"sha256": checksums.of_file(partial)}


def open_index(folder: str | os.PathLike[str], rows: StoredRows, *, name: str) -> StoredIndex:
  """Opens an index as a memory map, after verifying its checksum and that of its vectors.

  The file of an index in an object store is copied to this machine until the process ends.

  Args:
    folder: A folder that `build` wrote.
    rows: The vectors from which it was built.
    name: Name or path of the vectors, for error messages.

  Raises:
    InputError: there is no complete index, it is damaged or of other vectors, or FAISS is not
      installed.
  """
  folder = storage.path(folder)
  if not storage.exists(folder / _STATE):
    raise errors.InputError(f"{folder}: no {_STATE}: give a folder that `vmsst index` wrote")
  settings, checksum = _read_state(folder)
  if checksum is None:
    raise errors.InputError(
      f"{folder} is not finished; rerun the same `vmsst index` command to resume"
    )
  shape = (settings.vectors["count"], settings.vectors["dimension"])
  if shape != tuple(rows.shape) or settings.vectors["digest"] != rows.digest:
    raise errors.InputError(
      f"{folder} is an index of other vectors than {name}, or of an earlier version: build it "
      "again (`vmsst index`)"
    )
  path = os.fspath(folder / _INDEX)
  reader = (_remote_reader if storage.is_url(path) else _reader)(path, str(checksum))
  if (reader.count, reader.width) != shape:
    raise errors.InputError(
      f"{folder / _INDEX}: broken: it has {reader.count:,} vectors of width {reader.width}, not "
      f"{shape[0]:,} of width {shape[1]}: {_AGAIN}"
    )
  return StoredIndex(folder, settings, reader, rows)


def _reader(path: str, checksum: str) -> faiss_index.Reader:
  with storage.local_copy(path) as local:  # A map of a copy stays valid when its name is removed.
    _check_sum(local, checksum)
    return faiss_index.Reader(faiss_index.read(local, mapped=True))


_remote_reader = functools.lru_cache(maxsize=2)(_reader)  # As many as mining has.


def _unit_blocks(rows: StoredRows, own: range) -> Iterator[np.ndarray]:
  for start in range(own.start, own.stop, _BLOCK_ROWS):
    yield exact_search.unit_rows(rows[start : min(start + _BLOCK_ROWS, own.stop)])


def _merge(settings: Settings, folder: storage.Path, parts: Sequence[Part]) -> None:
  """Writes the index of all parts, in their order, and marks the folder as complete."""
  index = parts[0].read()
  for part in parts[1:]:
    faiss_index.merge(index, part.read())
  with atomic_files.atomic_path(folder / _INDEX) as partial:
    faiss_index.write(index, partial)
    checksum = checksums.of_file(partial)
  _write_state(folder, settings, checksum)


# --------------------------------------------------------------------------------------------
# Files


def _check_sum(path: str | os.PathLike[str], sha256: Any) -> None:
  """Raises InputError unless a file has this checksum."""
  try:
    found = checksums.of_file(path)
  except errors.InputError as error:
    raise errors.InputError(f"{error}: {_AGAIN}") from None
  if found != sha256:
    raise errors.InputError(f"{path}: damaged: it has changed since it was written: {_AGAIN}")


def _write_state(folder: storage.Path, settings: Settings, checksum: str | None) -> None:
  atomic_files.write_json(folder / _STATE, {**dataclasses.asdict(settings), "sha256": checksum})


def _read_state(folder: storage.Path) -> tuple[Settings, Any]:
  """Returns the settings, and the checksum of a complete index or None."""
  path = folder / _STATE
  state = input_files.read_json(path)
  try:
    checksum = state.pop("sha256")
    settings = Settings(**state)
    whole = [settings.vectors[key] for key in ("count", "dimension")] + [settings.shard_rows]
    good = all(type(value) is int and value > 0 for value in whole)
    good = good and isinstance(settings.vectors["digest"], str)
    factory_strings.parse(settings.factory)
  except (AttributeError, KeyError, TypeError, errors.InputError):
    good = False
  if not good:
    raise errors.InputError(f"{path}: broken: {_AGAIN}")
  return settings, checksum
