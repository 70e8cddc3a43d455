"""Indexes of vector folders: built and opened by the paths of both."""

import os

from vmsst.search import index_folder
from vmsst.units import engines
from vmsst.vectors import vector_store


def build_index(
  vectors: str | os.PathLike[str],
  folder: str | os.PathLike[str],
  *,
  factory: str | None = None,
  engine: engines.Engine | None = None,
  progress: bool | None = None,
) -> index_folder.Settings:
  """Writes a FAISS index of a folder of vectors; resumes after interruption.

  Args:
    vectors: A folder that `vmsst embed` wrote, local or in an object store.
    folder: Output folder, the same.
    factory: Factory string of FAISS, such as "OPQ64,IVF65536,PQ64", see
      `vmsst.search.factory_strings.parse`; None: the default for the number of vectors.
    engine: Where to build it; None: in this process.
    progress: Show a progress bar; None: on a terminal only.

  Raises:
    InputError: FAISS is not installed, the vectors are missing, incomplete or broken, the string is
      not supported or does not suit them, or the output folder has another index.
  """
  rows = vector_store.open_vectors(vectors)
  return index_folder.build(
    rows,
    folder,
    name=os.fspath(vectors),
    factory=factory,
    engine=engine,
    progress=progress,
  )


def open_index(
  folder: str | os.PathLike[str], vectors: str | os.PathLike[str]
) -> index_folder.StoredIndex:
  """Opens an index for searches, after verifying its checksum and that of its vectors.

  Args:
    folder: A folder that `build_index` wrote.
    vectors: The folder of vectors from which it was built.

  Raises:
    InputError: there is no complete index, it is damaged or of other vectors, or FAISS is not
      installed.
  """
  rows = vector_store.open_vectors(vectors)
  return index_folder.open_index(folder, rows, name=os.fspath(vectors))
