"""Reads and checks the content of reports: evaluation results and training metrics."""

import dataclasses
import json
import os
from collections.abc import Iterable
from typing import Any

from vmsst import errors
from vmsst.evaluation import results_files, suite
from vmsst.files import input_files, storage, text_files

_NEITHER = "give output folders of `vmsst eval`, or MODEL_DIRs of training runs"


@dataclasses.dataclass(frozen=True)
class Run:
  """Content of one folder.

  Attributes:
    name: Name of the encoder, or of the folder; unique among runs.
    results: What `suite.evaluate` returns; None if there are no results.
    training: Steps and values by metric, of training and of evaluations during training.
  """

  name: str
  results: dict[str, Any] | None
  training: dict[str, tuple[list[int], list[float]]]


def read_runs(folders: Iterable[str | os.PathLike[str]]) -> list[Run]:
  """Reads the folders, in order; a folder that is given twice is read once.

  Raises:
    InputError: no folder is given, one has neither results nor metrics, or a file is invalid; the
      message names the file and the key.
  """
  own = {_resolved(path): path for path in map(storage.path, folders)}
  read = [(folder, _run(folder)) for folder in own.values()]
  if not read:
    raise errors.InputError(f"no folder to report on: {_NEITHER}")
  names = [run.name for _, run in read]
  return [
    run if names.count(run.name) == 1 else dataclasses.replace(run, name=f"{run.name} ({folder})")
    for folder, run in read
  ]


def _resolved(path: storage.Path) -> storage.Path:
  """Returns the absolute path without links; a URL stays."""
  return path if storage.is_url(path) else path.resolve()


def _run(folder: storage.Path) -> Run:
  with storage.explained(folder, "read"):
    if not folder.is_dir():
      problem = "not a folder" if folder.exists() else "no such folder"
      raise errors.InputError(f"{folder}: {problem}: {_NEITHER}")
  path = folder / suite.RESULTS_FILE
  results = _results(path) if storage.is_file(path) else None
  metrics = {"": folder / "train" / "metrics.jsonl"}
  metrics |= {
    f"{file.name.removesuffix('-metrics.jsonl')}: ": file
    for file in storage.find(folder / "inference_eval", "*-metrics.jsonl")
  }
  training: dict[str, tuple[list[int], list[float]]] = {}
  for prefix, file in metrics.items():
    if storage.is_file(file):
      training |= {prefix + name: curve for name, curve in _curves(file).items()}
  if results is None and not training:
    raise errors.InputError(f"{folder}: neither {path.name} nor train/metrics.jsonl: {_NEITHER}")
  name = _resolved(folder).name if results is None else results["encoder"]
  return Run(name["name"] if isinstance(name, dict) else name, results, training)


def _results(path: storage.Path) -> dict[str, Any]:
  """Reads results.json and checks that all parts have the types that `suite.evaluate` writes."""
  fix = "give a file of `vmsst eval`"
  try:
    content = input_files.parse_json("".join(text_files.read_lines(str(path))), str(path))
  except errors.InputError as error:
    raise errors.InputError(f"{error}: {fix}") from None
  results_files.check_results(results_files.Value(path, fix, content))
  return content


def _curves(path: storage.Path) -> dict[str, tuple[list[int], list[float]]]:
  """Reads steps and values of each metric from a file with one object per line; last one wins."""
  found: dict[str, dict[int, float]] = {}
  for number, line in enumerate(text_files.read_lines(str(path)), 1):
    try:
      row = json.loads(line)
      step = int(row.pop("step"))
      values = {name: float(value) for name, value in row.items()}
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, OverflowError):
      raise errors.InputError(
        f"{path}:{number}: not an object of a step and numbers: give a file of `t5x train`"
      ) from None
    for name, value in values.items():
      found.setdefault(name, {})[step] = value
  return {
    name: (sorted(values), [values[step] for step in sorted(values)])
    for name, values in found.items()
  }
