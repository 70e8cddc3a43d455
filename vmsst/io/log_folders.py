"""Folders of files that grow: metrics as JSON lines and TensorBoard events.

Objects of a store cannot grow, and TensorFlow, which writes events, does not support all stores. So
the files are local, and uploaded as a whole when they have changed.
"""

import os
import pathlib
import shutil
import tempfile
import time
import weakref

from vmsst.io import storage


class LogFolder:
  """A folder to append to, as one on this machine.

  Attributes:
    local: The folder itself, or a local one whose files `upload` copies to the object store; it
      lasts as long as this object.
  """

  def __init__(self, folder: str | os.PathLike[str]):
    """Makes the folder; downloads the JSON lines of a store, which may be appended to."""
    self._url = os.fspath(folder).rstrip("/") if storage.is_url(folder) else None
    self._uploaded: dict[str, tuple[int, int]] = {}
    self._when = time.monotonic()
    if self._url is None:
      self.local = pathlib.Path(folder)
      self.local.mkdir(parents=True, exist_ok=True)
      return
    self.local = pathlib.Path(tempfile.mkdtemp(prefix="vmsst-logs-"))
    weakref.finalize(self, shutil.rmtree, self.local, ignore_errors=True)
    for name in sorted(storage.names(self._url)):
      if name.endswith(".jsonl"):
        storage.download(f"{self._url}/{name}", self.local / name)
        self._uploaded[name] = _version(self.local / name)

  def upload(self, *, after_seconds: float = 0) -> None:
    """Uploads the files that have changed since the last time, if the folder is in a store.

    Args:
      after_seconds: Does nothing if the last time was less long ago.

    Raises:
      InputError: the object store refuses them.
    """
    if self._url is None or time.monotonic() - self._when < after_seconds:
      return
    self._when = time.monotonic()
    for path in sorted(self.local.rglob("*")):
      name = path.relative_to(self.local).as_posix()
      if path.is_file() and self._uploaded.get(name) != (version := _version(path)):
        storage.upload(path, f"{self._url}/{name}")
        self._uploaded[name] = version


def _version(path: pathlib.Path) -> tuple[int, int]:
  status = path.stat()
  return status.st_size, status.st_mtime_ns
