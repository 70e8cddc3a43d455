"""FAISS indexes: approximate nearest neighbors with exact cosines.

An index stores a compressed code for each vector. The search uses the codes to find candidates,
then reads the candidates' vectors and compares them exactly with the query, as in `exact_search`.
Scores are therefore exact, but the search misses any neighbor that is not a candidate.

A factory string such as `OPQ64,IVF65536,PQ64` names a rotation, the number of inverted lists, and
the code that compresses each vector. Vectors are scaled to length 1, so FAISS's inner products
approximate cosines.
"""

import contextlib
import math
import os
import re
from collections.abc import Iterator
from concurrent import futures
from typing import Any

import numpy as np

from vmsst import errors, storage
from vmsst.io import array_files, input_files, manifest, progress_bar
from vmsst.search import exact_search, vector_store

FILE = "index.faiss"  # name of the index file in a folder written by `vmsst index`
SHARD_ROWS = 1 << 20  # number of vectors that a job adds to an index at once

_PATTERN = re.compile(
  r"(?P<transform>(?:OPQ|PCAR?|RR)\d{1,6}(?:_\d{1,6})?,)?"
  r"(?:IVF(?P<lists>[1-9]\d{0,7}),)?"
  r"(?P<code>Flat|SQ8|SQfp16|RaBitQ|(?(lists)PQ\d{1,4}|(?!)))"  # PQ requires inverted lists
)
_EXAMPLES = "such as OPQ64,IVF65536,PQ64 or IVF4096,SQ8 or RaBitQ or Flat"
# If there are fewer vectors than this, an exact search takes only a few milliseconds.
_FLAT_BELOW = 20_000
# The default code uses one bit per dimension if there are fewer than _BITS_BELOW vectors and their
# width is at least _BITS_FROM.
_BITS_BELOW, _BITS_FROM = 10_000_000, 256
_MOST_PARTS = 64  # Maximum bytes per vector in the default PQ code.
_LEAST_PROBES = 32
# Number of training vectors per k-means centroid (FAISS asks for at least 39 and uses at most 256),
# and minimum number of training vectors in total.
_PER_CENTROID, _AT_LEAST = 64, 1 << 16
# Training of codes: rotation iterations, k-means iterations, and training vectors per code word.
_ROTATION_ROUNDS, _CODE_ROUNDS, _PER_CODE = 8, 10, 64
_QUERIES = 1 << 11  # Queries per FAISS call.
_PIECE = 64  # Queries per thread task when candidates are compared.
_CANDIDATES, _PER_NEIGHBOR = 64, 8
_SEED = 0  # Seed for the training sample.
_TINY = 1e-12  # Below this squared length (or above 1 / _TINY), float32 loses precision.


def training_rows(factory: str) -> int:
  """Returns the training sample size for a factory string, or 0 if no training is needed.

  The supported codes are `Flat` (float32), `SQfp16`, `SQ8` (one byte per dimension), `RaBitQ` (one
  bit per dimension) and `PQ64` (64 bytes). `IVF` with a number of lists may precede the code, and
  `OPQ`, `PCA`, `PCAR` or `RR` may come first. Other strings are not supported, because FAISS either
  cannot fill such an index in shards or cannot search a subset of its vectors.

  Raises:
    InputError: If the string is not supported.
  """
  if not (match := _PATTERN.fullmatch(factory)):
    raise errors.InputError(f"factory {factory!r} is not supported; use a string {_EXAMPLES}")
  lists = int(match["lists"] or 0)
  trained = match["transform"] or lists or match["code"] not in ("Flat", "SQfp16")
  return max(_AT_LEAST, _PER_CENTROID * lists) if trained else 0


def default_factory(count: int, dimension: int) -> str:
  """Returns the default factory string for `count` vectors with `dimension` dimensions.

  For fewer than 20,000 vectors, the default is `Flat`, an exact search. Larger indexes have
  inverted lists. The number of lists is the smallest power of two that is at least 4 sqrt(count),
  for example, 4,096 for a million vectors and 65,536 for 100 million.

  The code is `RaBitQ` after a random rotation if there are fewer than 10 million vectors and they
  have at least 256 dimensions, because `RaBitQ` is faster and more accurate than `PQ` in this case.
  Otherwise, the code is `PQ` with 64 bytes after an `OPQ` rotation, as in CCMatrix. If the width of
  the vectors is not a multiple of 64, the number of bytes is the width's largest divisor below 64.
  """
  if count < _FLAT_BELOW:
    return "Flat"
  lists = 1 << math.ceil(math.log2(4 * math.sqrt(count)))
  if count < _BITS_BELOW and dimension >= _BITS_FROM:
    return f"RR{dimension},IVF{lists},RaBitQ"
  size = max(m for m in range(1, _MOST_PARTS + 1) if dimension % m == 0)
  return f"OPQ{size},IVF{lists},PQ{size}"


def library() -> Any:
  """Returns the `faiss` module; raises InputError if the module is not installed."""
  # FAISS's threads wait for each other thousands of times. By default, waiting threads keep their
  # cores busy and take CPU time from the threads that they wait for.
  os.environ.setdefault("OMP_WAIT_POLICY", "passive")
  with errors.requires("faiss", "an index"):
    import faiss
  return faiss


def new(factory: str, dimension: int) -> Any:
  """Returns an empty index; raises InputError if FAISS cannot build an index with this width."""
  faiss = library()
  with _faiss_errors(f"factory {factory!r} does not suit vectors of width {dimension}"):
    return faiss.index_factory(dimension, factory, faiss.METRIC_INNER_PRODUCT)


def train(factory: str, vectors_ND: np.ndarray) -> Any:
  """Returns an empty index trained on unit vectors. Training uses a fixed random seed.

  Raises:
    InputError: If FAISS rejects the factory string, or if there are too few vectors for training.
  """
  index = new(factory, vectors_ND.shape[1])
  _train_briefly(index, _inverted_file(index))
  count = len(vectors_ND)
  with _faiss_errors(f"{factory} cannot be trained on {count:,} vectors; use fewer lists, or Flat"):
    index.train(np.ascontiguousarray(vectors_ND, np.float32))
  return index


def fill(index: Any, rows: exact_search.Rows, span: slice) -> None:
  """Scales the vectors in a range of rows to length 1 and adds them, with row numbers as ids."""
  ivf = _inverted_file(index)
  for block in exact_search.blocks(span.stop - span.start):
    first, stop = span.start + block.start, span.start + block.stop
    unit_BD = exact_search.unit_rows(rows[first:stop], first)
    if ivf is None:
      index.add(unit_BD)
    else:
      index.add_with_ids(unit_BD, np.arange(first, stop, dtype=np.int64))


def sample(rows: vector_store.Vectors, factory: str) -> np.ndarray:
  """Returns a seeded random sample of unit vectors, float32 [S, D], for training an index."""
  count = min(len(rows), training_rows(factory))
  row_S = np.random.default_rng(_SEED).choice(len(rows), count, replace=False, shuffle=False)
  row_S.sort()
  sample_SD = np.empty((count, rows.shape[1]), np.float32)
  for block in exact_search.blocks(count):
    sample_SD[block] = exact_search.unit_rows(rows.take(row_S[block]))
  return sample_SD


def build_index(vectors: Any, factory: str | None = None) -> "Index":
  """Builds an in-memory index of vectors.

  Args:
    vectors: As in `vector_store.open_vectors`.
    factory: FAISS factory string, such as "OPQ64,IVF65536,PQ64"; see `training_rows` (default: the
      result of `default_factory`).

  Raises:
    InputError: If FAISS is not installed, there are no vectors, or the factory string is not
      supported or does not fit the vectors.
  """
  rows = vector_store.open_vectors(vectors)
  factory = check(rows, factory)
  index = train(factory, sample(rows, factory))
  fill(index, rows, slice(0, len(rows)))
  return Index(index, factory, rows)


def check(rows: vector_store.Vectors, factory: str | None) -> str:
  """Checks and returns `factory`, or the default if None; raises the errors of `build_index`."""
  factory = factory or default_factory(*rows.shape)
  training_rows(factory)
  new(factory, rows.shape[1])
  return factory


def write(index: Any, path: str | os.PathLike[str]) -> None:
  """Writes an index to a local file."""
  with _faiss_errors(f"{os.fspath(path)} cannot be written"):
    library().write_index(index, os.fspath(path))


def read(path: str | os.PathLike[str], *, mapped: bool = False) -> Any:
  """Reads an index file. Verify its checksum first, because FAISS can crash on damaged files.

  Args:
    path: The file, local or in an object store.
    mapped: Whether to leave inverted lists on disk, as a read-only memory map.

  Raises:
    InputError: If this version of FAISS cannot read the file.
  """
  faiss = library()
  # The memory map stays valid after the local copy of the index file is removed.
  with (
    _faiss_errors(f"{os.fspath(path)}: this version of FAISS cannot read it"),
    storage.local_copy(path) as local,
  ):
    return faiss.read_index(os.fspath(local), faiss.IO_FLAG_MMAP if mapped else 0)


def open_index(folder: str | os.PathLike[str], vectors: Any) -> "Index":
  """Opens an index as a memory map, after verifying the checksums of the index and the vectors.

  An index in an object store is copied to this machine. The copy is removed when the process ends.

  Args:
    folder: A folder written by `vmsst index`.
    vectors: The vectors from which the index was built, as in `vector_store.open_vectors`.

  Raises:
    InputError: If the index is missing, incomplete or damaged, it was built from different vectors,
      or FAISS is not installed.
  """
  rows = vector_store.open_vectors(vectors)
  record = manifest.read(folder, "use a folder that `vmsst index` wrote, or build it again")
  described = {"vectors": {"name": rows.folder, "digest": rows.digest}}
  if FILE not in record.parts or manifest.differences(record.inputs, described):
    raise errors.InputError(
      f"{os.fspath(folder)} was not built from the current vectors in {rows.folder}; build it "
      "again (`vmsst index`)"
    )
  path = storage.cached_copy(os.path.join(folder, FILE))
  input_files.check_sha256(path, record.parts[FILE].sha256, "delete the folder and build it again")
  return Index(read(path, mapped=True), str(record.options["factory"]), rows)


class Index:
  """A searchable index, and the vectors from which it was built.

  Attributes:
    factory: Factory string.
    rows: The vectors.
    lists: Number of inverted lists; 0 if the index has none.
    shape: Number and width of the vectors.
  """

  def __init__(self, index: Any, factory: str, rows: vector_store.Vectors):
    """Wraps a filled FAISS index."""
    self.factory, self.rows = factory, rows
    self._index, self._ivf = index, _inverted_file(index)
    self.lists: int = 0 if self._ivf is None else self._ivf.nlist
    self.shape: tuple[int, int] = (index.ntotal, index.d)

  @property
  def exact(self) -> bool:
    """Whether the index is `Flat`, so that it returns the results of an exact search."""
    return self.factory == "Flat"

  def nearest(
    self,
    query_ND: np.ndarray,
    k: int,
    mask_N: np.ndarray | None = None,
    *,
    probes: int | None = None,
    candidates: int | None = None,
  ) -> exact_search.Neighbors:
    """Returns approximate k nearest neighbors for each query; ties go to the lowest row.

    Args:
      query_ND: Queries at length 1, float32.
      k: Neighbors per query.
      mask_N: Mask of the rows to search (default: all rows).
      probes: Lists to search per query (default: half the square root of the number of lists, but
        at least 32).
      candidates: Vectors per query to compare exactly (default: 8 per neighbor, but at least 64).
    """
    total = self.shape[0] if mask_N is None else int(np.count_nonzero(mask_N))
    k = min(k, total)
    count = min(total, max(k, candidates or max(_CANDIDATES, _PER_NEIGHBOR * k)))
    neighbors = exact_search.no_neighbors(len(query_ND), k)
    with futures.ThreadPoolExecutor(os.cpu_count()) as pool:
      for block in exact_search.blocks(len(query_ND), _QUERIES):
        query_BD = query_ND[block]
        row_BC = self.candidates(query_BD, count, mask_N, probes)
        # If the probed lists have too few vectors for a query, search all lists.
        lacking_P = np.flatnonzero((row_BC[:, :k] < 0).any(axis=1))
        if len(lacking_P):
          row_BC[lacking_P] = self.candidates(query_BD[lacking_P], count, mask_N, self.lists)
        pieces = list(exact_search.blocks(len(query_BD), _PIECE))
        best = (x[block] for x in neighbors)
        args = ([x[piece] for piece in pieces] for x in (query_BD, row_BC, *best))
        list(pool.map(self._rescore, *args))
    return neighbors

  def candidates(
    self,
    query_ND: np.ndarray,
    count: int,
    mask_N: np.ndarray | None = None,
    probes: int | None = None,
  ) -> np.ndarray:
    """Returns the rows with the approximately nearest codes, int64 [N, C], padded with -1."""
    faiss = library()
    selected = {}
    if mask_N is not None and not mask_N.all():
      selected["sel"] = faiss.IDSelectorBitmap(np.packbits(mask_N, bitorder="little"))
    if self._ivf is None:
      params = faiss.SearchParameters(**selected)
    else:
      probes = probes or max(_LEAST_PROBES, math.isqrt(self.lists) // 2)
      params = faiss.SearchParametersIVF(nprobe=min(probes, self.lists), **selected)
    if isinstance(self._index, faiss.IndexPreTransform):
      params = faiss.SearchParametersPreTransform(index_params=params)
    return self._index.search(np.ascontiguousarray(query_ND, np.float32), count, params=params)[1]

  def _rescore(
    self, query_BD: np.ndarray, row_BC: np.ndarray, index_BK: np.ndarray, score_BK: np.ndarray
  ) -> None:
    """Compares queries with candidates; writes the nearest rows and their scores in place."""
    vector_PD = self.rows.take(np.maximum(row_BC, 0).ravel())
    score_BC = _cosines(query_BD, vector_PD.reshape(*row_BC.shape, -1))
    score_BC[row_BC < 0] = -np.inf
    order_BK = np.lexsort((row_BC, -score_BC))[:, : index_BK.shape[1]]
    index_BK[:] = np.take_along_axis(row_BC, order_BK, axis=1)
    score_BK[:] = np.take_along_axis(score_BC, order_BK, axis=1)


def index_search(source_index: Index, target_index: Index) -> exact_search.Search:
  """Returns a `Search` that uses two indexes, one for the sources and one for the targets."""

  def search(
    source: exact_search.Selection,
    target: exact_search.Selection,
    k_source: int,
    k_target: int | None,
    /,
  ) -> exact_search.Both:
    directions = [(source, target_index, target, k_source)]
    if k_target is not None:
      directions.append((target, source_index, source, k_target))
    results = []
    with progress_bar.Bar(total=sum(len(x[0].row_N) for x in directions), unit=" searches") as bar:
      for queries, index, base, k in directions:
        mask_N = array_files.full(index.shape[0], False, bool)
        mask_N[base.row_N] = True
        neighbors = exact_search.no_neighbors(len(queries.row_N), k)
        for rows, query_BD in queries.unit_blocks(_QUERIES):
          nearest = index.nearest(query_BD, k, mask_N)
          neighbors.index_NK[rows] = np.searchsorted(base.row_N, nearest.index_NK)
          neighbors.score_NK[rows] = nearest.score_NK
          bar.update(len(query_BD))
        results.append(neighbors)
    return results[0], results[1] if k_target is not None else None

  return search


def _inverted_file(index: Any) -> Any:
  faiss = library()
  ivf = faiss.try_extract_index_ivf(index)
  return None if ivf is None else faiss.downcast_index(ivf)


def _train_briefly(index: Any, ivf: Any) -> None:
  """Shortens the training of the codes. FAISS's defaults would take an hour on two cores.

  Longer training would give slightly better codes. This would hardly change the search results,
  because the codes only select candidates, which are then compared exactly.
  """
  faiss = library()
  if isinstance(index, faiss.IndexPreTransform):
    transform = faiss.downcast_VectorTransform(index.chain.at(0))
    if isinstance(transform, faiss.OPQMatrix):
      transform.niter = transform.niter_pq_0 = _ROTATION_ROUNDS
      transform.niter_pq = 1
      transform.max_train_points = 256 * _PER_CODE
      codes = faiss.ProductQuantizer(transform.d_out, transform.M, 8)
      codes.cp.min_points_per_centroid = 1
      codes.this.disown()  # FAISS keeps a pointer to `codes`, so Python must not free it.
      transform.pq = codes
  if ivf is not None:  # Prevent repeated warnings about few training vectors.
    ivf.cp.min_points_per_centroid = 1
  if isinstance(ivf, faiss.IndexIVFPQ):
    ivf.do_polysemous_training = False  # Polysemous search is not used.
    ivf.pq.cp.niter = _CODE_ROUNDS
    ivf.pq.cp.min_points_per_centroid = 1
    ivf.pq.cp.max_points_per_centroid = _PER_CODE


@contextlib.contextmanager
def _faiss_errors(problem: str) -> Iterator[None]:
  """Turns FAISS errors into InputError, without the source location in the message."""
  try:
    yield
  except RuntimeError as error:
    reason = str(error).rpartition("Error: ")[2].strip()
    raise errors.InputError(f"{problem}: {reason}") from None


def _cosines(query_BD: np.ndarray, vector_BCD: np.ndarray) -> np.ndarray:
  """Returns the cosines between unit queries and their candidate vectors of any length."""
  vector_BCD = vector_BCD.astype(np.float32, copy=False)
  with np.errstate(over="ignore"):
    square_BC = np.einsum("bcd,bcd->bc", vector_BCD, vector_BCD)
  if not ((square_BC > _TINY) & (square_BC < 1 / _TINY)).all():  # zero vectors or extreme lengths
    flat_PD = vector_BCD.reshape(-1, vector_BCD.shape[-1])
    vector_BCD = exact_search.unit_rows(flat_PD).reshape(vector_BCD.shape)
    square_BC = np.float32(1)
  return np.einsum("bd,bcd->bc", query_BD, vector_BCD) / np.sqrt(square_BC)
