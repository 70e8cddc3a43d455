"""Reads untrusted files. Rejects pipes and devices, because reading from them can hang."""

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
  """Raises InputError if a local path is missing, or is a folder, pipe or device."""
  if storage.is_url(path):
    return
  try:
    mode = os.stat(path).st_mode
  # A path with NUL or a lone surrogate raises ValueError.
  except (OSError, ValueError) as error:
    raise errors.InputError(f"{path}: cannot be read: {reason(error)}") from None
  if not stat.S_ISREG(mode):
    raise errors.InputError(f"{path}: not a file; pass the path of a file")


def read_bytes(path: str | os.PathLike[str], max_bytes: int = -1) -> bytes:
  """Returns the content of a file, local or in an object store.

  Args:
    path: The file.
    max_bytes: Maximum number of bytes to read (default: all).

  Raises:
    InputError: If the file is missing, is not a regular file, or cannot be read.
  """
  check(path)
  try:
    with storage.open_binary(path) as stream:
      return stream.read(max_bytes)
  except OSError as error:
    raise errors.InputError(f"{path}: cannot be read: {reason(error)}") from None


def sha256(path: str | os.PathLike[str]) -> str:
  """Returns the SHA-256 of a file in hexadecimal. The file may be larger than memory.

  Args:
    path: A file, local or in an object store.

  Raises:
    InputError: If the file is missing, is a folder, pipe or device, or cannot be read.
  """
  check(path)
  with storage.open_binary(path) as file:
    return hashlib.file_digest(file, "sha256").hexdigest()  # type: ignore[arg-type]


def check_sha256(path: str | os.PathLike[str], digest: str, fix: str) -> None:
  """Raises InputError if a file's SHA-256 differs from `digest`. The message ends with `fix`."""
  if sha256(path) != digest:
    raise errors.InputError(f"{path} is damaged: it has changed since it was written; {fix}")


def read_json(path: str | os.PathLike[str]) -> Any:
  """Parses a JSON file; raises InputError if the file cannot be read or is not JSON."""
  return parse_json(read_bytes(path), str(path))


def parse_json(content: str | bytes, source: str) -> Any:
  """Parses JSON; raises InputError if the JSON is invalid. The message starts with `source`."""
  try:
    return json.loads(content)
  # Huge numbers and deep nesting also raise these exceptions.
  except (ValueError, RecursionError) as error:
    raise errors.InputError(f"{source}: not JSON: {error}") from None


def is_text(value: Any) -> bool:
  """Returns whether a value is a string without lone surrogates, so that UTF-8 can encode it."""
  if not isinstance(value, str):
    return False
  try:
    value.encode()
  except UnicodeEncodeError:
    return False
  return True


def shown(value: Any) -> str:
  """Formats a value as a Python literal for use in messages. Long values are shortened."""
  return _SHORT.repr(value)


def reason(error: Exception) -> str:
  """Returns an operating system error's message, without the path."""
  return getattr(error, "strerror", None) or str(error)
