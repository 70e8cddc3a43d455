"""A folder with a FAISS index of stored vectors: `index.faiss` and `index.json`.

`build_index` trains the index on a sample, fills it in shards, which are units of work, and merges
these. FAISS reads and writes local files: those of object stores are copied to or from this
machine.
"""

import dataclasses
import functools
import os
from collections.abc import Callable, Mapping
from typing import Annotated, Any

import msgspec
import numpy as np

from vmsst import errors, storage
from vmsst.io import checksums, input_files, progress_bar, stored_settings
from vmsst.jobs import atomic_files, base, engines, work_folders
from vmsst.search import exact_search, faiss_index, vector_store

_SHARD_ROWS = 1 << 20
_SEED = 0
_STATE, _INDEX = "index.json", "index.faiss"
_Size = Annotated[int, msgspec.Meta(gt=0)]
_AGAIN = "delete the folder and build it again (`vmsst index`)"


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
  """What an index is computed from.

  Attributes:
    factory: Factory string of FAISS.
    vectors: Number, width and `digest` of the vectors, and the `name` of their folder.
    shard_rows: Vectors per shard.
    seed: Seed of the training sample.
  """

  factory: str
  vectors: Mapping[str, _Size | str]
  shard_rows: _Size
  seed: int = _SEED


def build_index(
  vectors: Any,
  folder: str | os.PathLike[str],
  *,
  factory: str | None = None,
  shard_rows: int | None = None,
  engine: engines.Engine | None = None,
) -> Settings:
  """Writes an index of vectors; resumes after interruption, and does nothing if it is complete.

  Args:
    vectors: As in `vector_store.open_vectors`.
    folder: Output folder, local or in an object store.
    factory: Factory string of FAISS, such as "OPQ64,IVF65536,PQ64", see
      `vmsst.search.faiss_index.training_rows`; None: the default for the number of vectors.
    shard_rows: Vectors per shard; None: about a million.
    engine: Where to build it; None: in this process.

  Returns:
    The settings.

  Raises:
    InputError: FAISS is not installed, the vectors are missing, incomplete or broken, the string is
      not supported or does not suit them, or the output folder has another index or broken files.
  """
  folder, rows = storage.path(folder), vector_store.open_vectors(vectors)
  name = rows.folder
  count, width = rows.shape
  if not count:
    raise errors.InputError(f"{name} has no vectors: embed a text with lines")
  factory = factory or faiss_index.default_factory(count, width)
  faiss_index.training_rows(factory)
  faiss_index.new(factory, width)
  described = dict[str, int | str](count=count, dimension=width, digest=rows.digest, name=name)
  settings = Settings(factory, described, shard_rows or _SHARD_ROWS)
  work = work_folders.work_path(folder, is_folder=True)
  if storage.exists(folder / _STATE):
    before, sha256 = _read_state(folder)
    if differences := stored_settings.differences(*map(msgspec.structs.asdict, (before, settings))):
      raise errors.InputError(
        f"{folder} has another index: {differences}; give another folder, or delete it"
      )
    if sha256 is not None:
      checksums.check(folder / _INDEX, sha256, _AGAIN)
      work_folders.clear(work)
      return before
  elif storage.exists(folder / _INDEX):
    raise errors.InputError(f"{folder / _INDEX} is not by `vmsst index`; give another folder")
  _write_state(folder, settings, None)
  engine = engine or engines.Local()
  trained = TrainIndex(settings, rows, f"{work}/trained.faiss")
  try:
    with progress_bar.shown("nowhere"):  # It is a single unit.
      (made,) = engines.run("train", [trained], engine)
  except errors.InputError:  # Another factory may suit the vectors.
    storage.remove(folder / _STATE)
    raise
  first = Part(trained.path, made["sha256"])
  shards = [
    FillShard(settings, rows, first, (span.start, span.stop), f"{work}/shard-{number:05d}.faiss")
    for number, span in enumerate(exact_search.blocks(count, settings.shard_rows))
  ]
  filled = engines.run("index", shards, engine)
  index = first.read()
  for unit, part in zip(shards, filled, strict=True):
    index.merge_from(Part(unit.path, part["sha256"]).read(), 0)
  _write_state(folder, settings, _write(index, folder / _INDEX)["sha256"])
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
    return _read(self.path, self.sha256, faiss_index.read)


@dataclasses.dataclass(frozen=True)
class TrainIndex(base.Unit):
  """Trains an index on a sample of the vectors and writes it without vectors.

  Attributes:
    settings: What the index is computed from.
    rows: The vectors.
    path: Output file.
  """

  settings: Settings
  rows: vector_store.Vectors
  path: str

  @functools.cached_property
  def key(self) -> str:
    """Hash of everything that the output depends on."""
    return base.digest("train index", msgspec.structs.asdict(self.settings))

  def make(self) -> dict[str, Any]:
    """Writes the file; returns its checksum."""
    count, width = self.rows.shape
    sample = min(count, faiss_index.training_rows(self.settings.factory))
    row_S = np.sort(
      np.random.default_rng(self.settings.seed).choice(count, sample, replace=False, shuffle=False)
    )
    sample_SD = np.empty((sample, width), np.float32)
    for part in exact_search.blocks(sample):
      sample_SD[part] = exact_search.unit_rows(self.rows.take(row_S[part]))
    return _write(faiss_index.train(self.settings.factory, sample_SD), self.path)


@dataclasses.dataclass(frozen=True)
class FillShard(base.Unit):
  """Writes the trained index with some of the vectors.

  Attributes:
    settings: What the index is computed from.
    rows: All vectors.
    trained: The trained index.
    span: First and last row of the shard.
    path: Output file.
  """

  settings: Settings
  rows: vector_store.Vectors
  trained: Part
  span: tuple[int, int]
  path: str

  @functools.cached_property
  def key(self) -> str:
    """Hash of everything that the output depends on."""
    settings = msgspec.structs.asdict(self.settings)
    return base.digest("fill index", settings, self.trained.sha256, self.span)

  def make(self) -> dict[str, Any]:
    """Writes the file; returns its checksum."""
    index, (start, stop) = self.trained.read(), self.span
    units = (
      exact_search.unit_rows(self.rows[start + part.start : start + part.stop])
      for part in exact_search.blocks(stop - start)
    )
    faiss_index.fill(index, units, start)
    return _write(index, self.path)


def open_index(folder: str | os.PathLike[str], vectors: Any) -> faiss_index.Index:
  """Opens an index as a memory map, after verifying its checksum and that of its vectors.

  The file of an index in an object store is copied to this machine until the process ends.

  Args:
    folder: A folder that `build_index` wrote.
    vectors: The vectors from which it was built, as in `vector_store.open_vectors`.

  Raises:
    InputError: there is no complete index, it is damaged or of other vectors, or FAISS is not
      installed.
  """
  folder = storage.path(folder)
  rows = vector_store.open_vectors(vectors)
  if not storage.exists(folder / _STATE):
    raise errors.InputError(f"{folder}: no {_STATE}: give a folder that `vmsst index` wrote")
  settings, sha256 = _read_state(folder)
  if sha256 is None:
    raise errors.InputError(
      f"{folder} is not finished; rerun the same `vmsst index` command to resume"
    )
  described = [settings.vectors.get(key) for key in ("count", "dimension", "digest")]
  if described != [*rows.shape, rows.digest]:
    raise errors.InputError(
      f"{folder} is an index of other vectors than {rows.folder}, or of an earlier version: build "
      "it again (`vmsst index`)"
    )
  path = os.fspath(folder / _INDEX)
  read = _mapped_copy if storage.is_url(path) else _mapped
  index = faiss_index.Index(read(path, str(sha256)), settings.factory, rows)
  if index.shape != rows.shape:
    raise errors.InputError(
      f"{folder / _INDEX}: broken: it has {index.shape[0]:,} vectors of width {index.shape[1]}, "
      f"not {rows.shape[0]:,} of width {rows.shape[1]}: {_AGAIN}"
    )
  return index


# --------------------------------------------------------------------------------------------
# Files


def _write(index: Any, path: str | os.PathLike[str]) -> dict[str, Any]:
  with atomic_files.atomic_path(path) as partial:
    faiss_index.write(index, partial)
    return {"sha256": checksums.of_file(partial)}


def _read(path: str, sha256: str, read: Callable[..., Any]) -> Any:
  with storage.local_copy(path) as local:  # A map of a copy stays valid when its name is removed.
    checksums.check(local, sha256, _AGAIN)
    return read(local)


def _mapped(path: str, sha256: str) -> Any:
  return _read(path, sha256, functools.partial(faiss_index.read, mapped=True))


_mapped_copy = functools.lru_cache(maxsize=2)(_mapped)  # As many as mining has.


def _write_state(folder: storage.Path, settings: Settings, sha256: str | None) -> None:
  atomic_files.write_json(folder / _STATE, {**msgspec.structs.asdict(settings), "sha256": sha256})


def _read_state(folder: storage.Path) -> tuple[Settings, Any]:
  """Returns the settings, and the checksum of a complete index or None."""
  path = folder / _STATE
  try:
    state = msgspec.convert(input_files.read_json(path), dict[str, Any])
    sha256 = state.pop("sha256")
    settings = msgspec.convert(state, Settings)
    faiss_index.training_rows(settings.factory)
  except (KeyError, ValueError) as error:
    raise errors.InputError(f"{path}: broken: {_AGAIN} ({error})") from None
  return settings, sha256
