"""Figures of a report: which results and training metrics are plotted, and how they are titled."""

import importlib.util
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from vmsst import languages
from vmsst.evaluation import suite
from vmsst.evaluation.benchmarks import agnosticism, agnosticism_results
from vmsst.evaluation.metrics import clustering
from vmsst.evaluation.report import agnosticism_tables, dimensions, overview, plots
from vmsst.evaluation.report.reading import Run

_MIN_LANGUAGES = 3  # Fewer make no tree.
_MAX_PANELS = 6
_LABEL = 40  # Letters per line of a label.
# Training metrics to plot, by name or prefix, as long as there are panels.
_TRAINING = ("loss", "nll/", "kl/", "mutual_information/", "accuracy", "token_accuracy/")


def hint() -> str:
  """Returns how to get figures, for people; "" if they can be plotted."""
  if importlib.util.find_spec("matplotlib"):
    return ""
  return "Figures need matplotlib: pip install 'vmsst[report]', then write the report again."


def comparison(measured: Sequence[overview.Measurement], encoders: Sequence[str]) -> str:
  """Plots averages of encoders next to the published ones."""
  scores = []
  for each in measured:
    lines = [*textwrap.wrap(each.title, _LABEL), each.key]
    systems = len({number.system for number in each.numbers})
    scores.append(
      plots.Scores(
        label="\n".join([*lines, "(lower is better)"] if each.lower_is_better else lines),
        own=[cell.value for cell in each.own],
        marks=["†" * cell.incomplete for cell in each.own],
        published=[number.value for number in each.numbers],
        best=each.best.value,
        remark=f"{each.best.system}, {f'best of {systems} ' * (systems > 1)}published",
      )
    )
  title = "Main averages next to published ones, a mark for each"
  return plots.comparison(scores, encoders, title=title)


def by_dimensions(title: str, found: Mapping[str, Mapping[str, Any]]) -> list[str]:
  """Plots a benchmark's first average by number of dimensions; none if only whole vectors count."""
  key, values = dimensions.curves(found)
  curves = [plots.Curve(encoder, list(each), [*each.values()]) for encoder, each in values.items()]
  if not curves:
    return []
  return [plots.dimension_curves({key: curves}, title=f"Number of dimensions: {title}")]


def languages_and_sentences(name: str, found: Mapping[str, Mapping[str, Any]]) -> list[str]:
  """Plots a benchmark's results, given by encoder; none if it is not one of `agnosticism`.

  For each text: a heat map of the errors, a tree of the languages, a sentence in all versions.

  Raises:
    InputError: the results are not those of every pair.
  """
  if name not in agnosticism.NAMES:
    return []
  plotted = []
  for encoder, each in found.items():
    results = suite.results_of(each)
    with agnosticism_tables.every_pair(name, encoder):
      for matrix in agnosticism_results.matrices(results):
        plotted += _matrix_plots(matrix, f"{encoder}, {matrix.text or each['title']}")
      for sentence in agnosticism_results.sentence_figures(results):
        title = f"{encoder}, {sentence.text or each['title']}, line {sentence.line}"
        plotted.append(_sentence_plot(sentence, title))
  return plotted


def _matrix_plots(matrix: agnosticism_results.Matrix, title: str) -> list[str]:
  if len(matrix.labels) < _MIN_LANGUAGES:
    return []
  tree_M4 = clustering.tree(clustering.distances(matrix.error_LL))
  order = clustering.leaf_order(tree_M4)
  branches = [languages.language(code).branch for code in matrix.languages]
  return [
    plots.heat_map(matrix.error_LL, matrix.labels, order=order, title=f"Errors: {title}"),
    plots.dendrogram(tree_M4, matrix.labels, branches, title=f"Languages by error: {title}"),
  ]


def _sentence_plot(sentence: agnosticism_results.SentenceFigure, title: str) -> str:
  return plots.sentence_plot(
    sentence.point_V2,
    sentence.labels,
    share_2=sentence.share_2,
    title=f"One sentence in all versions: {title}",
    groups=[languages.language(code).branch for code in sentence.languages],
    edges=[plots.Edge(*edge) for edge in sentence.edges],
  )


def training(runs: Sequence[Run]) -> list[str]:
  """Plots the training curves of all runs in one figure, and evaluations during it in another."""
  names = list(dict.fromkeys(name for run in runs for name in run.training))
  trained = [
    name
    for start in _TRAINING
    for name in names
    if name == start or (start.endswith("/") and name.startswith(start))
  ]
  evaluated = [name for name in names if ": " in name and "timing/" not in name]
  averages = [name for name in evaluated if name.endswith("average")] or evaluated
  plotted = []
  for title, chosen in (("Training", trained), ("Evaluation during training", averages)):
    panels = {
      name: [plots.Curve(run.name, *run.training[name]) for run in runs if name in run.training]
      for name in chosen[:_MAX_PANELS]
    }
    if panels:
      plotted.append(plots.training_curves(panels, title=title))
  return plotted
