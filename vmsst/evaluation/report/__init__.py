"""Reports on evaluations: one HTML page of tables and figures, next to published numbers."""

import importlib
import os
import pathlib
import re
from collections.abc import Iterable

from vmsst import errors, storage
from vmsst.evaluation.report import content, reading
from vmsst.jobs import atomic_files, outputs


def write_report(
  folders: Iterable[str | os.PathLike[str]], output: str | os.PathLike[str]
) -> storage.Path:
  """Writes the page report.html, which needs no other file; returns its path.

  All folders may be in object stores.

  Args:
    folders: Results that `suite.evaluate` wrote (results.json), training runs, or both in one.
    output: Output folder.

  Raises:
    InputError: no folder is given, one has neither results nor training metrics, a file is
      invalid, `output` is one of the folders or cannot be written, or the extra `report` is not
      installed.
  """
  with errors.requires("report", "a report"):
    import jinja2

    importlib.import_module("matplotlib")
  folders = list(folders)
  folder = storage.path(output)
  path = folder / "report.html"
  outputs.check(
    [os.fspath(folder_of_run) for folder_of_run in folders], folder=str(folder), files=[path.name]
  )
  runs = reading.read_runs(folders)
  environment = jinja2.Environment(
    loader=jinja2.FileSystemLoader(pathlib.Path(__file__).parent),
    autoescape=True,
    trim_blocks=True,
    undefined=jinja2.StrictUndefined,
  )
  text = environment.get_template("page.html.j2").render(
    encoders={run.name: run.results for run in runs if run.results is not None},
    sections=content.sections(runs),
  )
  atomic_files.write_text(path, text)
  return path


def summary(folder: str | os.PathLike[str]) -> str:
  """Returns the averages of an evaluation as a Markdown list.

  Args:
    folder: Results that `suite.evaluate` wrote.

  Raises:
    InputError: the folder has no results, or they are invalid.
  """
  (run,) = reading.read_runs([folder])
  if run.results is None:
    raise errors.InputError(f"{folder}: no results.json; give an output folder of `vmsst eval`")
  return "\n".join(
    f"- {_escaped(scored['title'])}, {_escaped(name)}: {value:.2f}"
    for scored in run.results["benchmarks"].values()
    for name, value in scored["summary"].items()
  )


def _escaped(text: str) -> str:
  """Escapes Markdown and HTML, on one line."""
  return re.sub(r"([\\`*_\[\]|#~$!<>&])", r"\\\1", " ".join(text.split()))
