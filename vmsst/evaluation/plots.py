"""Plots of sentences and their vectors, as figures of matplotlib (`pip install 'vmsst[report]'`).

    vmsst.plots.similarity(["How are you?", "Wie geht's?", "It rains."], encoder=encoder)
    vmsst.plots.languages(encoder.encode(texts), codes).savefig("languages.png")

With `%matplotlib inline`, a notebook shows the figure that a cell returns. Reports have images, of
class `Image`.
"""

import base64
import dataclasses
import io
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from vmsst import errors
from vmsst import languages as languages_lib
from vmsst.evaluation import suite
from vmsst.evaluation.benchmarks import agnosticism
from vmsst.search import exact_search

_MOST_COSINES = 20  # Sentences of a side whose cosines are printed.
_LONGEST = 40  # Characters of a sentence in a label.
_MOST_NUMBERS = 40  # Languages of a heat map with numbers.
_STYLE: Any = {
  "axes.spines.right": False,
  "axes.spines.top": False,
  "font.size": 9,
  "svg.fonttype": "none",
  "svg.hashsalt": "vmsst",
  "text.parse_math": False,
}


def similarity(
  sentences: Sequence[str], others: Sequence[str] | None = None, *, encoder: Any, **options: Any
) -> Any:
  """Returns a heat map of the cosines of sentences with others.

  Args:
    sentences: Sentences, in rows.
    others: Sentences, in columns; None: the same.
    encoder: An object with `encode(texts)`, as `vmsst.load` returns it.
    **options: Further options of `encode`, such as `prompt_name`.

  Raises:
    InputError: matplotlib is not installed.
  """
  others = sentences if others is None else others
  first_ND, second_MD = (
    exact_search.unit_rows(np.asarray(encoder.encode(list(side), **options)))
    for side in (sentences, others)
  )
  cosine_NM = first_ND @ second_MD.T
  rows, columns = (
    [text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…" for text in side]
    for side in (sentences, others)
  )
  # In inches: the cells, and room for the labels.
  width = 0.6 * len(columns) + 0.08 * max(map(len, rows)) + 1.5
  height = 0.4 * len(rows) + 0.06 * max(map(len, columns)) + 0.3
  drawn = _figure((width, height))
  axes = drawn.subplots()
  lowest = min(0.0, float(cosine_NM.min()))
  image = axes.imshow(cosine_NM, cmap="viridis", vmin=lowest, vmax=1, aspect="auto")
  drawn.colorbar(image, label="cosine")
  axes.set_xticks(range(len(columns)), columns, rotation=45, ha="right", parse_math=False)
  axes.set_yticks(range(len(rows)), rows, parse_math=False)
  if max(cosine_NM.shape) <= _MOST_COSINES:
    for (row, column), value in np.ndenumerate(cosine_NM):
      color = "black" if image.norm(value) > 0.6 else "white"
      axes.text(column, row, f"{value:.2f}", ha="center", va="center", color=color)
  return drawn


def languages(vectors: Any, labels: Sequence[str]) -> Any:
  """Returns a map of vectors in the plane of their two principal components.

  If the encoder is language-agnostic, translations are close together; otherwise, each language
  forms a region of its own.

  Args:
    vectors: Sentence vectors [N, D]; they are scaled to length 1.
    labels: The language of each, or another label.

  Raises:
    InputError: there are not as many labels as vectors, or matplotlib is not installed.
  """
  vector_ND = exact_search.unit_rows(np.asarray(vectors))
  if len(labels) != len(vector_ND):
    raise errors.InputError(
      f"{len(vector_ND)} vectors have {len(labels)} labels; give one for each"
    )
  centered_ND = vector_ND - vector_ND.mean(axis=0)
  _, _, component_DD = np.linalg.svd(centered_ND, full_matrices=False)
  point_N2 = centered_ND @ component_DD[:2].T
  drawn = _figure((6, 5))
  axes = drawn.subplots()
  names = list(dict.fromkeys(labels))
  for number, name in enumerate(names):
    rows = [i for i, label in enumerate(labels) if label == name]
    color = np.full(len(rows), number / max(1, len(names) - 1))
    axes.scatter(*point_N2[rows].T, s=12, c=color, vmin=0, vmax=1, cmap="turbo", label=name)
  axes.set(xlabel="first principal component", ylabel="second principal component")
  legend = axes.legend(loc="upper left", bbox_to_anchor=(1, 1), ncols=1 + len(names) // 20)
  for text in legend.get_texts():
    text.set_parse_math(False)
  return drawn


def _figure(size: tuple[float, float]) -> Any:
  with errors.requires("report", "a plot"):
    from matplotlib import figure
  return figure.Figure(figsize=size, layout="constrained")


@dataclasses.dataclass(frozen=True)
class Image:
  """An SVG image for an `img` element.

  It works alone: it contains no script or link, and nothing in it can change the page. Equal input
  gives an equal image.

  Attributes:
    title: Its title.
    source: The image as a `data:` URL.
  """

  title: str
  source: str


def error_figures(where: str, result: suite.Result) -> list[Image]:
  """Draws the error matrix of a result of `benchmarks.agnosticism`, and a tree of its languages.

  Args:
    where: Encoder and text, for the titles.
    result: The result.
  """
  labels, error_LL = result.arrays["labels"], np.array(result.arrays["error"])
  count = len(labels)
  if count < 3:  # Two make no tree.
    return []
  from scipy.cluster import hierarchy  # Here: it takes a second.

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
    branches = [languages_lib.language(code).branch for code in result.languages]
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


def _drawn(title: str, draw: Callable[[Any], None], width: float, height: float) -> Image:
  """Returns an image of this size in inches, from a function that draws in its axes."""
  import matplotlib
  from matplotlib import figure

  with matplotlib.rc_context(_STYLE), warnings.catch_warnings():
    # Browsers have the letters that the font lacks by which matplotlib measures.
    warnings.filterwarnings("ignore", message="Glyph .* missing from font")
    drawn = figure.Figure(figsize=(width, height))
    draw(drawn.subplots())
    stream = io.BytesIO()
    drawn.savefig(stream, format="svg", bbox_inches="tight", metadata={"Date": None})
  image = base64.b64encode(stream.getvalue()).decode()
  return Image(title, f"data:image/svg+xml;base64,{image}")
