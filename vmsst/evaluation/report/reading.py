"""What a report is made of: results of evaluations and metrics of training, read and checked."""

import dataclasses
import json
import os
import pathlib
import sys
from collections.abc import Iterable
from typing import Any

from vmsst import errors
from vmsst.evaluation import suite
from vmsst.files import input_files, text_files

_NEITHER = "give folders that `vmsst eval --out` has written, or MODEL_DIRs of training runs"


@dataclasses.dataclass(frozen=True)
class Run:
  """What one folder holds.

  Attributes:
    name: The encoder's name, or the folder's; no two runs have one name.
    results: As `suite.run` gives them; None if there are none.
    training: Steps and values of each metric of training and of evaluations during training, by
      name.
  """

  name: str
  results: dict[str, Any] | None
  training: dict[str, tuple[list[int], list[float]]]


def read_runs(folders: Iterable[str | os.PathLike[str]]) -> list[Run]:
  """What the folders hold, in their order.

  Raises:
    InputError: there is no folder, one has neither results nor metrics, or a file is not what it
      should be; the message names the file and the key.
  """
  read = [(pathlib.Path(folder), _run(pathlib.Path(folder))) for folder in folders]
  if not read:
    raise errors.InputError(f"no folder to report on: {_NEITHER}")
  names = [run.name for _, run in read]
  return [
    run if names.count(run.name) == 1 else dataclasses.replace(run, name=f"{run.name} ({folder})")
    for folder, run in read
  ]


def _run(folder: pathlib.Path) -> Run:
  path = folder / suite.RESULTS_FILE
  results = _results(path) if path.is_file() else None
  metrics = {"": folder / "train" / "metrics.jsonl"}
  metrics |= {
    f"{file.name.removesuffix('-metrics.jsonl')}: ": file
    for file in sorted((folder / "inference_eval").glob("*-metrics.jsonl"))
  }
  training: dict[str, tuple[list[int], list[float]]] = {}
  for prefix, file in metrics.items():
    if file.is_file():
      training |= {prefix + name: curve for name, curve in _curves(file).items()}
  if results is None and not training:
    raise errors.InputError(f"{folder}: neither {path.name} nor train/metrics.jsonl: {_NEITHER}")
  return Run(folder.resolve().name if results is None else results["encoder"], results, training)


def _results(path: pathlib.Path) -> dict[str, Any]:
  """The content of results.json, every part of which is of the kind that `suite.run` gives."""
  content = input_files.parse_json("".join(text_files.read_lines(str(path))), str(path))
  top = _Value(path, "", content)
  top.key("encoder").text()
  if content.get("seen") is not None:
    top.key("seen").texts()
  for _, reason in top.key("absent").items():
    reason.text()
  for _, benchmark in top.key("benchmarks").items():
    benchmark.key("title").text()
    benchmark.key("summary").numbers()
    benchmark.key("missing").texts()
    benchmark.key("seconds").numbers()
    for result in benchmark.key("results").elements():
      result.key("name").text()
      result.key("languages").texts()
      result.key("metrics").numbers()
  return content


@dataclasses.dataclass(frozen=True)
class _Value:
  """A value of a JSON file and where it is, for errors."""

  path: pathlib.Path
  where: str
  value: Any

  def key(self, name: str) -> "_Value":
    if name not in self._of(dict, "an object"):
      raise errors.InputError(
        f"{self.path}: no {(self.where + '.' + name).lstrip('.')}: it is no file of `vmsst eval`"
      )
    return self._part(f".{name}", self.value[name])

  def items(self) -> list[tuple[str, "_Value"]]:
    parts = self._of(dict, "an object")
    for name in parts:
      self._part(".", name).text()
    return [(name, self._part(f".{name}", value)) for name, value in parts.items()]

  def elements(self) -> list["_Value"]:
    return [self._part(f"[{n}]", x) for n, x in enumerate(self._of(list, "a list"))]

  def text(self) -> None:
    text = self._of(str, "a text")
    if any("\ud800" <= letter <= "\udfff" for letter in text):
      self._wrong("a text of whole characters")

  def texts(self) -> None:
    for each in self.elements():
      each.text()

  def numbers(self) -> None:
    for _, each in self.items():
      if isinstance(each.value, bool) or not isinstance(each.value, int | float):
        each._wrong("a number")
      elif not abs(each.value) <= sys.float_info.max:
        each._wrong("a finite number")

  def _part(self, step: str, value: Any) -> "_Value":
    return _Value(self.path, (self.where + step).lstrip("."), value)

  def _of(self, kind: type, name: str) -> Any:
    if not isinstance(self.value, kind):
      self._wrong(name)
    return self.value

  def _wrong(self, wanted: str) -> None:
    shown = input_files.shown(self.value).encode("ascii", "backslashreplace").decode()
    raise errors.InputError(
      f"{self.path}: {self.where or 'the whole'} is {shown}, not {wanted}: run `vmsst eval` again"
    )


def _curves(path: pathlib.Path) -> dict[str, tuple[list[int], list[float]]]:
  """Steps and values of each metric of a file with an object a line; the last of a step counts."""
  found: dict[str, dict[int, float]] = {}
  for number, line in enumerate(text_files.read_lines(str(path)), 1):
    try:
      row = json.loads(line)
      step = int(row.pop("step"))
      values = {name: float(value) for name, value in row.items()}
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, OverflowError):
      raise errors.InputError(
        f"{path}:{number}: not an object of a step and numbers: it is no file of `t5x train`"
      ) from None
    for name, value in values.items():
      found.setdefault(name, {})[step] = value
  return {
    name: (sorted(values), [values[step] for step in sorted(values)])
    for name, values in found.items()
  }
