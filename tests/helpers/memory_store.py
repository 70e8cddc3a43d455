"""An object store in the memory of this process, in place of `gs://`."""

import sys

from fsspec.implementations import memory


class MemoryStore(memory.MemoryFileSystem):
  """fsspec's memory file system under the scheme of Google's store."""

  protocol = ("gs", "gcs")
  store = {}  # noqa: RUF012 - fsspec's name for the objects, by path
  pseudo_dirs = [""]  # noqa: RUF012
  cachable = False

  @classmethod
  def _strip_protocol(cls, path):
    path = path.removeprefix("gs://").removeprefix("gcs://")
    return "/" + path.strip("/") if path.strip("/") else ""

  def makedirs(self, path, exist_ok=False):
    """Does nothing: a store has objects only."""


def installed(monkeypatch):
  """Makes `gs://` an empty store in memory, until the test ends; returns its file system."""
  monkeypatch.setattr(MemoryStore, "store", {})
  monkeypatch.setattr(MemoryStore, "pseudo_dirs", [""])
  for scheme in MemoryStore.protocol:
    monkeypatch.setitem(sys.modules["fsspec.registry"]._registry, scheme, MemoryStore)
  return MemoryStore()
