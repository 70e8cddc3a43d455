"""A file of lines that is written in parts, and resumed after interruption."""

import itertools
import os
from collections.abc import Iterable
from typing import Any

from vmsst.io import atomic_files, input_files, storage, work_folders
from vmsst.units import base


class LineWriter:
  """Writes lines that become FILE when it is complete.

  Until then, parts of it are in the work folder of FILE, which the caller owns
  (`work_folders.owned`). An equal writer resumes after them.

  Attributes:
    parts: Number of parts written so far.
  """

  def __init__(self, path: str | os.PathLike[str], settings: Any):
    """Opens an output.

    Args:
      path: Output file.
      settings: All that the lines depend on, as JSON. Parts of other settings are not used.
    """
    self._path = path
    self._work = work_folders.work_path(path)
    self._stem = f"lines-{base.digest(settings)}-"
    names = set(storage.names(self._work))
    # Up to the first gap: the parts may have been removed in another order.
    self.parts = next(n for n in itertools.count() if f"{self._stem}{n:06d}" not in names)

  def append(self, lines: Iterable[str]) -> None:
    """Writes a part, atomically."""
    content = "".join(f"{line}\n" for line in lines).encode()
    atomic_files.write_bytes(self._part(self.parts), content)
    self.parts += 1

  def finish(self) -> None:
    """Makes the file of all parts."""
    with atomic_files.atomic_file(self._path) as stream:
      for number in range(self.parts):
        stream.write(input_files.read_bytes(self._part(number)))
    work_folders.clear(self._work)

  def _part(self, number: int) -> str:
    return f"{self._work}/{self._stem}{number:06d}"
