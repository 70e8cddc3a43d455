"""The averages of an evaluation as Markdown, for model cards."""

import os
import re

from vmsst import storage
from vmsst.evaluation import results_files


def averages(folder: str | os.PathLike[str]) -> str:
  """Returns the averages of an evaluation as a Markdown list.

  Args:
    folder: Results that `suite.evaluate` wrote.

  Raises:
    InputError: the folder has no results, or they are invalid.
  """
  results = results_files.read_results(storage.path(folder) / results_files.NAME)
  return "\n".join(
    f"- {_escaped(scored['title'])}, {_escaped(name)}: {value:.2f}"
    for scored in results["benchmarks"].values()
    for name, value in scored["summary"].items()
  )


def _escaped(text: str) -> str:
  """Escapes Markdown and HTML, on one line."""
  return re.sub(r"([\\`*_\[\]|#~$!<>&])", r"\\\1", " ".join(text.split()))
