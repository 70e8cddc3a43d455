"""Digests of the files of benchmarks, so that results of other data are recognized."""

import hashlib
import os
import pathlib
from collections.abc import Iterable, Iterator

from vmsst.io import checksums, storage


class DataDigests:
  """Computes digests of files under a data root; each file is read once, in chunks.

  The digests of a folder in an object store are those of its copy on this machine.
  """

  def __init__(self, root: str | os.PathLike[str], *, leave_out: str | os.PathLike[str]):
    """Takes the data root, and a folder that does not count even if it is below the root."""
    self._root = storage.path(root)
    self._left_out = leave_out
    self._cached_digest: dict[storage.Path, str] = {}

  def identity(self, folders: Iterable[str], patterns: Iterable[str] = ()) -> dict[str, str]:
    """Returns what identifies files, for JSON: the `name` of the root and a `digest`.

    The digest is a SHA-256 of the names and contents of all files. Hidden files do not count.

    Args:
      folders: Folders under the root, with all files at any depth.
      patterns: Glob patterns under the root, of further files.
    """
    below = self._objects_below if storage.is_url(self._root) else self._local_files_below
    paths = {path for name in folders for path in below(self._root / name)}
    paths |= {
      path
      for pattern in patterns
      for path in storage.find(self._root, pattern)
      if storage.is_file(path)
    }
    total = hashlib.sha256()
    for path in sorted(paths):
      total.update(f"{self._digest(path)}  {path.relative_to(self._root)}\n".encode())
    return {"name": storage.absolute(self._root), "digest": total.hexdigest()}

  def _digest(self, path: storage.Path) -> str:
    if path not in self._cached_digest:
      self._cached_digest[path] = checksums.of_file(path)
    return self._cached_digest[path]

  def _objects_below(self, folder: storage.Path) -> Iterator[storage.Path]:
    left_out = storage.path(self._left_out)
    is_inside = folder in left_out.parents
    for name in storage.objects_below(os.fspath(folder)):
      path = folder / name
      hidden = any(part.startswith(".") for part in name.split("/"))
      if not hidden and not (is_inside and left_out in path.parents):
        yield path

  def _local_files_below(self, folder: storage.Path) -> Iterator[pathlib.Path]:
    """Follows links to folders, each folder once."""
    seen = {os.path.realpath(self._left_out)}
    for where, folders, names in os.walk(folder, followlinks=True):
      seen.add(os.path.realpath(where))
      folders[:] = [
        name
        for name in folders
        if not name.startswith(".") and os.path.realpath(os.path.join(where, name)) not in seen
      ]
      for name in names:
        path = pathlib.Path(where, name)
        if not name.startswith(".") and path.is_file():
          yield path
