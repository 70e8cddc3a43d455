"""Reads the JSON files of evaluations, and checks that all parts have the expected types.

`results.json` has all results of an encoder. `settings.json` has what applies to all of them: the
encoder and the languages of its training data. `benchmarks/NAME.json` has the results of a
benchmark, and repeats these settings. Digests of the files of benchmarks are among the settings, so
that results of other data are recognized.
"""

import hashlib
import os
import pathlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from vmsst import errors
from vmsst.io import (
  atomic_files,
  checksums,
  input_files,
  outputs,
  storage,
  stored_settings,
)

_DELETE_IT = "delete it to evaluate again"
_SETTINGS = "settings"
_LARGEST = 1e12

# The types of the JSON files. Leaves have a description and a test. Objects have their keys, with
# "?" if they may be missing or null; "*" is for all keys.
_TEXT = ("a text", input_files.is_text)
_COUNT = ("an integer above 0", lambda value: type(value) is int and value > 0)
_NUMBER = (
  f"a finite number of at most {_LARGEST:g}",
  lambda value: type(value) in (int, float) and abs(value) <= _LARGEST,
)
_NUMBERS, _TEXTS = {"*": _NUMBER}, {"*": _TEXT}
_BENCHMARK = {
  "title": _TEXT,
  "summary": _NUMBERS,
  "missing": [_TEXT],
  "seconds": _NUMBERS,
  "data": {"digest": _TEXT, "*": _TEXT},
  "options": _TEXTS,
  "dimensions?": [{"dimension": _COUNT, "summary": _NUMBERS}],
  "results": [{"name": _TEXT, "languages": [_TEXT], "metrics": _NUMBERS}],
}
_RESULTS = {
  "encoder": {"name": _TEXT, "*": _TEXT},
  "max_length?": _COUNT,
  "seen?": [_TEXT],
  "absent": _TEXTS,
  "failed": _TEXTS,
  "benchmarks": {"*": _BENCHMARK},
}


def read_results(path: storage.Path) -> dict[str, Any]:
  """Returns the content of results.json; raises InputError if it is not by `vmsst eval`."""
  return _read(path, _RESULTS, "give a file of `vmsst eval`")


def _read(path: storage.Path, kind: Mapping[str, Any], fix: str) -> dict[str, Any]:
  """Returns the object in a JSON file; raises InputError with the fix if it is of another type."""
  try:
    content: dict[str, Any] = input_files.read_json(path)
  except errors.InputError as error:
    raise errors.InputError(f"{error}: {fix}") from None
  if fault := _fault(content, kind):
    raise errors.InputError(f"{path}: {fault}: {fix}")
  return content


def _fault(value: Any, kind: Any, where: str = "") -> str | None:
  """Returns what the first part that is missing or of another type is; None if there is none."""
  if isinstance(kind, tuple):
    wanted, right = kind[0], kind[1](value)
  else:
    wanted = "an object" if isinstance(kind, dict) else "a list"
    right = isinstance(value, type(kind))
  if not right:
    shown = input_files.shown(value).encode("ascii", "backslashreplace").decode()
    return f"{where or 'the content'} is {shown}, not {wanted}"
  if isinstance(kind, list):
    parts = [(item, kind[0], f"{where}[{index}]") for index, item in enumerate(value)]
  elif isinstance(kind, dict):
    names = {key: value if key == "*" else [key.removesuffix("?")] for key in kind}
    parts = [
      (value.get(name), kind_of_value, f"{where}.{name}".lstrip("."))
      for key, kind_of_value in kind.items()
      for name in names[key]
      if not key.endswith("?") or value.get(name) is not None
    ]
  else:
    parts = []
  return next((fault for part in parts if (fault := _fault(*part))), None)


class Folder:
  """The results of one encoder in the output folder of an evaluation.

  Nothing is written before the first result.
  """

  def __init__(self, folder: str | os.PathLike[str], settings: Mapping[str, Any]):
    """Opens a folder, which may not exist yet.

    Args:
      folder: The folder, local or in an object store.
      settings: Encoder and options of all results, as JSON values.

    Raises:
      InputError: the folder cannot be written, or its results have other settings.
    """
    self._folder = storage.path(folder)
    self._settings = dict(settings)
    if storage.is_url(folder):
      storage.check_writable(os.fspath(folder))
    outputs.check([], folder=str(self._folder), files=[self._path("results").name])
    outputs.check([], folder=str(self._benchmark("").parent))
    if storage.exists(self._path("settings")):
      before = _read(self._path("settings"), {}, _DELETE_IT)
      if differences := stored_settings.differences(before, self._settings):
        raise errors.InputError(
          f"{self._folder} has other results: {differences}; give another folder, or delete it"
        )
    elif storage.exists(self._path("results")) and not self.names():
      raise errors.InputError(
        f"{self._path('results')} is not by `vmsst eval`, which would replace it; give another "
        "folder"
      )

  def load(self, name: str) -> dict[str, Any] | None:
    """Returns the stored results of a benchmark; None if there are none with these settings.

    Raises:
      InputError: the file is broken.
    """
    path = self._benchmark(name)
    if not storage.exists(path):
      return None
    record = _read(path, {**_BENCHMARK, _SETTINGS: {}}, _DELETE_IT)
    differences = stored_settings.differences(record.pop(_SETTINGS), self._settings)
    return None if differences else record

  def names(self) -> list[str]:
    """Returns the names of all benchmarks with stored results, sorted."""
    names = storage.names(self._benchmark("").parent)
    return sorted(name.removesuffix(".json") for name in names if name.endswith(".json"))

  def save(self, name: str, record: Mapping[str, Any]) -> None:
    """Writes the results of a benchmark; the first call also writes settings.json."""
    if not storage.exists(self._path("settings")):
      atomic_files.write_json(self._path("settings"), self._settings)
    atomic_files.write_json(self._benchmark(name), {_SETTINGS: self._settings, **record})

  def write_results(self, results: Mapping[str, Any]) -> None:
    """Writes results.json."""
    atomic_files.write_json(self._path("results"), results)

  def _path(self, name: str) -> storage.Path:
    return self._folder / f"{name}.json"

  def _benchmark(self, name: str) -> storage.Path:
    return self._folder / "benchmarks" / f"{name}.json"


def data_identity(
  root: storage.Path,
  folders: Iterable[str],
  patterns: Iterable[str] = (),
  *,
  leave_out: str | os.PathLike[str],
) -> dict[str, str]:
  """Returns what identifies files, for JSON: the `name` of the root and a `digest`.

  The digest is a SHA-256 of the names and contents of all files. Hidden files do not count.

  Args:
    root: The data root.
    folders: Folders under the root, with all files at any depth.
    patterns: Glob patterns under the root, of further files.
    leave_out: A folder that does not count even if it is below the root.
  """
  below = _objects_below if storage.is_url(root) else _local_files_below
  paths = {path for name in folders for path in below(root / name, leave_out)}
  paths |= {
    path for pattern in patterns for path in storage.find(root, pattern) if storage.is_file(path)
  }
  total = hashlib.sha256()
  for path in sorted(paths):
    total.update(f"{checksums.of_file(path)}  {path.relative_to(root)}\n".encode())
  return {"name": storage.absolute(root), "digest": total.hexdigest()}


def _objects_below(
  folder: storage.Path, leave_out: str | os.PathLike[str]
) -> Iterator[storage.Path]:
  left_out = storage.path(leave_out)
  is_inside = folder in left_out.parents
  for name in storage.files_below(folder):
    path = folder / name
    hidden = any(part.startswith(".") for part in name.split("/"))
    if not hidden and not (is_inside and left_out in path.parents):
      yield path


def _local_files_below(
  folder: storage.Path, leave_out: str | os.PathLike[str]
) -> Iterator[pathlib.Path]:
  """Follows links to folders, each folder once."""
  seen = {os.path.realpath(leave_out)}
  for where, folders, names in os.walk(folder, followlinks=True):
    seen.add(os.path.realpath(where))
    folders[:] = [
      name
      for name in folders
      if not name.startswith(".") and os.path.realpath(os.path.join(where, name)) not in seen
    ]
    for name in names:
      path = pathlib.Path(where, name)
      if not name.startswith(".") and path.is_file():
        yield path
