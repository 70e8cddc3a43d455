"""Figures of reports, drawn by matplotlib: an SVG image each, for an `img` element.

An image works alone: it contains no script or link, and nothing in it can change the page. Equal
input gives an equal image.
"""

import base64
import dataclasses
import io
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from scipy.cluster import hierarchy

from vmsst import languages
from vmsst.evaluation import suite
from vmsst.evaluation.benchmarks import agnosticism

# After the colors of Okabe and Ito (2008), which people with any color vision can distinguish.
_COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#8f6a00", "#56b4e9", "#7a0019", "#5b4ea0")
_MOST_NUMBERS = 40  # Languages of a heat map with numbers.
_STYLE: Any = {
  "axes.spines.right": False,
  "axes.spines.top": False,
  "font.size": 9,
  "legend.frameon": False,
  "svg.fonttype": "none",
  "svg.hashsalt": "vmsst",
  "text.parse_math": False,
}


@dataclasses.dataclass(frozen=True)
class Figure:
  """An image.

  Attributes:
    title: Its title.
    source: The image as a `data:` URL.
  """

  title: str
  source: str


def curves(title: str, panels: Mapping[str, Mapping[str, Mapping[int, float]]]) -> Figure:
  """Draws values by step, by run, by metric: a panel for each metric; others leave a gap."""
  runs = list(dict.fromkeys(run for of_run in panels.values() for run in of_run))

  def draw(*rows: Any) -> None:
    for axes, (metric, of_run) in zip(rows, panels.items(), strict=True):
      for run, curve in of_run.items():
        color = _COLORS[runs.index(run) % len(_COLORS)]
        axes.plot(list(curve), list(curve.values()), marker=".", color=color)
      axes.set_ylabel(metric)
      # With labels: matplotlib leaves out names that start with "_" else.
      axes.legend(axes.lines, of_run, loc="upper left", bbox_to_anchor=(1, 1))
    rows[-1].set_xlabel("training steps")

  return _drawn(title, draw, 7, 2.5 * len(panels), len(panels))


def errors(where: str, result: suite.Result) -> list[Figure]:
  """Draws the error matrix of a result of `benchmarks.agnosticism`, and a tree of its languages.

  Args:
    where: Encoder and text, for the titles.
    result: The result.
  """
  labels, error_LL = result.arrays["labels"], np.array(result.arrays["error"])
  count = len(labels)
  if count < 3:  # Two make no tree.
    return []
  tree_M4 = agnosticism.language_tree(error_LL)
  order = hierarchy.leaves_list(tree_M4)
  # The matrix and its averages; row: language of the query, column: language searched.
  error_LL = error_LL[np.ix_(order, order)]
  source_L, target_L = map(agnosticism.mean_errors, (error_LL, error_LL.T))
  shown_MM = np.full((count + 1, count + 1), source_L.mean())  # M: languages and their average.
  shown_MM[:count, :count] = np.where(np.eye(count, dtype=bool), np.nan, error_LL)
  shown_MM[:count, count], shown_MM[count, :count] = source_L, target_L
  names = [*(labels[row] for row in order), "average"]

  def draw_matrix(axes: Any) -> None:
    # Only the lighter half of the colors: numbers on them are readable.
    axes.imshow(shown_MM, cmap="Reds", vmin=0, vmax=2 * np.nanmax(shown_MM) or 1)
    axes.set_xticks(range(count + 1), names, rotation=90)
    axes.set_yticks(range(count + 1), names)
    for (row, column), value in np.ndenumerate(shown_MM):
      if count <= _MOST_NUMBERS and np.isfinite(value):
        axes.text(column, row, f"{value:.1f}", ha="center", va="center", fontsize=6)

  def draw_tree(axes: Any) -> None:
    branches = [languages.language(code).branch for code in result.languages]
    hierarchy.dendrogram(
      tree_M4,
      labels=[f"{label}, {branch}" for label, branch in zip(labels, branches, strict=True)],
      orientation="left",
      leaf_font_size=9,
      color_threshold=0,
      above_threshold_color="#555555",
      ax=axes,
    )
    axes.invert_yaxis()
    axes.set_xlabel("mean error of both directions where groups join (%)")

  side = max((0.34 if count <= _MOST_NUMBERS else 0.15) * (count + 1), 3)
  return [
    _drawn(f"Errors: {where}", draw_matrix, side, side),
    _drawn(f"Languages by error: {where}", draw_tree, 6, 0.19 * count + 0.6),
  ]


def _drawn(
  title: str, draw: Callable[..., None], width: float, height: float, rows: int = 1
) -> Figure:
  """Returns a figure of this size in inches, from a function that draws in the axes of each row."""
  import matplotlib
  from matplotlib import figure

  with matplotlib.rc_context(_STYLE), warnings.catch_warnings():
    # Browsers have the letters that the font lacks by which matplotlib measures.
    warnings.filterwarnings("ignore", message="Glyph .* missing from font")
    drawn = figure.Figure(figsize=(width, height))
    draw(*drawn.subplots(rows, squeeze=False)[:, 0])
    stream = io.BytesIO()
    drawn.savefig(stream, format="svg", bbox_inches="tight", metadata={"Date": None})
  image = base64.b64encode(stream.getvalue()).decode()
  return Figure(title, f"data:image/svg+xml;base64,{image}")
