"""A file of lines that is written in parts, and resumed after interruption."""

import functools
import json
import os
from collections.abc import Iterable, Mapping
from typing import IO, Any, Protocol

from vmsst import errors
from vmsst.files import atomic_files, input_files, storage, stored_settings, work_folders

_LINES, _STATE = "lines", "state.json"


class LineWriter:
  """Writes lines that become FILE when it is complete.

  Until then they are in the work folder of FILE, with the state to resume from: in a file, or in an
  object store in an object for each `append`. The caller owns FILE (`work_folders.owned`). Nothing
  is written before the first `append`. Devices, pipes and standard streams are written directly,
  without a state.

  Attributes:
    done: Number of lines written so far.
  """

  def __init__(self, path: str | os.PathLike[str], settings: Mapping[str, Any]):
    """Starts a file, or resumes an interrupted one.

    Args:
      path: FILE, which is replaced at the end if it exists; local or in an object store.
      settings: JSON values that identify the lines; see `stored_settings`.

    Raises:
      InputError: the interrupted file has other settings or is broken.
    """
    self._settings = json.loads(json.dumps(dict(settings)))
    self._target: _Target
    self._work: str | None = work_folders.path_of(path)  # None: there is no state.
    if storage.is_url(path):
      self._target = _Objects(os.fspath(path), f"{self._work}/{_LINES}")
    elif atomic_files.is_stream(path):
      self._work = None
      self._target = _Stream(path)
    else:
      self._target = _File(atomic_files.link_target(path), f"{self._work}/{_LINES}")
    self.done, self._size = (0, 0) if self._work is None else self._load(self._work)

  def append(self, lines: Iterable[str]) -> None:
    """Appends lines, which are then on disk or in the store."""
    lines = list(lines)
    content = "".join(f"{line}\n" for line in lines).encode()
    self._target.write(content, self._size)
    self.done += len(lines)
    self._size += len(content)
    if self._work is not None:
      state = {"settings": self._settings, "done": self.done, "bytes": self._size}
      atomic_files.write_json(f"{self._work}/{_STATE}", state)

  def finish(self) -> None:
    """Makes FILE of the lines."""
    self._target.finish(self._size)
    if self._work is not None:
      work_folders.clear(self._work)

  def close(self) -> None:
    """Closes the file, which another writer can resume."""
    if self._target.close() and self._work is not None and not self.done:
      storage.remove(f"{self._work}/{_LINES}")  # The first lines were not written.
      work_folders.remove_if_empty(self._work)

  def _load(self, work: str) -> tuple[int, int]:
    """Returns the numbers of lines and bytes to resume from."""
    state_path = f"{work}/{_STATE}"
    if not storage.exists(state_path) or (stored := self._target.stored()) is None:
      return 0, 0  # or the earlier command was killed just after it was done
    try:
      state = input_files.read_json(state_path)
      settings, done, size = state["settings"], int(state["done"]), int(state["bytes"])
      whole = isinstance(settings, dict) and done >= 0 and 0 <= size <= stored
    except (ValueError, KeyError, TypeError):
      whole, settings, done, size = False, None, 0, 0
    differences = stored_settings.differences(settings, self._settings) if whole else ""
    if not whole or differences:
      problem = f"is from other inputs: {differences}" if whole else "is broken"
      raise errors.InputError(
        f"{work}: this unfinished output of an earlier command {problem}; delete it, or write to "
        "another file"
      )
    return done, size


class _Target(Protocol):
  """Where lines are written."""

  def stored(self) -> int | None:
    """Returns the number of bytes of an incomplete file; None if there is none."""

  def write(self, content: bytes, start: int) -> None:
    """Writes bytes from `start` on; those before are written, and others are replaced."""

  def finish(self, size: int) -> None:
    """Makes a file of the first `size` bytes."""

  def close(self) -> bool:
    """Ends writing; returns whether something may have been written."""


class _Stream:
  def __init__(self, path: str | os.PathLike[str]):
    self._path = path

  def stored(self) -> None:
    return None

  def write(self, content: bytes, start: int) -> None:
    del start
    with atomic_files.naming(self._path):
      self._file.write(content)
      self._file.flush()

  def finish(self, size: int) -> None:
    del size
    self._file.close()

  def close(self) -> bool:
    opened = "_file" in self.__dict__
    if opened:
      self._file.close()
    return opened

  @functools.cached_property
  def _file(self) -> IO[bytes]:
    return open(self._path, "wb")


class _File:
  def __init__(self, path: str, lines: str):
    self._path, self._lines = path, lines
    self._file: IO[bytes] | None = None

  def stored(self) -> int | None:
    return os.path.getsize(self._lines) if os.path.exists(self._lines) else None

  def write(self, content: bytes, start: int) -> None:
    with atomic_files.naming(self._path):
      file = self._file or self._open(start)
      file.write(content)
      file.flush()
      os.fsync(file.fileno())

  def finish(self, size: int) -> None:
    (self._file or self._open(size)).close()
    atomic_files.replace(self._lines, self._path)

  def close(self) -> bool:
    if self._file is not None:
      self._file.close()
    return self._file is not None

  def _open(self, start: int) -> IO[bytes]:
    os.makedirs(os.path.dirname(self._lines), exist_ok=True)
    descriptor = os.open(self._lines, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
    self._file = os.fdopen(descriptor, "r+b")
    self._file.truncate(start)
    self._file.seek(start)
    return self._file


class _Objects:
  """An object for each `write` in the folder `part`, named by the number of bytes before it."""

  def __init__(self, url: str, part: str):
    self._url, self._part = url, part
    self._written = False

  def stored(self) -> int | None:
    sizes = storage.sizes(self._part)
    return sum(sizes.values()) if sizes else None

  def write(self, content: bytes, start: int) -> None:
    if not start:
      storage.remove(self._part)  # what a killed command has left
    self._written = True
    atomic_files.write_bytes(f"{self._part}/{start:016d}", content)

  def finish(self, size: int) -> None:
    done = 0
    with atomic_files.atomic_file(self._url) as stream:
      while done < size:
        done += stream.write(input_files.read_bytes(f"{self._part}/{done:016d}"))

  def close(self) -> bool:
    return self._written
