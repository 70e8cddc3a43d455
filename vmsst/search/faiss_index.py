"""Indexes of FAISS: trained, filled, merged, stored and searched.

Vectors have length 1, and scores are inner products. Where FAISS finds GPUs, they compare vectors
with the centers of lists, which is most of the work of training and filling.
"""

import contextlib
import os
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from vmsst import errors
from vmsst.files import input_files

# Training of codes: rounds of the rotation and of k-means, and vectors per code word.
_ROTATION_ROUNDS, _CODE_ROUNDS, _PER_CODE = 8, 10, 64


def library() -> Any:
  """Returns the module faiss; raises InputError if it is not installed."""
  with errors.requires("faiss", "an index"):
    import faiss
  return faiss


def check(factory: str, dimension: int) -> None:
  """Raises InputError if FAISS cannot build an index for vectors of this width."""
  _new(factory, dimension)


def train(factory: str, vectors_ND: np.ndarray) -> Any:
  """Returns an empty index, trained on unit vectors; FAISS seeds its random numbers.

  Raises:
    InputError: FAISS refuses the string, or there are too few vectors to train it.
  """
  faiss = library()
  index = _new(factory, vectors_ND.shape[1])
  ivf = _inverted(index)
  _train_briefly(index, ivf)
  try:
    if ivf is not None and faiss.get_num_gpus():
      ivf.clustering_index = faiss.index_cpu_to_all_gpus(faiss.IndexFlatIP(ivf.d))
    index.train(np.ascontiguousarray(vectors_ND, np.float32))
  except RuntimeError as error:
    raise errors.InputError(
      f"{factory} cannot be trained on {len(vectors_ND):,} vectors: {_reason(error)}; give a "
      "factory with fewer lists, or Flat"
    ) from None
  if ivf is not None:
    ivf.clustering_index = None
  return index


def fill(index: Any, blocks: Iterable[np.ndarray], first: int) -> None:
  """Adds unit vectors, which are numbered from `first` on."""
  ivf = _inverted(index)
  with _on_gpus(ivf):
    for vectors_BD in blocks:
      if ivf is None:
        index.add(vectors_BD)
      else:
        index.add_with_ids(vectors_BD, np.arange(first, first + len(vectors_BD), dtype=np.int64))
      first += len(vectors_BD)


def merge(index: Any, other: Any) -> None:
  """Moves the vectors of another index to the end of this one."""
  index.merge_from(other, 0)


def write(index: Any, path: str | os.PathLike[str]) -> None:
  """Writes an index to a file.

  Raises:
    OSError: it cannot be written.
  """
  try:
    library().write_index(index, input_files.utf8_path(path, "an index"))
  except RuntimeError as error:
    raise OSError(f"{os.fspath(path)} cannot be written: {_reason(error)}") from None


def read(path: str | os.PathLike[str], *, mapped: bool = False) -> Any:
  """Reads a file of `write` whose checksum has been verified: FAISS can crash on others.

  Args:
    path: The file.
    mapped: Leave inverted lists on disk, as a memory map that cannot be changed.

  Raises:
    InputError: this FAISS cannot read it.
  """
  faiss = library()
  try:
    place = input_files.utf8_path(path, "an index")
    return faiss.read_index(place, faiss.IO_FLAG_MMAP if mapped else 0)
  except RuntimeError as error:
    raise errors.InputError(
      f"{os.fspath(path)}: this version of FAISS cannot read it: {_reason(error)}"
    ) from None


class Reader:
  """An index to search.

  Attributes:
    lists: Number of inverted lists; 0: none.
    count: Number of vectors.
    width: Their width.
  """

  def __init__(self, index: Any):
    """Prepares a filled index."""
    self._index, self._ivf = index, _inverted(index)
    self.lists: int = 0 if self._ivf is None else self._ivf.nlist
    self.count: int = index.ntotal
    self.width: int = index.d
    self._gpus = contextlib.ExitStack()
    self._gpus.enter_context(_on_gpus(self._ivf))

  def search(
    self, query_ND: np.ndarray, k: int, probes: int, allowed: "Allowed | None" = None
  ) -> np.ndarray:
    """Returns the rows of about the k nearest vectors of each query, int64 [N, K]; -1 for none.

    Args:
      query_ND: Unit vectors.
      k: Vectors per query.
      probes: Lists to search for each query.
      allowed: The rows to search among; None: all.
    """
    faiss = library()
    selected = {} if allowed is None else {"sel": allowed.selector}
    if self._ivf is None:
      params = faiss.SearchParameters(**selected)
    else:
      params = faiss.SearchParametersIVF(nprobe=min(probes, self.lists), **selected)
    if isinstance(self._index, faiss.IndexPreTransform):
      params = faiss.SearchParametersPreTransform(index_params=params)
    return self._index.search(np.ascontiguousarray(query_ND, np.float32), k, params=params)[1]


class Allowed:
  """Some of the rows of an index, a bit each.

  Attributes:
    count: Number of rows.
    selector: The rows, for FAISS.
  """

  def __init__(self, row_S: np.ndarray, total: int):
    """Takes distinct rows of `total`."""
    chosen_N = np.zeros(total, bool)
    chosen_N[row_S] = True
    self.count: int = len(row_S)
    self.selector = library().IDSelectorBitmap(np.packbits(chosen_N, bitorder="little"))


def _new(factory: str, dimension: int) -> Any:
  faiss = library()
  try:
    return faiss.index_factory(dimension, factory, faiss.METRIC_INNER_PRODUCT)
  except RuntimeError as error:
    raise errors.InputError(
      f"factory {factory!r} does not suit vectors of width {dimension}: {_reason(error)}"
    ) from None


def _inverted(index: Any) -> Any:
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
  if isinstance(ivf, faiss.IndexIVFPQ):
    ivf.do_polysemous_training = False  # Orders codes for a kind of search that is not used.
    ivf.pq.cp.niter = _CODE_ROUNDS
    ivf.pq.cp.max_points_per_centroid = _PER_CODE


@contextlib.contextmanager
def _on_gpus(ivf: Any) -> Iterator[None]:
  """Compares vectors with the centers of lists on GPUs, if FAISS finds some."""
  faiss = library()
  if ivf is None or not faiss.get_num_gpus():
    yield
    return
  centers, owned = ivf.quantizer, ivf.own_fields
  ivf.own_fields = False  # This Python object owns the copy.
  ivf.quantizer = faiss.index_cpu_to_all_gpus(faiss.downcast_index(centers))
  try:
    yield
  finally:
    ivf.quantizer, ivf.own_fields = centers, owned


def _reason(error: Exception) -> str:
  """Returns FAISS's message without the place in its source."""
  return str(error).rpartition("Error: ")[2].strip()
