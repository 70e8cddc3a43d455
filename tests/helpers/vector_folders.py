"""Folders of vectors that are already computed."""

from vmsst.io import npy_files
from vmsst.search import vector_store


def write(folder, vectors_ND, *, dtype="float32", settings=None, shard_rows=1 << 14):
  """Writes vectors to a new folder as `vmsst embed` does, and opens it."""
  count, width = vectors_ND.shape
  starts = range(0, count, shard_rows)
  rows = [min(shard_rows, count - start) for start in starts]
  vector_store.start(folder, vector_store.State(width, dtype, rows, settings or {}))
  sha256 = [
    npy_files.write_shard(
      vector_store.shard_path(folder, number), vectors_ND[start : start + shard_rows], width, dtype
    )
    for number, start in enumerate(starts)
  ]
  vector_store.finish(folder, sha256)
  return vector_store.open_vectors(folder)
