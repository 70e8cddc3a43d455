"""Reads the JSON files of evaluations, and checks that all parts have the expected types.

`results.json` has all results of an encoder. `settings.json` has what applies to all of them: the
encoder and the languages of its training data. `benchmarks/NAME.json` has the results of a
benchmark, and repeats these settings.
"""

import dataclasses
import os
from collections.abc import Mapping
from typing import Any

from vmsst import errors
from vmsst.files import atomic_files, input_files, outputs, storage, stored_settings

_DELETE_IT = "delete it to evaluate again"
_SETTINGS = "settings"
_LARGEST = 1e12


@dataclasses.dataclass(frozen=True)
class Value:
  """A value of a JSON file and its path, for error messages.

  Attributes:
    path: The file.
    fix: What to do if a part is missing or has another type.
    value: The value.
    where: Its place in the file.
  """

  path: storage.Path
  fix: str
  value: Any
  where: str = ""

  def key(self, name: str) -> "Value":
    """Returns the value of a key, which must exist."""
    if name not in self._of(dict, "an object"):
      self._refuse(f"no {(self.where + '.' + name).lstrip('.')}")
    return self._part(f".{name}", self.value[name])

  def has(self, name: str) -> bool:
    """Returns whether an object has a key."""
    return name in self._of(dict, "an object")

  def items(self) -> list[tuple[str, "Value"]]:
    """Returns the keys and values of an object."""
    parts = self._of(dict, "an object")
    for name in parts:
      self._part(".", name).text()
    return [(name, self._part(f".{name}", value)) for name, value in parts.items()]

  def elements(self) -> list["Value"]:
    """Returns the elements of a list."""
    return [self._part(f"[{n}]", x) for n, x in enumerate(self._of(list, "a list"))]

  def text(self) -> None:
    """Checks that this is a valid text."""
    text = self._of(str, "a text")
    if any("\ud800" <= letter <= "\udfff" for letter in text):
      self._wrong("valid text")

  def texts(self) -> None:
    """Checks that this is a list of texts."""
    for each in self.elements():
      each.text()

  def named_texts(self) -> None:
    """Checks that this is an object of texts."""
    for _, each in self.items():
      each.text()

  def numbers(self) -> None:
    """Checks that this is an object of finite numbers that can be averaged and drawn."""
    for _, each in self.items():
      if isinstance(each.value, bool) or not isinstance(each.value, int | float):
        each._wrong("a number")
      elif not abs(each.value) <= _LARGEST:
        each._wrong(f"a finite number of at most {_LARGEST:g}")

  def count(self) -> None:
    """Checks that this is an integer above 0."""
    if isinstance(self.value, bool) or self._of(int, "an integer") < 1:
      self._wrong("an integer above 0")

  def _part(self, step: str, value: Any) -> "Value":
    return dataclasses.replace(self, value=value, where=(self.where + step).lstrip("."))

  def _of(self, kind: type, name: str) -> Any:
    if not isinstance(self.value, kind):
      self._wrong(name)
    return self.value

  def _wrong(self, wanted: str) -> None:
    shown = input_files.shown(self.value).encode("ascii", "backslashreplace").decode()
    self._refuse(f"{self.where or 'the content'} is {shown}, not {wanted}")

  def _refuse(self, problem: str) -> None:
    raise errors.InputError(f"{self.path}: {problem}: {self.fix}")


def check_results(top: Value) -> None:
  """Checks the content of results.json.

  Older files have a text as `encoder`, and no `max_length` or `failed`.
  """
  encoder = top.key("encoder")
  if isinstance(encoder.value, dict):
    encoder.key("name").text()
    encoder.named_texts()
  else:
    encoder.text()
  if top.value.get("max_length") is not None:
    top.key("max_length").count()
  if top.value.get("seen") is not None:
    top.key("seen").texts()
  top.key("absent").named_texts()
  if top.has("failed"):
    top.key("failed").named_texts()
  for _, benchmark in top.key("benchmarks").items():
    check_benchmark(benchmark)


def check_benchmark(benchmark: Value) -> None:
  """Checks the results of one benchmark; not all have `data`, `options` and `dimensions`."""
  benchmark.key("title").text()
  benchmark.key("summary").numbers()
  benchmark.key("missing").texts()
  benchmark.key("seconds").numbers()
  for name in ("data", "options"):
    if benchmark.has(name):
      benchmark.key(name).named_texts()
  if benchmark.has("dimensions"):
    for cut in benchmark.key("dimensions").elements():
      cut.key("dimension").count()
      cut.key("summary").numbers()
  for result in benchmark.key("results").elements():
    result.key("name").text()
    result.key("languages").texts()
    result.key("metrics").numbers()


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
      before = _read(self._path("settings")).value
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
    top = _read(path)
    check_benchmark(top)
    top.key("data").key("digest").text()
    settings = top.key(_SETTINGS)
    settings.items()
    if stored_settings.differences(settings.value, self._settings):
      return None
    return {key: value for key, value in top.value.items() if key != _SETTINGS}

  def names(self) -> list[str]:
    """Returns the names of all benchmarks with stored results, sorted."""
    names = storage.names(self._benchmark("").parent)
    return sorted(name.removesuffix(".json") for name in names if name.endswith(".json"))

  def save(self, name: str, found: Mapping[str, Any]) -> None:
    """Writes the results of a benchmark; the first call also writes settings.json."""
    if not storage.exists(self._path("settings")):
      atomic_files.write_json(self._path("settings"), self._settings)
    atomic_files.write_json(self._benchmark(name), {_SETTINGS: self._settings, **found})

  def write_results(self, results: Mapping[str, Any]) -> None:
    """Writes results.json."""
    atomic_files.write_json(self._path("results"), results)

  def _path(self, name: str) -> storage.Path:
    return self._folder / f"{name}.json"

  def _benchmark(self, name: str) -> storage.Path:
    return self._folder / "benchmarks" / f"{name}.json"


def _read(path: storage.Path) -> Value:
  try:
    top = Value(path, _DELETE_IT, input_files.read_json(path))
  except errors.InputError as error:
    raise errors.InputError(f"{error}: {_DELETE_IT}") from None
  top.items()
  return top
