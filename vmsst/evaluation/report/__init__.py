"""Reports on evaluations: tables and figures, beside what the papers print.

`write_report` reads what `suite.run` and training have written, and writes the same report three
times: for people (Markdown, and one HTML page that needs nothing else) and for programs (JSON).
"""

import dataclasses
import os
import pathlib
from collections.abc import Iterable, Sequence
from typing import Any

from vmsst import errors
from vmsst.evaluation.report import content, markdown, page, reading
from vmsst.files import atomic_files


def write_report(
  folders: Iterable[str | os.PathLike[str]], output: str | os.PathLike[str]
) -> list[pathlib.Path]:
  """Writes report.md, report.json and report.html; returns their paths.

  Args:
    folders: Each holds results.json, as `suite.run` writes it, or is a training run's folder, or
      both. The encoder of the first is what the others are compared with.
    output: Folder to write to.

  Raises:
    InputError: there is no folder, one holds neither, or a file is not what it should be.
  """
  runs = reading.read_runs(folders)
  report = content.build(runs)
  texts = {"report.md": markdown.text(report), "report.html": page.text(report)}
  folder = pathlib.Path(output)
  try:
    atomic_files.write_json(folder / "report.json", _plain(report, runs))
    for name, text in texts.items():
      (folder / name).write_text(text, encoding="utf-8")
  except OSError as error:
    raise errors.InputError(f"{folder}: cannot be written to: {error.strerror}") from None
  return [folder / name for name in ("report.md", "report.json", "report.html")]


def _plain(report: content.Report, runs: Sequence[reading.Run]) -> dict[str, Any]:
  """The report without its pictures, and the results that it was made of."""
  plain = dataclasses.asdict(report)
  del plain["training"], plain["hint"]
  for section in (plain["score"], *plain["sections"]):
    del section["figures"]
  return {**plain, "results": {run.name: run.results for run in runs if run.results}}
