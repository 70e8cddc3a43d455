"""Indexes of FAISS: approximate nearest neighbors, with exact cosines from the stored vectors.

An index finds candidates by their codes; the vectors of these are read and compared exactly, as in
`exact_search`. Thus scores are exact, but a vector that is not a candidate is never found.

A factory string such as `OPQ64,IVF65536,PQ64` names a rotation, a number of lists of nearby
vectors, and the code of a vector. Vectors have length 1, and FAISS's scores are inner products.
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

FILE = "index.faiss"
"""File of an index in a folder that `vmsst index` wrote."""
SHARD_ROWS = 1 << 20
"""Vectors that are added to an index together."""

_PATTERN = re.compile(
  r"(?P<transform>(?:OPQ|PCAR?|RR)\d{1,6}(?:_\d{1,6})?,)?"
  r"(?:IVF(?P<lists>[1-9]\d{0,7}),)?"
  r"(?P<code>Flat|SQ8|SQfp16|RaBitQ|(?(lists)PQ\d{1,4}|(?!)))"  # PQ is filled in lists only
)
_EXAMPLES = "such as OPQ64,IVF65536,PQ64 or IVF4096,SQ8 or RaBitQ or Flat"
# Fewer vectors than this are searched exactly in a few milliseconds.
_FLAT_BELOW = 20_000
# A bit per dimension is the default code of fewer vectors than this, of at least this width.
_BITS_BELOW, _BITS_FROM = 10_000_000, 256
_MOST_PARTS = 64  # Bytes of the other default code.
_LEAST_PROBES = 32
# Training vectors: FAISS asks for at least 39 per centroid and uses at most 256.
_PER_CENTROID, _AT_LEAST = 64, 1 << 16
# Training of codes: rounds of the rotation and of k-means, and vectors per code word.
_ROTATION_ROUNDS, _CODE_ROUNDS, _PER_CODE = 8, 10, 64
_QUERIES = 1 << 11  # Searched together.
_PIECE = 64  # Queries per thread when candidates are compared.
_CANDIDATES, _PER_NEIGHBOR = 64, 8
_SEED = 0  # Of the training sample.
_TINY = 1e-12  # Squared lengths that float32 computes without loss are above.


def training_rows(factory: str) -> int:
  """Returns how many vectors to train a factory string on, if there are as many; 0: no training.

  Codes are `Flat` (float32), `SQfp16`, `SQ8` (a byte per dimension), `RaBitQ` (a bit per dimension)
  and `PQ64` (64 bytes). `IVF` with a number of lists may precede it, and `OPQ`, `PCA`, `PCAR` or
  `RR` that. Indexes of other strings cannot be filled in shards, or not be searched among some of
  the vectors.

  Raises:
    InputError: the string is not supported.
  """
  if not (match := _PATTERN.fullmatch(factory)):
    raise errors.InputError(f"factory {factory!r} is not supported: give one {_EXAMPLES}")
  lists = int(match["lists"] or 0)
  trained = match["transform"] or lists or match["code"] not in ("Flat", "SQfp16")
  return max(_AT_LEAST, _PER_CENTROID * lists) if trained else 0


def default_factory(count: int, dimension: int) -> str:
  """Returns the default for a number of vectors.

  `Flat`, which is exact, below 20,000 vectors. Above, inverted lists: the lowest power of two of at
  least 4 sqrt(count), which is 4,096 at a million and 65,536 at 100 million. Their codes are
  `RaBitQ` after a random rotation below 10 million vectors, the faster and more accurate one there,
  and 64 bytes of `OPQ` and `PQ` from 10 million on, as in CCMatrix, and for vectors of fewer than
  256 dimensions. For widths that are not a multiple of 64, PQ has the largest divisor below 64.
  """
  if count < _FLAT_BELOW:
    return "Flat"
  lists = 1 << math.ceil(math.log2(4 * math.sqrt(count)))
  if count < _BITS_BELOW and dimension >= _BITS_FROM:
    return f"RR{dimension},IVF{lists},RaBitQ"
  parts = max(m for m in range(1, _MOST_PARTS + 1) if dimension % m == 0)
  return f"OPQ{parts},IVF{lists},PQ{parts}"


def library() -> Any:
  """Returns the module faiss; raises InputError if it is not installed."""
  # Its threads wait for each other thousands of times. On a busy machine, those that wait actively
  # take the time of those that work.
  os.environ.setdefault("OMP_WAIT_POLICY", "passive")
  with errors.requires("faiss", "an index"):
    import faiss
  return faiss


def new(factory: str, dimension: int) -> Any:
  """Returns an empty index; raises InputError if FAISS cannot build it for this width."""
  faiss = library()
  with _faiss_errors(f"factory {factory!r} does not suit vectors of width {dimension}"):
    return faiss.index_factory(dimension, factory, faiss.METRIC_INNER_PRODUCT)


def train(factory: str, vectors_ND: np.ndarray) -> Any:
  """Returns an empty index, trained on unit vectors; FAISS seeds its random numbers.

  Raises:
    InputError: FAISS refuses the string, or there are too few vectors to train it.
  """
  index = new(factory, vectors_ND.shape[1])
  _train_briefly(index, _inverted_file(index))
  count = len(vectors_ND)
  with _faiss_errors(
    f"{factory} cannot be trained on {count:,} vectors; give fewer lists, or Flat"
  ):
    index.train(np.ascontiguousarray(vectors_ND, np.float32))
  return index


def fill(index: Any, rows: exact_search.Rows, span: slice) -> None:
  """Adds some vectors, at length 1, numbered by their rows."""
  ivf = _inverted_file(index)
  for part in exact_search.blocks(span.stop - span.start):
    first, stop = span.start + part.start, span.start + part.stop
    unit_BD = exact_search.unit_rows(rows[first:stop], first)
    if ivf is None:
      index.add(unit_BD)
    else:
      index.add_with_ids(unit_BD, np.arange(first, stop, dtype=np.int64))


def sample(rows: vector_store.Vectors, factory: str) -> np.ndarray:
  """Returns unit vectors to train an index on, float32 [S, D]: a seeded random sample."""
  count = min(len(rows), training_rows(factory))
  row_S = np.random.default_rng(_SEED).choice(len(rows), count, replace=False, shuffle=False)
  row_S.sort()
  sample_SD = np.empty((count, rows.shape[1]), np.float32)
  for part in exact_search.blocks(count):
    sample_SD[part] = exact_search.unit_rows(rows.take(row_S[part]))
  return sample_SD


def build_index(vectors: Any, factory: str | None = None) -> "Index":
  """Returns an index of vectors, in memory.

  Args:
    vectors: As in `vector_store.open_vectors`.
    factory: Factory string of FAISS, such as "OPQ64,IVF65536,PQ64", see `training_rows`; default:
      by the number of vectors, see `default_factory`.

  Raises:
    InputError: FAISS is not installed, there are no vectors, or the string is not supported or does
      not suit them.
  """
  rows = vector_store.open_vectors(vectors)
  factory = check(rows, factory)
  index = train(factory, sample(rows, factory))
  fill(index, rows, slice(0, len(rows)))
  return Index(index, factory, rows)


def check(rows: vector_store.Vectors, factory: str | None) -> str:
  """Returns the factory string of an index, or the default; errors are as in `build_index`."""
  factory = factory or default_factory(*rows.shape)
  training_rows(factory)
  new(factory, rows.shape[1])
  return factory


def write(index: Any, path: str | os.PathLike[str]) -> None:
  """Writes an index to a local file."""
  with _faiss_errors(f"{os.fspath(path)} cannot be written"):
    library().write_index(index, os.fspath(path))


def read(path: str | os.PathLike[str], *, mapped: bool = False) -> Any:
  """Reads a file of `write` whose checksum has been verified: FAISS can crash on others.

  Args:
    path: The file, local or in an object store.
    mapped: Leave inverted lists on disk, as a memory map that cannot be changed.

  Raises:
    InputError: this FAISS cannot read it.
  """
  faiss = library()
  # A map of a copy stays valid when its name is removed.
  with (
    _faiss_errors(f"{os.fspath(path)}: this version of FAISS cannot read it"),
    storage.local_copy(path) as local,
  ):
    return faiss.read_index(os.fspath(local), faiss.IO_FLAG_MMAP if mapped else 0)


def open_index(folder: str | os.PathLike[str], vectors: Any) -> "Index":
  """Opens an index as a memory map, after verifying its checksum and that of its vectors.

  The file of an index in an object store is copied to this machine until the process ends.

  Args:
    folder: A folder that `vmsst index` wrote.
    vectors: The vectors from which it was built, as in `vector_store.open_vectors`.

  Raises:
    InputError: there is no complete index, it is damaged or of other vectors, or FAISS is not
      installed.
  """
  rows = vector_store.open_vectors(vectors)
  record = manifest.read(folder, "give a folder that `vmsst index` wrote, or build it again")
  described = {"vectors": {"name": rows.folder, "digest": rows.digest}}
  if FILE not in record.parts or manifest.differences(record.inputs, described):
    raise errors.InputError(
      f"{os.fspath(folder)} is an index of other vectors than {rows.folder}, or of an earlier "
      "version: build it again (`vmsst index`)"
    )
  path = storage.cached_copy(os.path.join(folder, FILE))
  input_files.check_sha256(path, record.parts[FILE].sha256, "delete the folder and build it again")
  return Index(read(path, mapped=True), str(record.options["factory"]), rows)


class Index:
  """An index to search, and the vectors from which it was built.

  Attributes:
    factory: Its factory string.
    rows: The vectors.
    lists: Number of inverted lists; 0: none.
    shape: Number and width of the vectors in it.
  """

  def __init__(self, index: Any, factory: str, rows: vector_store.Vectors):
    """Prepares a filled index."""
    self.factory, self.rows = factory, rows
    self._index, self._ivf = index, _inverted_file(index)
    self.lists: int = 0 if self._ivf is None else self._ivf.nlist
    self.shape: tuple[int, int] = (index.ntotal, index.d)

  @property
  def exact(self) -> bool:
    """Whether it holds the vectors as they are, so that it finds what an exact search finds."""
    return self.factory == "Flat"

  def nearest(
    self,
    query_ND: np.ndarray,
    k: int,
    wanted_N: np.ndarray | None = None,
    *,
    probes: int | None = None,
    candidates: int | None = None,
  ) -> exact_search.Neighbors:
    """Returns about the k nearest rows of each query, or all; ties by lowest row.

    Args:
      query_ND: Queries at length 1, float32.
      k: Neighbors per query.
      wanted_N: Whether to search each row; None: all.
      probes: Lists to search per query; None: half the square root of their number, but at least
        32.
      candidates: Vectors per query to compare exactly; None: 8 per neighbor, but at least 64.
    """
    total = self.shape[0] if wanted_N is None else int(np.count_nonzero(wanted_N))
    k = min(k, total)
    count = min(total, max(k, candidates or max(_CANDIDATES, _PER_NEIGHBOR * k)))
    neighbors = exact_search.no_neighbors(len(query_ND), k)
    with futures.ThreadPoolExecutor(os.cpu_count()) as pool:
      for block in exact_search.blocks(len(query_ND), _QUERIES):
        query_BD = query_ND[block]
        row_BC = self.candidates(query_BD, count, wanted_N, probes)
        # The lists of a few queries have fewer vectors than requested.
        lacking_P = np.flatnonzero((row_BC[:, :k] < 0).any(axis=1))
        if len(lacking_P):
          row_BC[lacking_P] = self.candidates(query_BD[lacking_P], count, wanted_N, self.lists)
        parts = list(exact_search.blocks(len(query_BD), _PIECE))
        best = (x[block] for x in neighbors)
        args = ([x[part] for part in parts] for x in (query_BD, row_BC, *best))
        list(pool.map(self._rescore, *args))
    return neighbors

  def candidates(
    self,
    query_ND: np.ndarray,
    count: int,
    wanted_N: np.ndarray | None = None,
    probes: int | None = None,
  ) -> np.ndarray:
    """Returns the rows of about the nearest vectors by their codes, int64 [N, C]; -1 for none."""
    faiss = library()
    selected = {}
    if wanted_N is not None and not wanted_N.all():
      selected["sel"] = faiss.IDSelectorBitmap(np.packbits(wanted_N, bitorder="little"))
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
    """Sets the nearest candidates by their vectors, and their scores."""
    stored_PD = self.rows.take(np.maximum(row_BC, 0).ravel())
    score_BC = _cosines(query_BD, stored_PD.reshape(*row_BC.shape, -1))
    score_BC[row_BC < 0] = -np.inf
    order_BK = np.lexsort((row_BC, -score_BC))[:, : index_BK.shape[1]]
    index_BK[:] = np.take_along_axis(row_BC, order_BK, axis=1)
    score_BK[:] = np.take_along_axis(score_BC, order_BK, axis=1)


def index_search(source_index: Index, target_index: Index) -> exact_search.Search:
  """Returns a `Search` among rows of the vectors of two indexes."""

  def search(
    source: exact_search.Selection,
    target: exact_search.Selection,
    k_source: int,
    k_target: int | None,
    /,
  ) -> exact_search.Both:
    ways = [(source, target_index, target, k_source)]
    if k_target is not None:
      ways.append((target, source_index, source, k_target))
    results = []
    with progress_bar.Bar(total=sum(len(way[0].row_N) for way in ways), unit=" searches") as bar:
      for queries, index, base, k in ways:
        wanted_N = array_files.full(index.shape[0], False, bool)
        wanted_N[base.row_N] = True
        near = exact_search.no_neighbors(len(queries.row_N), k)
        for rows, query_BD in queries.unit_blocks(_QUERIES):
          found = index.nearest(query_BD, k, wanted_N)
          near.index_NK[rows] = np.searchsorted(base.row_N, found.index_NK)
          near.score_NK[rows] = found.score_NK
          bar.update(len(query_BD))
        results.append(near)
    return results[0], results[1] if k_target is not None else None

  return search


def _inverted_file(index: Any) -> Any:
  faiss = library()
  ivf = faiss.try_extract_index_ivf(index)
  return None if ivf is None else faiss.downcast_index(ivf)


def _train_briefly(index: Any, ivf: Any) -> None:
  """Limits the training of codes, of which FAISS's defaults take an hour on two cores.

  Candidates are compared exactly, so that slightly better codes change little.
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
      codes.this.disown()  # FAISS keeps the address.
      transform.pq = codes
  if ivf is not None:  # FAISS warns about few vectors, once for each part of them.
    ivf.cp.min_points_per_centroid = 1
  if isinstance(ivf, faiss.IndexIVFPQ):
    ivf.do_polysemous_training = False  # Orders codes for a kind of search that is not used.
    ivf.pq.cp.niter = _CODE_ROUNDS
    ivf.pq.cp.min_points_per_centroid = 1
    ivf.pq.cp.max_points_per_centroid = _PER_CODE


@contextlib.contextmanager
def _faiss_errors(problem: str) -> Iterator[None]:
  """Turns errors of FAISS into InputError, without the place in its source."""
  try:
    yield
  except RuntimeError as error:
    reason = str(error).rpartition("Error: ")[2].strip()
    raise errors.InputError(f"{problem}: {reason}") from None


def _cosines(query_BD: np.ndarray, vector_BCD: np.ndarray) -> np.ndarray:
  """Returns the cosine of each unit query with each of its vectors, of any length."""
  vector_BCD = vector_BCD.astype(np.float32, copy=False)
  with np.errstate(over="ignore"):
    square_BC = np.einsum("bcd,bcd->bc", vector_BCD, vector_BCD)
  if not ((square_BC > _TINY) & (square_BC < 1 / _TINY)).all():  # Zeros, or of extreme lengths.
    flat_PD = vector_BCD.reshape(-1, vector_BCD.shape[-1])
    vector_BCD = exact_search.unit_rows(flat_PD).reshape(vector_BCD.shape)
    square_BC = np.float32(1)
  return np.einsum("bd,bcd->bc", query_BD, vector_BCD) / np.sqrt(square_BC)
