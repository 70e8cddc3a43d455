"""Reads untrusted files; refuses pipes and devices, which can hang, and invalid JSON."""

import hashlib
import json
import os
import reprlib
import stat
from typing import Any

from vmsst import errors, storage

_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = _SHORT.maxlong = 80


def check(path: str | os.PathLike[str]) -> None:
  """Raises InputError if a local path is missing or not a file but a folder, pipe or device."""
  if storage.is_url(path):
    return
  try:
    mode = os.stat(path).st_mode
  except (OSError, ValueError) as error:  # a NUL or half a surrogate pair
    raise errors.InputError(f"{path}: cannot be read: {reason(error)}") from None
  if not stat.S_ISREG(mode):
    raise errors.InputError(f"{path}: not a file; give the path of a file")


def read_bytes(path: str | os.PathLike[str], most: int = -1) -> bytes:
  """Returns the content of a file, local or in an object store.

  Args:
    path: The file.
    most: How many bytes to read at most; negative: all.

  Raises:
    InputError: it is missing, not a file, or cannot be read.
  """
  check(path)
  try:
    with storage.open_binary(path) as stream:
      return stream.read(most)
  except OSError as error:
    raise errors.InputError(f"{path}: cannot be read: {reason(error)}") from None


def sha256(path: str | os.PathLike[str]) -> str:
  """Returns the SHA-256 of a file, which may be larger than memory, in hexadecimal.

  Args:
    path: A file, local or in an object store.

  Raises:
    InputError: a local path is missing, or not a file but a folder, pipe or device; or a store
      cannot be read.
  """
  check(path)
  with storage.open_binary(path) as file:
    return hashlib.file_digest(file, "sha256").hexdigest()  # type: ignore[arg-type]


def check_sha256(path: str | os.PathLike[str], digest: str, fix: str) -> None:
  """Raises InputError unless a file can be read and, with the fix, unless it has this SHA-256."""
  if sha256(path) != digest:
    raise errors.InputError(f"{path}: damaged: it has changed since it was written: {fix}")


def read_json(path: str | os.PathLike[str]) -> Any:
  """Returns the content of a JSON file; raises InputError if it cannot be read or is not JSON."""
  return parse_json(read_bytes(path), str(path))


def parse_json(content: str | bytes, where: str) -> Any:
  """Returns parsed JSON; raises InputError, with `where`, if it is invalid."""
  try:
    return json.loads(content)
  except (ValueError, RecursionError) as error:  # also huge numbers and deep nesting
    raise errors.InputError(f"{where}: not JSON: {error}") from None


def is_text(value: Any) -> bool:
  """Returns whether a value is a string that UTF-8 can encode: without half surrogate pairs."""
  if not isinstance(value, str):
    return False
  try:
    value.encode()
  except UnicodeEncodeError:
    return False
  return True


def shown(value: Any) -> str:
  """Returns a value from a file for a message: its Python literal, shortened if long."""
  return _SHORT.repr(value)


def reason(error: Exception) -> str:
  """Returns the message of an operating system error, without the path."""
  return getattr(error, "strerror", None) or str(error)
