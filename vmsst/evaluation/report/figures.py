"""The pictures of a report: what `figures` draws of results and of training."""

import importlib.util
from collections.abc import Mapping, Sequence
from typing import Any

from vmsst import errors, languages
from vmsst.evaluation import suite
from vmsst.evaluation.benchmarks import agnosticism, agnosticism_results
from vmsst.evaluation.metrics import clustering
from vmsst.evaluation.report import plots
from vmsst.evaluation.report.reading import Run

_AGNOSTICISM = {
  each.name for each in (agnosticism.BENCHMARK, agnosticism.FLORES, agnosticism.TRANSLATIONS)
}
_FEWEST = 3  # Languages that make a tree.
_MOST_PANELS = 6
# What is drawn of training, the first that are there: names, or their beginnings.
_TRAINING = ("loss", "nll/", "kl/", "active_units/", "accuracy", "token_accuracy/")


def hint() -> str:
  """How to get figures, for people; "" if they can be drawn."""
  if importlib.util.find_spec("matplotlib"):
    return ""
  return "Figures need matplotlib: pip install 'vmsst[report]', and write the report again."


def languages_and_sentences(name: str, found: Mapping[str, Mapping[str, Any]]) -> list[str]:
  """What `agnosticism` can show of a benchmark's results, given by encoder; if it is not one, none.

  For each text a heat map of the errors, a tree of the languages, and a sentence in all versions.

  Raises:
    InputError: the results are not those of every pair.
  """
  if name not in _AGNOSTICISM:
    return []
  drawn = []
  for encoder, each in found.items():
    results = [
      suite.Result(x["name"], tuple(x["languages"]), x["metrics"]) for x in each["results"]
    ]
    try:
      for matrix in agnosticism_results.matrices(results):
        drawn += _matrix(matrix, f"{encoder}, {matrix.text or each['title']}")
      for picture in agnosticism_results.pictures(results):
        title = f"{encoder}, {picture.text or each['title']}, line {picture.line}"
        drawn.append(_sentence(picture, title))
    except (KeyError, ValueError) as error:
      raise errors.InputError(
        f"{encoder}: the results of {name} are not those of every pair ({error}): run `vmsst eval` "
        "again in another folder"
      ) from None
  return drawn


def _matrix(matrix: agnosticism_results.Matrix, title: str) -> list[str]:
  if len(matrix.labels) < _FEWEST:
    return []
  tree_M4 = clustering.tree(clustering.distances(matrix.error_LL))
  order = clustering.leaf_order(tree_M4)
  families = [languages.language(code).family for code in matrix.languages]
  return [
    plots.heat_map(matrix.error_LL, matrix.labels, order=order, title=f"Errors: {title}"),
    plots.dendrogram(tree_M4, matrix.labels, families, title=f"Languages by error: {title}"),
  ]


def _sentence(picture: agnosticism_results.Picture, title: str) -> str:
  return plots.sentence_plot(
    picture.point_V2,
    picture.labels,
    share_2=picture.share_2,
    title=f"One sentence in all versions: {title}",
    groups=[languages.language(code).family for code in picture.languages],
    edges=[plots.Edge(*edge) for edge in picture.edges],
  )


def training(runs: Sequence[Run]) -> list[str]:
  """Curves of training, of all runs in one picture, and another of evaluations during it."""
  names = list(dict.fromkeys(name for run in runs for name in run.training))
  trained = [
    name
    for start in _TRAINING
    for name in names
    if name == start or (start.endswith("/") and name.startswith(start))
  ]
  evaluated = [name for name in names if ": " in name and "timing/" not in name]
  averages = [name for name in evaluated if name.endswith("average")] or evaluated
  drawn = []
  for title, chosen in (("Training", trained), ("Evaluation during training", averages)):
    panels = {
      name: [plots.Curve(run.name, *run.training[name]) for run in runs if name in run.training]
      for name in chosen[:_MOST_PANELS]
    }
    if panels:
      drawn.append(plots.training_curves(panels, title=title))
  return drawn
