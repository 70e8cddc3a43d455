"""A file of lines that is written in parts, and resumed after interruption."""

import functools
import json
import os
import pathlib
from collections.abc import Iterable, Mapping
from typing import IO, Any

from vmsst import errors
from vmsst.files import atomic_files, input_files, storage, stored_settings


class LineWriter:
  """Writes lines into `FILE.part`, which becomes FILE when it is complete.

  Nothing is written before the first `append`. Devices, pipes and standard streams are written
  directly, without a state to resume from.

  Attributes:
    done: Number of lines written so far.
  """

  def __init__(self, path: str | os.PathLike[str], settings: Mapping[str, Any]):
    """Starts a file, or resumes an interrupted one.

    Args:
      path: FILE, which is replaced at the end if it exists.
      settings: JSON values that identify the lines; see `stored_settings`.

    Raises:
      InputError: the path is a URL, or the interrupted file has other settings or is broken.
    """
    storage.check_local(path, "this output")
    self._is_stream = atomic_files.is_stream(path)
    self._path = pathlib.Path(path if self._is_stream else atomic_files.link_target(path))
    self._part = self._path.with_name(f"{self._path.name}{atomic_files.PARTIAL}")
    self._state_path = self._path.with_name(f"{self._part.name}.json")
    self._settings = json.loads(json.dumps(dict(settings)))
    self.done, self._size = (0, 0) if self._is_stream else self._load()

  def append(self, lines: Iterable[str]) -> None:
    """Appends lines and syncs them to disk."""
    lines = list(lines)
    content = "".join(f"{line}\n" for line in lines).encode()
    with atomic_files.naming(self._path):
      self._file.write(content)
      self._file.flush()
      if not self._is_stream:
        os.fsync(self._file.fileno())
    self.done += len(lines)
    self._size += len(content)
    if not self._is_stream:
      state = {"settings": self._settings, "done": self.done, "bytes": self._size}
      atomic_files.write_json(self._state_path, state)

  def finish(self) -> None:
    """Renames the complete file into place."""
    self._file.close()
    if not self._is_stream:
      self._part.replace(self._path)
      self._state_path.unlink(missing_ok=True)

  def close(self) -> None:
    """Closes the file, which another writer can resume."""
    if "_file" not in self.__dict__:
      return
    self._file.close()
    if not self._is_stream and not self._state_path.exists():  # the first lines were not written
      self._part.unlink(missing_ok=True)

  @functools.cached_property
  def _file(self) -> IO[bytes]:
    """The file, at the end of the lines so far."""
    if self._is_stream:
      return open(self._path, "wb")
    self._path.parent.mkdir(parents=True, exist_ok=True)
    file = open(self._part, "r+b" if self._size else "wb")  # noqa: SIM115 - closed by close
    file.truncate(self._size)
    file.seek(self._size)
    return file

  def _load(self) -> tuple[int, int]:
    """Returns the numbers of lines and bytes to resume from."""
    if not (self._state_path.exists() and self._part.exists()):
      return 0, 0  # or the earlier command was killed just after it was done
    try:
      state = input_files.read_json(self._state_path)
      settings, done, size = state["settings"], int(state["done"]), int(state["bytes"])
      whole = isinstance(settings, dict) and done >= 0 and 0 <= size <= self._part.stat().st_size
    except (ValueError, KeyError, TypeError, OSError):
      whole, settings, done, size = False, None, 0, 0
    differences = stored_settings.differences(settings, self._settings) if whole else ""
    if not whole or differences:
      problem = f"is from other inputs: {differences}" if whole else "is broken"
      raise errors.InputError(
        f"{self._part}: this incomplete file of an earlier command {problem}; delete it and "
        f"{self._state_path.name}, or write to another file"
      )
    return done, size
