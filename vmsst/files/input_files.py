"""Files from outside, read whole: what could hang, fill the memory or be no JSON is refused."""

import json
import os
import reprlib
import stat
from collections.abc import Iterator
from typing import Any

from vmsst import errors

_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = _SHORT.maxlong = 80


def check(path: str | os.PathLike[str]) -> None:
  """Raises InputError where a file is missing or is none: a folder, a pipe, a device."""
  try:
    mode = os.stat(path).st_mode
  except (OSError, ValueError) as error:  # ValueError: NUL or half of a surrogate pair in the path
    raise errors.InputError(f"{path}: cannot be read: {reason(error)}") from None
  if not stat.S_ISREG(mode):
    raise errors.InputError(f"{path} is no file but {_kind(mode)}")


def check_below(folder: str | os.PathLike[str]) -> None:
  """Raises InputError where something below a folder is neither a file nor a folder."""
  for path in _below(folder):
    check(path)


def size_below(folder: str | os.PathLike[str]) -> int:
  """Bytes in all files below a folder."""
  return sum(os.path.getsize(path) for path in _below(folder))


def check_no_pipe(path: str | os.PathLike[str]) -> None:
  """Raises InputError for a named pipe, whose reader waits for a writer that may never come.

  Those that a shell makes (`<(...)`, /dev/stdin) are let through.
  """
  try:
    is_pipe = stat.S_ISFIFO(os.stat(path).st_mode)
  except (OSError, ValueError):
    return  # Opening it says why.
  if is_pipe and not os.path.abspath(path).startswith(("/dev/", "/proc/")):
    raise errors.InputError(f"{path} is no file but {_kind(stat.S_IFIFO)}")


def read_bytes(path: str | os.PathLike[str]) -> bytes:
  """The content of a file, which may be in an object store (`gs://`).

  Raises:
    InputError: it is missing, no file, or cannot be read.
  """
  try:
    if "://" in os.fspath(path):
      from etils import epath  # Plain files do not need it.

      return epath.Path(path).read_bytes()
    check(path)
    with open(path, "rb") as stream:
      return stream.read()
  except OSError as error:
    raise errors.InputError(f"{path}: cannot be read: {reason(error)}") from None


def read_json(path: str | os.PathLike[str]) -> Any:
  """What a JSON file holds; raises InputError where it cannot be read or is not JSON.

  Half of a surrogate pair, which JSON can spell and no UTF-8 can have, is not taken for JSON.
  """
  found = parse_json(read_bytes(path), str(path))
  try:
    json.dumps(found, ensure_ascii=False).encode()
  except (UnicodeEncodeError, RecursionError) as error:
    raise errors.InputError(f"{path}: not JSON: {error}") from None
  return found


def parse_json(content: str | bytes, where: str) -> Any:
  """What JSON says; raises InputError, with `where`, if it is none."""
  try:
    return json.loads(content)
  except (ValueError, RecursionError) as error:  # numbers and nesting too
    raise errors.InputError(f"{where}: not JSON: {error}") from None


def is_text(value: Any) -> bool:
  """Whether a value is a text without halves of surrogate pairs."""
  if not isinstance(value, str):
    return False
  try:
    value.encode()
  except UnicodeEncodeError:
    return False
  return True


def shown(value: Any) -> str:
  """A value out of a file as a message can say it: as Python writes it, cut where it is long."""
  try:
    return _SHORT.repr(value)
  except ValueError:  # a whole number that is too long to be written
    return f"a {type(value).__name__} that is too long"


def reason(error: Exception) -> str:
  """What an error of the operating system says, without the path."""
  return getattr(error, "strerror", None) or str(error)


def _below(folder: str | os.PathLike[str]) -> Iterator[str]:
  for inner, _, names in os.walk(folder):
    yield from (os.path.join(inner, name) for name in names)


def _kind(mode: int) -> str:
  for is_kind, name in (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"),
  ):
    if is_kind(mode):
      return name
  return "a device"
