"""Exact search of stored vectors in blocks that are units of work.

A unit compares a block of sources with a block of targets and writes the nearest in one or both
directions. Merging these in order gives the bytes of a search in one piece, because blocks begin
where `exact_search` would begin them.
"""

import dataclasses
import functools
import hashlib
import os
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from vmsst import storage
from vmsst.io import large_arrays, npy_files
from vmsst.jobs import atomic_files, base, engines
from vmsst.search import exact_search

# Sources and targets of a block: multiples of those that `exact_search.Compare` reads at once.
# Sources are in at least 8 blocks if these have 8,192 or more. Blocks grow if they would be too
# many.
_SOURCES, _TARGETS, _LEAST_SOURCES = 1 << 16, 1 << 18, 1 << 13
_PARTS = 8
_MOST_BLOCKS = 1 << 14
_FORMAT = 2
"""Version of the blocks; increase it if the same vectors get other neighbors."""
_ROW = np.dtype([("norm", np.float32), ("kept", np.bool_)])
_NAMES = ("forward_index", "forward_score", "backward_index", "backward_score")


class StoredRows(exact_search.Rows, Protocol):
  """Vectors [N, D] of a folder, which any process can read."""

  def take(self, row_N: np.ndarray, /) -> np.ndarray:
    """Returns some rows as an array."""

  @property
  def digest(self) -> str:
    """Hash of all rows."""


@dataclasses.dataclass(frozen=True)
class StoredSide:
  """One side of a search, which any process can open.

  Attributes:
    rows: The vectors.
    path: File with the norm of each, and whether it counts.
    digest: Hash of the vectors and of the file.
  """

  rows: StoredRows
  path: str
  digest: str

  @classmethod
  def write(cls, vectors: exact_search.UnitVectors, path: str) -> "StoredSide":
    """Writes the file for a side."""
    rows: Any = vectors.rows
    row_N = large_arrays.full(len(vectors.norm_N), 0, _ROW)
    row_N["norm"], row_N["kept"] = vectors.norm_N, vectors.kept_N
    digest = hashlib.sha256(rows.digest.encode())
    digest.update(row_N.data)
    with atomic_files.atomic_file(path) as stream:
      np.save(stream, row_N)
    return cls(rows, path, digest.hexdigest())

  def open(self, span: slice) -> exact_search.UnitVectors:
    """Returns some of the vectors."""
    saved = npy_files.read_array(self.path, range(span.start, span.stop))
    return exact_search.UnitVectors(self.rows, saved["norm"], saved["kept"], span.start)


@dataclasses.dataclass(frozen=True)
class CompareBlock(base.Unit):
  """Finds the nearest among a block of sources and a block of targets.

  Attributes:
    sides: The sources and the targets.
    spans: First and last row of the block on both sides.
    k: Numbers of neighbors per source and, if it is searched for, per target.
    compare: Compares vectors; must be picklable.
    path: Output file.
  """

  sides: tuple[StoredSide, StoredSide]
  spans: tuple[tuple[int, int], tuple[int, int]]
  k: tuple[int, int | None]
  compare: exact_search.Compare
  path: str

  @functools.cached_property
  def key(self) -> str:
    """Hash of everything that the output depends on."""
    digests = [side.digest for side in self.sides]
    return base.digest("compare", _FORMAT, digests, self.spans, self.k)

  def __str__(self) -> str:
    sources, targets = (f"{start + 1:,} to {stop:,}" for start, stop in self.spans)
    return f"sources {sources} and targets {targets}"

  def make(self) -> dict[str, Any]:
    """Writes the file."""
    sides = [side.open(slice(*span)) for side, span in zip(self.sides, self.spans, strict=True)]
    forward, backward = (
      None if k is None else exact_search.no_neighbors(len(side), k)
      for side, k in zip(sides, self.k, strict=True)
    )
    assert forward is not None
    self.compare(sides[0], sides[1], forward, backward)
    near = [forward] if backward is None else [forward, backward]
    arrays = [
      x for neighbors in near for x in (neighbors.index_NK.astype(np.int32), neighbors.score_NK)
    ]
    content: dict[str, Any] = dict(zip(_NAMES, arrays, strict=False))
    with atomic_files.atomic_file(self.path) as stream:
      np.savez(stream, **content)
    return {}


def compare(
  folder: str | os.PathLike[str], *, compare: exact_search.Compare, engine: engines.Engine
) -> exact_search.Compare:
  """Returns a `Compare` for one search among `StoredRows`, which resumes after interruption.

  Args:
    folder: Folder for unfinished work, local or in an object store, which the caller removes.
    compare: Compares vectors in a unit; must be picklable if units are made in other processes.
    engine: Where to make the units.
  """
  target_folder = storage.absolute(folder)  # Other processes may run in another one.

  def search(
    source: exact_search.UnitVectors,
    target: exact_search.UnitVectors,
    forward: exact_search.Neighbors,
    backward: exact_search.Neighbors | None,
    /,
  ) -> None:
    both = source, target
    stored = [
      StoredSide.write(side, f"{target_folder}/{name}.npy")
      for side, name in zip(both, ("source", "target"), strict=True)
    ]
    spans = _spans(len(source.norm_N), len(target.norm_N))
    k = forward.index_NK.shape[1], None if backward is None else backward.index_NK.shape[1]
    units = [
      [
        CompareBlock(
          (stored[0], stored[1]),
          ((rows.start, rows.stop), (columns.start, columns.stop)),
          k,
          compare,
          f"{target_folder}/block-{i}-{j}.npz",
        )
        for j, columns in enumerate(spans[1])
      ]
      for i, rows in enumerate(spans[0])
    ]
    engines.run("compare", [unit for row in units for unit in row], engine)
    numbers = [_numbers(side, side_spans) for side, side_spans in zip(both, spans, strict=True)]
    for part, row in zip(numbers[0], units, strict=True):
      _merge(forward[part], row, numbers[1], _NAMES[:2])
    if backward is not None:
      for part, column in zip(numbers[1], zip(*units, strict=True), strict=True):
        _merge(backward[part], column, numbers[0], _NAMES[2:])

  return search


def _spans(sources: int, targets: int) -> tuple[list[slice], list[slice]]:
  """Returns the rows of each block on both sides."""
  parts = max(1, -(-sources // _PARTS // _LEAST_SOURCES))
  height, width = min(_SOURCES, parts * _LEAST_SOURCES), _TARGETS
  while -(-sources // height) * -(-targets // width) > _MOST_BLOCKS:
    height, width = 2 * height, 2 * width
  return list(exact_search.blocks(sources, height)), list(exact_search.blocks(targets, width))


def _numbers(vectors: exact_search.UnitVectors, spans: Sequence[slice]) -> list[slice]:
  """Returns the numbers of the vectors in each span."""
  ends = np.cumsum([0, *(np.count_nonzero(vectors.kept_N[span]) for span in spans)]).tolist()
  return list(map(slice, ends[:-1], ends[1:]))


def _merge(
  best: exact_search.Neighbors,
  units: Sequence[CompareBlock],
  numbers: Sequence[slice],
  names: Sequence[str],
) -> None:
  """Merges the neighbors of one block of vectors, found in consecutive parts of the other side."""
  for unit, part in zip(units, numbers, strict=True):
    index_NK, score_NK = npy_files.read(unit.path, names)
    near = exact_search.Neighbors(index_NK.astype(np.int64), score_NK)
    exact_search.merge(best, near, part.start)
