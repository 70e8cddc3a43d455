"""A file of lines that is written bit by bit and goes on where an earlier process stopped."""

import json
import os
import pathlib
from collections.abc import Iterable, Mapping
from typing import Any

from vmsst import errors
from vmsst.files import atomic_files


class LineWriter:
  """Writes lines into `FILE.part`, which becomes FILE when all are there.

  Attributes:
    done: Number of lines that are there.
  """

  def __init__(self, path: str | os.PathLike[str], settings: Mapping[str, Any]):
    """Starts, or goes on with what an interruption has left.

    Args:
      path: FILE, which is replaced at the end if it is there.
      settings: What the lines are of, as for JSON.

    Raises:
      InputError: what is left is of other lines, or broken.
    """
    self._path = pathlib.Path(path)
    self._part = self._path.with_name(f"{self._path.name}.part")
    self._state_path = self._path.with_name(f"{self._path.name}.part.json")
    self._settings = json.loads(json.dumps(dict(settings)))
    self._path.parent.mkdir(parents=True, exist_ok=True)
    self.done, size = self._load()
    self._file = open(self._part, "r+b" if size else "wb")  # noqa: SIM115 - closed by finish
    self._file.truncate(size)
    self._file.seek(size)

  def append(self, lines: Iterable[str]) -> None:
    """Writes lines behind those that are there; they are on the disk when this returns."""
    lines = list(lines)
    with atomic_files.naming(self._part):
      self._file.write("".join(f"{line}\n" for line in lines).encode())
      self._file.flush()
      os.fsync(self._file.fileno())
    self.done += len(lines)
    state = {"settings": self._settings, "done": self.done, "bytes": self._file.tell()}
    atomic_files.write_json(self._state_path, state)

  def finish(self) -> None:
    """Gives the file its name."""
    self._file.close()
    self._part.replace(self._path)
    self._state_path.unlink(missing_ok=True)

  def close(self) -> None:
    """Leaves what is there to be gone on with."""
    self._file.close()

  def _load(self) -> tuple[int, int]:
    """Lines and bytes that are there."""
    if not self._state_path.exists():
      return 0, 0
    try:
      state = json.loads(self._state_path.read_text(encoding="utf-8"))
      settings, done, size = state["settings"], int(state["done"]), int(state["bytes"])
      whole = done >= 0 and 0 <= size <= self._part.stat().st_size
    except (ValueError, KeyError, TypeError, OSError):
      whole, settings, done, size = False, None, 0, 0
    if not whole or settings != self._settings:
      what = "is of something else" if whole else "is broken"
      raise errors.InputError(
        f"{self._part}, which an earlier command has left, {what}: delete it and "
        f"{self._state_path.name}, or give another file to write"
      )
    return done, size
