"""Exact search for neighbors in both directions, in blocks that are units of work.

A unit compares a block of sources with a block of targets and writes the nearest of both
directions. Merging these in order gives the bytes of a search in one piece, because blocks begin
where `exact_search` would begin them.
"""

import dataclasses
import functools
import hashlib
import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from vmsst.files import atomic_files, npz_files, storage
from vmsst.search import exact_search
from vmsst.search.index_folder import StoredRows
from vmsst.units import base, engines

# Sources and targets of a block: multiples of those that engines of `exact_search` read at once.
# Sources are in at least 8 blocks if these have 8,192 or more. Blocks grow if they would be too
# many.
_SOURCES, _TARGETS, _LEAST_SOURCES = 1 << 16, 1 << 18, 1 << 13
_PARTS = 8
_MOST_BLOCKS = 1 << 14
_FORMAT = 1
"""Version of the blocks; increase it if the same vectors get other neighbors."""
_ROW = np.dtype([("row", np.int64), ("norm", np.float32), ("kept", np.bool_)])
_NAMES = ("forward_index", "forward_score", "backward_index", "backward_score")


@dataclasses.dataclass(frozen=True)
class Side:
  """Some rows of stored vectors.

  Attributes:
    rows: The vectors.
    row_S: Rows to compare, ascending.
  """

  rows: StoredRows
  row_S: np.ndarray


@dataclasses.dataclass(frozen=True)
class StoredSide:
  """A side that any process can open.

  Attributes:
    rows: The vectors.
    path: File with the rows to compare.
    digest: Hash of the vectors and of the file.
  """

  rows: StoredRows
  path: str
  digest: str

  def open(self, span: range) -> exact_search.UnitVectors:
    """Returns the vectors of a span of the file."""
    saved = npz_files.read_array(self.path, span)
    return exact_search.UnitVectors(
      exact_search.SelectedRows(self.rows, saved["row"]), saved["norm"], saved["kept"]
    )


@dataclasses.dataclass(frozen=True)
class CompareBlock(base.Unit):
  """Finds the nearest among a block of sources and a block of targets.

  Attributes:
    source: One side.
    target: The other side.
    spans: The rows of the block in the files of both.
    k: Numbers of neighbors per source and per target.
    compare: Compares vectors; must be picklable.
    path: Output file.
  """

  source: StoredSide
  target: StoredSide
  spans: tuple[range, range]
  k: tuple[int, int]
  compare: exact_search.Engine
  path: str

  @functools.cached_property
  def key(self) -> str:
    """Hash of everything that the output depends on."""
    spans = [(span.start, span.stop) for span in self.spans]
    return base.digest("compare", _FORMAT, self.source.digest, self.target.digest, spans, self.k)

  def __str__(self) -> str:
    sources, targets = (f"{span.start + 1:,} to {span.stop:,}" for span in self.spans)
    return f"sources {sources} and targets {targets}"

  def make(self) -> dict[str, Any]:
    """Writes the file."""
    sides = self.source.open(self.spans[0]), self.target.open(self.spans[1])
    near = [exact_search.no_neighbors(len(side), k) for side, k in zip(sides, self.k, strict=True)]
    self.compare(*sides, *near)
    arrays = [x for each in near for x in (each.index_NK.astype(np.int32), each.score_NK)]
    content: dict[str, Any] = dict(zip(_NAMES, arrays, strict=True))
    with atomic_files.atomic_file(self.path) as stream:
      np.savez(stream, **content)
    return {}

  def read(self, side: int) -> exact_search.Neighbors:
    """Returns the neighbors of the sources (0) or of the targets (1), by their numbers."""
    index_NK, score_NK = npz_files.read(self.path, _NAMES[2 * side : 2 * side + 2])
    return exact_search.Neighbors(index_NK.astype(np.int64), score_NK)


def engine(
  sides: tuple[Side, Side],
  folder: str | os.PathLike[str],
  *,
  compare: exact_search.Engine,
  units: engines.Engine,
  progress: bool | None = None,
) -> exact_search.Engine:
  """Returns an engine for one search of both directions, which resumes after interruption.

  Args:
    sides: The sources and targets that it will get.
    folder: Folder for unfinished work, local or in an object store, which the caller removes.
    compare: Compares vectors in a unit; must be picklable if units are made in other processes.
    units: Where to make the units.
    progress: Show a progress bar; None: on a terminal only.
  """
  place = storage.absolute(folder)  # Other processes may run in another one.

  def search(
    source: exact_search.UnitVectors,
    target: exact_search.UnitVectors,
    forward: exact_search.Neighbors,
    backward: exact_search.Neighbors | None,
    /,
  ) -> None:
    if backward is None:
      raise ValueError("a sharded search finds the neighbors of both directions")
    names = [f"{place}/{name}.npy" for name in ("source", "target")]
    own, other = (_store(*each) for each in zip(sides, (source, target), names, strict=True))
    spans = _spans(len(source.norm_N), len(target.norm_N))
    k = forward.index_NK.shape[1], backward.index_NK.shape[1]
    blocks = [
      [
        CompareBlock(own, other, (rows, columns), k, compare, f"{place}/block-{i}-{j}.npz")
        for j, columns in enumerate(spans[1])
      ]
      for i, rows in enumerate(spans[0])
    ]
    engines.run("compare", [unit for row in blocks for unit in row], units, progress=progress)
    numbers = _numbers(source, spans[0]), _numbers(target, spans[1])
    for part, row in zip(numbers[0], blocks, strict=True):
      _merge(forward[part], row, numbers[1], 0)
    for part, column in zip(numbers[1], zip(*blocks, strict=True), strict=True):
      _merge(backward[part], column, numbers[0], 1)

  return search


def _store(side: Side, vectors: exact_search.UnitVectors, path: str) -> StoredSide:
  """Writes what a unit needs to open a side."""
  digest = hashlib.sha256(side.rows.digest.encode())
  with atomic_files.atomic_file(path) as stream:
    header = {"descr": _ROW.descr, "fortran_order": False, "shape": side.row_S.shape}
    np.lib.format.write_array_header_1_0(stream, header)
    for span in _cut(len(side.row_S), _SOURCES):
      part = slice(span.start, span.stop)
      rows_B = np.empty(len(span), _ROW)
      rows_B["row"] = side.row_S[part]
      rows_B["norm"], rows_B["kept"] = vectors.norm_N[part], vectors.kept_N[part]
      stream.write(rows_B.tobytes())
      digest.update(rows_B.tobytes())
  return StoredSide(side.rows, path, digest.hexdigest())


def _spans(sources: int, targets: int) -> tuple[list[range], list[range]]:
  """Returns the rows of each block on both sides."""
  height = min(_SOURCES, max(1, -(-sources // _PARTS // _LEAST_SOURCES)) * _LEAST_SOURCES)
  width = _TARGETS
  while -(-sources // height) * -(-targets // width) > _MOST_BLOCKS:
    height, width = 2 * height, 2 * width
  return _cut(sources, height), _cut(targets, width)


def _cut(count: int, size: int) -> list[range]:
  return [range(start, min(start + size, count)) for start in range(0, count, size)]


def _numbers(vectors: exact_search.UnitVectors, spans: Sequence[range]) -> list[slice]:
  """Returns the numbers of the vectors in each span."""
  counts = [np.count_nonzero(vectors.kept_N[span.start : span.stop]) for span in spans]
  ends = np.cumsum(counts).tolist()
  return [slice(start, end) for start, end in zip([0, *ends], ends, strict=False)]


def _merge(
  best: exact_search.Neighbors, units: Sequence[CompareBlock], numbers: Sequence[slice], side: int
) -> None:
  """Merges the neighbors of one block of vectors, found in consecutive parts of the other side."""
  for unit, part in zip(units, numbers, strict=True):
    exact_search.merge(best, unit.read(side), part.start)
