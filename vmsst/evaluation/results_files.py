"""Reads the JSON files of evaluations, and checks that all parts have the expected types.

`results.json` has all results of an encoder. `benchmarks/NAME.json` has the results of a benchmark,
the settings that apply to all of them (the encoder and the languages of its training data), and a
digest of its own content. Digests of the files of benchmarks are among the results, so that results
of other data are recognized.
"""

import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from vmsst import errors, storage
from vmsst.io import checksums, input_files, stored_settings
from vmsst.jobs import atomic_files, base, outputs

_DELETE_IT = "delete it to evaluate again"
_SETTINGS, _CONTENT = "settings", "content"
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

  Attributes:
    stored: Results of an earlier evaluation, by benchmark.
  """

  def __init__(self, folder: str | os.PathLike[str], settings: Mapping[str, Any]):
    """Opens a folder, which may not exist yet.

    Args:
      folder: The folder, local or in an object store.
      settings: Encoder and options of all results, as JSON values.

    Raises:
      InputError: the folder cannot be written, or its results are damaged or have other settings.
    """
    self._results = storage.path(folder) / "results.json"
    self._folder = storage.path(folder) / "benchmarks"
    self._settings = dict(settings)
    if storage.is_url(folder):
      storage.check_writable(os.fspath(folder))
    outputs.check([], folder=os.fspath(folder), files=[self._results.name])
    outputs.check([], folder=str(self._folder))
    self.stored = {}
    for path in storage.find(self._folder, "*.json"):
      record = _read(path, {**_BENCHMARK, _SETTINGS: {}}, _DELETE_IT)
      if differences := stored_settings.differences(record.pop(_SETTINGS), self._settings):
        raise errors.InputError(
          f"{os.fspath(folder)} has other results: {differences}; give another folder, or delete it"
        )
      content = record.pop(_CONTENT, None)  # Earlier versions did not store it.
      if content not in (None, base.digest(path.name, {**record, "seconds": None})):
        raise errors.InputError(f"{path}: it has changed since it was written: {_DELETE_IT}")
      self.stored[path.name.removesuffix(".json")] = record
    if storage.exists(self._results) and not self.stored:
      _read(self._results, _RESULTS, "`vmsst eval` would replace it; give another folder")

  def save(self, name: str, record: Mapping[str, Any]) -> None:
    """Writes the results of a benchmark."""
    path = self._folder / f"{name}.json"
    # Without its times: the same results have the same digest.
    content = base.digest(path.name, {**record, "seconds": None})
    atomic_files.write_json(path, {_SETTINGS: self._settings, _CONTENT: content, **record})

  def write_results(self, results: Mapping[str, Any]) -> None:
    """Writes results.json."""
    atomic_files.write_json(self._results, results)


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
  paths = {path for name in folders for path in _files_below(root / name, leave_out)}
  paths |= {
    path for pattern in patterns for path in storage.find(root, pattern) if storage.is_file(path)
  }
  total = hashlib.sha256()
  for path in sorted(paths):
    total.update(f"{checksums.of_file(path)}  {path.relative_to(root)}\n".encode())
  return {"name": storage.absolute(root), "digest": total.hexdigest()}


def _files_below(folder: storage.Path, leave_out: str | os.PathLike[str]) -> Iterator[storage.Path]:
  """Yields the visible files below a folder, also through links.

  Leaves out the files below `leave_out`, unless the folder itself is below it.
  """
  left_out = _real(leave_out)
  inside = left_out not in (_real(folder), *_real(folder).parents)
  for path in map(storage.path, storage.files_through_links(folder)):
    hidden = any(part.startswith(".") for part in path.relative_to(folder).parts)
    is_file = storage.is_url(path) or path.is_file()  # a pipe or a broken link
    if is_file and not hidden and not (inside and left_out in _real(path).parents):
      yield path


def _real(path: str | os.PathLike[str]) -> storage.Path:
  return storage.path(path if storage.is_url(path) else os.path.realpath(path))
