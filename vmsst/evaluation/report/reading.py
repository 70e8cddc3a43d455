"""Reads and checks the content of reports: evaluation results and training metrics."""

import dataclasses
import json
import os
from collections.abc import Iterable
from typing import Any

from vmsst import errors, storage
from vmsst.evaluation import results_files
from vmsst.io import text_files

_NEITHER = "give output folders of `vmsst eval`, or MODEL_DIRs of training runs"

Curve = dict[int, float]
"""Values by training step, in order."""


@dataclasses.dataclass(frozen=True)
class Run:
  """Content of one folder.

  Attributes:
    name: Name of the encoder, or of the folder; unique among runs.
    results: What `suite.evaluate` returns; None if there are no results.
    training: Curves by metric, of training and of evaluations during training.
  """

  name: str
  results: dict[str, Any] | None
  training: dict[str, Curve]


def read_runs(folders: Iterable[str | os.PathLike[str]]) -> list[Run]:
  """Reads the folders, in order; a folder that is given twice is read once.

  Raises:
    InputError: no folder is given, one has neither results nor metrics, or a file is invalid; the
      message names the file and the key.
  """
  runs = {folder: _run(folder) for folder in map(storage.path, folders)}
  if not runs:
    raise errors.InputError(f"no folder to report on: {_NEITHER}")
  names = [run.name for run in runs.values()]
  return [
    run if names.count(run.name) == 1 else dataclasses.replace(run, name=f"{run.name} ({folder})")
    for folder, run in runs.items()
  ]


def _run(folder: storage.Path) -> Run:
  with storage.explained(folder, "read"):
    if not folder.is_dir():
      problem = "not a folder" if folder.exists() else "no such folder"
      raise errors.InputError(f"{folder}: {problem}: {_NEITHER}")
  path = folder / results_files.NAME
  results = results_files.read_results(path) if storage.is_file(path) else None
  metrics = {"": folder / "train" / "metrics.jsonl"}
  for file in storage.find(folder / "inference_eval", "*-metrics.jsonl"):
    metrics[f"{file.name.removesuffix('-metrics.jsonl')}: "] = file
  training = {
    prefix + metric: curve
    for prefix, file in metrics.items()
    if storage.is_file(file)
    for metric, curve in _curves(file).items()
  }
  if results is None and not training:
    raise errors.InputError(f"{folder}: neither {path.name} nor train/metrics.jsonl: {_NEITHER}")
  name = results["encoder"]["name"] if results else os.path.basename(storage.absolute(folder))
  return Run(name, results, training)


def _curves(path: storage.Path) -> dict[str, Curve]:
  """Reads the curves in a file with one object per line; of several values the last one counts."""
  curves: dict[str, Curve] = {}
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
      curves.setdefault(name, {})[step] = value
  return {name: dict(sorted(curve.items())) for name, curve in curves.items()}
