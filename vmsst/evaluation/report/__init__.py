"""Reports on evaluations: tables and figures, next to published numbers.

`write_report` reads results of `suite.evaluate` and metrics of training, and writes one report in
three formats: Markdown, a self-contained HTML page, and JSON for programs.
"""

import dataclasses
import json
import os
import re
from collections.abc import Iterable, Sequence
from typing import Any

from vmsst import errors
from vmsst.evaluation.report import content, markdown, page, reading
from vmsst.files import atomic_files, outputs, storage


def write_report(
  folders: Iterable[str | os.PathLike[str]], output: str | os.PathLike[str]
) -> list[storage.Path]:
  """Writes report.md, report.json and, last, report.html; returns their paths.

  All folders may be in object stores.

  Args:
    folders: Results that `suite.evaluate` wrote (results.json), training runs, or both in one.
      The encoder of the first is the baseline of comparisons.
    output: Output folder.

  Raises:
    InputError: no folder is given, one has neither results nor training metrics, a file is
      invalid, or `output` is one of the folders or cannot be written.
  """
  folders = list(folders)
  folder = storage.path(output)
  paths = [folder / name for name in ("report.md", "report.json", "report.html")]
  given = [os.fspath(each) for each in folders]
  outputs.check(given, folder=str(folder), files=[path.name for path in paths])
  runs = reading.read_runs(folders)
  report = content.build(runs)
  texts = (
    markdown.text(report),
    json.dumps(_plain(report, runs), indent=1, ensure_ascii=False),
    page.text(report),
  )
  try:
    for path, text in zip(paths, texts, strict=True):
      atomic_files.write_text(path, text)
  except OSError as error:
    raise errors.InputError(f"{folder}: cannot be written: {error.strerror}") from None
  return paths


def summary(folder: str | os.PathLike[str], name: str, *, level: int = 1) -> str:
  """Returns the averages of an evaluation, next to published numbers, as Markdown.

  Args:
    folder: Results that `suite.evaluate` wrote.
    name: Name of the encoder in the tables.
    level: Level of the title.

  Raises:
    InputError: the folder has no results, or they are invalid.
  """
  (run,) = reading.read_runs([folder])
  if run.results is None:
    raise errors.InputError(f"{folder}: no results.json; give an output folder of `vmsst eval`")
  report = content.build([dataclasses.replace(run, name=name, training={})], draw=False)
  text = markdown.text(content.without_single_results(report)).strip()
  return re.sub(r"(?m)^#", "#" * level, text)


def _plain(report: content.Report, runs: Sequence[reading.Run]) -> dict[str, Any]:
  """Returns the report without figures, for JSON, and the results it is based on."""
  plain = dataclasses.asdict(report)
  del plain["training"], plain["hint"]
  for section in (plain["overview"], plain["score"], *plain["sections"]):
    del section["figures"]
  return {**plain, "results": {run.name: run.results for run in runs if run.results}}
