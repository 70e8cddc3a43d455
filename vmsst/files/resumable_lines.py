"""A file of lines that is written in parts, and resumed after interruption."""

import functools
import json
import os
from collections.abc import Iterable, Mapping
from typing import IO, Any, Protocol

from vmsst import errors
from vmsst.files import atomic_files, input_files, storage, stored_settings


class LineWriter:
  """Writes lines into `FILE.part`, which becomes FILE when it is complete.

  `FILE.part.json` is the state to resume from. In an object store, `FILE.part` is a folder with an
  object for each `append`, and FILE is written at the end. Nothing is written before the first
  `append`. Devices, pipes and standard streams are written directly, without a state.

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
    self._part: str | None = None  # None: there is no state.
    if storage.is_url(path):
      self._part = f"{os.fspath(path)}{atomic_files.PARTIAL}"
      self._target = _Objects(os.fspath(path), self._part)
    elif atomic_files.is_stream(path):
      self._target = _Stream(path)
    else:
      target = atomic_files.link_target(path)
      self._part = f"{target}{atomic_files.PARTIAL}"
      self._target = _File(target, self._part)
    self.done, self._size = (0, 0) if self._part is None else self._load(self._part)

  def append(self, lines: Iterable[str]) -> None:
    """Appends lines, which are then on disk or in the store."""
    lines = list(lines)
    content = "".join(f"{line}\n" for line in lines).encode()
    self._target.write(content, self._size)
    self.done += len(lines)
    self._size += len(content)
    if self._part is not None:
      state = {"settings": self._settings, "done": self.done, "bytes": self._size}
      atomic_files.write_json(f"{self._part}.json", state)

  def finish(self) -> None:
    """Makes FILE of the lines."""
    self._target.finish(self._size)
    if self._part is not None:
      storage.remove(f"{self._part}.json")
      storage.remove(self._part)  # It is left in an object store.

  def close(self) -> None:
    """Closes the file, which another writer can resume."""
    if self._target.close() and self._part is not None and not self.done:
      storage.remove(self._part)  # The first lines were not written.

  def _load(self, part: str) -> tuple[int, int]:
    """Returns the numbers of lines and bytes to resume from."""
    state_path = f"{part}.json"
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
        f"{part}: this incomplete file of an earlier command {problem}; delete it and "
        f"{os.path.basename(state_path)}, or write to another file"
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
  def __init__(self, path: str, part: str):
    self._path, self._part = path, part
    self._file: IO[bytes] | None = None

  def stored(self) -> int | None:
    return os.path.getsize(self._part) if os.path.exists(self._part) else None

  def write(self, content: bytes, start: int) -> None:
    with atomic_files.naming(self._path):
      file = self._file or self._open(start)
      file.write(content)
      file.flush()
      os.fsync(file.fileno())

  def finish(self, size: int) -> None:
    (self._file or self._open(size)).close()
    os.replace(self._part, self._path)

  def close(self) -> bool:
    if self._file is not None:
      self._file.close()
    return self._file is not None

  def _open(self, start: int) -> IO[bytes]:
    os.makedirs(os.path.dirname(os.path.abspath(self._path)), exist_ok=True)
    self._file = open(self._part, "r+b" if start else "wb")  # noqa: SIM115 - closed by close
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
