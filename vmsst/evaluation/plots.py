"""Plots sentence vectors as matplotlib figures (`pip install 'vmsst[report]'`).

    vmsst.plots.similarity(["How are you?", "Wie geht's?", "It rains."], encoder=encoder)
    vmsst.plots.languages(encoder.encode(texts), codes).savefig("languages.png")

With `%matplotlib inline`, a notebook shows the figure that a cell returns. Apart from `similarity`
and `languages`, the functions in this module draw images for reports and return them as `Image`
objects.
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

_MAX_COSINES = 20  # Larger heat maps do not show the cosines as numbers.
_MAX_LABEL = 40  # Maximum number of characters in a label.
_MAX_NUMBERS = 40  # Heat maps with more languages do not show numbers.
_STYLE: Any = {
  "axes.spines.right": False,
  "axes.spines.top": False,
  "font.size": 9,
  "svg.fonttype": "none",
  "svg.hashsalt": "vmsst",
  "text.parse_math": False,
}


def similarity(
  sentences: Sequence[str], columns: Sequence[str] | None = None, *, encoder: Any, **options: Any
) -> Any:
  """Returns a heat map of cosines between sentences.

  Args:
    sentences: Sentences to show as rows.
    columns: Sentences to show as columns (default: the same sentences).
    encoder: An object with `encode(texts)`, as `vmsst.load` returns it.
    **options: Additional options for `encode`, such as `prompt_name`.

  Raises:
    InputError: If matplotlib is not installed.
  """
  columns = sentences if columns is None else columns
  row_ND, column_MD = (
    exact_search.unit_rows(np.asarray(encoder.encode(list(texts), **options)))
    for texts in (sentences, columns)
  )
  cosine_NM = row_ND @ column_MD.T
  row_labels, column_labels = (
    [text if len(text) <= _MAX_LABEL else f"{text[: _MAX_LABEL - 1]}…" for text in texts]
    for texts in (sentences, columns)
  )
  # Figure size in inches: the cells, plus space for the labels.
  width = 0.6 * len(column_labels) + 0.08 * max(map(len, row_labels)) + 1.5
  height = 0.4 * len(row_labels) + 0.06 * max(map(len, column_labels)) + 0.3
  figure = _figure((width, height))
  axes = figure.subplots()
  lowest = min(0.0, float(cosine_NM.min()))
  image = axes.imshow(cosine_NM, cmap="viridis", vmin=lowest, vmax=1, aspect="auto")
  figure.colorbar(image, label="cosine")
  axes.set_xticks(range(len(columns)), column_labels, rotation=45, ha="right", parse_math=False)
  axes.set_yticks(range(len(sentences)), row_labels, parse_math=False)
  if max(cosine_NM.shape) <= _MAX_COSINES:
    for (row, column), value in np.ndenumerate(cosine_NM):
      color = "black" if image.norm(value) > 0.6 else "white"
      axes.text(column, row, f"{value:.2f}", ha="center", va="center", color=color)
  return figure


def languages(vectors: Any, labels: Sequence[str]) -> Any:
  """Returns a scatter plot of vectors by their first two principal components.

  If the encoder that computed the vectors is language-agnostic, the points for different languages
  overlap. Otherwise, the points for each language form a cluster.

  Args:
    vectors: Sentence vectors [N, D] of any length.
    labels: Label for each vector, such as its language.

  Raises:
    InputError: If the numbers of vectors and labels differ, or matplotlib is not installed.
  """
  vector_ND = exact_search.unit_rows(np.asarray(vectors))
  if len(labels) != len(vector_ND):
    raise errors.InputError(
      f"got {len(vector_ND)} vectors but {len(labels)} labels; pass one label per vector"
    )
  centered_ND = vector_ND - vector_ND.mean(axis=0)
  _, _, component_DD = np.linalg.svd(centered_ND, full_matrices=False)
  point_N2 = centered_ND @ component_DD[:2].T
  figure = _figure((6, 5))
  axes = figure.subplots()
  names = list(dict.fromkeys(labels))
  for number, name in enumerate(names):
    rows = [i for i, label in enumerate(labels) if label == name]
    color = np.full(len(rows), number / max(1, len(names) - 1))
    axes.scatter(*point_N2[rows].T, s=12, c=color, vmin=0, vmax=1, cmap="turbo", label=name)
  axes.set(xlabel="first principal component", ylabel="second principal component")
  legend = axes.legend(loc="upper left", bbox_to_anchor=(1, 1), ncols=1 + len(names) // 20)
  for text in legend.get_texts():
    text.set_parse_math(False)
  return figure


def _figure(size: tuple[float, float]) -> Any:
  with errors.requires("report", "a plot"):
    from matplotlib.figure import Figure
  return Figure(figsize=size, layout="constrained")


@dataclasses.dataclass(frozen=True)
class Image:
  """An SVG image for the `img` element of a report.

  The image contains no scripts or links, so it cannot change the page. The same data always
  produces the same bytes.

  Attributes:
    title: Title of the image.
    source: The image as a `data:` URL.
  """

  title: str
  source: str


def error_figures(subtitle: str, result: suite.Result) -> list[Image]:
  """Draws the error matrix from a `benchmarks.agnosticism` result, and a tree of the languages.

  Args:
    subtitle: Encoder and text, for the titles.
    result: The result.
  """
  labels, error_LL = result.arrays["labels"], np.array(result.arrays["error"])
  count = len(labels)
  if count < 3:  # A tree needs at least three languages.
    return []
  from scipy.cluster import hierarchy  # SciPy is slow to import, so it is imported here.

  tree_M4 = agnosticism.language_tree(error_LL)
  order = hierarchy.leaves_list(tree_M4)
  # The M rows and columns are the languages in tree order, followed by the average.
  error_LL = error_LL[np.ix_(order, order)]
  source_L, target_L = map(agnosticism.mean_errors, (error_LL, error_LL.T))
  cell_MM = np.full((count + 1, count + 1), source_L.mean())
  cell_MM[:count, :count] = np.where(np.eye(count, dtype=bool), np.nan, error_LL)
  cell_MM[:count, count], cell_MM[count, :count] = source_L, target_L
  names = [*(labels[row] for row in order), "average"]

  def draw_matrix(axes: Any) -> None:
    # Only the lighter half of the colors is used, because numbers are not readable on dark colors.
    axes.imshow(cell_MM, cmap="Reds", vmin=0, vmax=2 * np.nanmax(cell_MM) or 1)
    axes.set_xticks(range(count + 1), names, rotation=90)
    axes.set_yticks(range(count + 1), names)
    for (row, column), value in np.ndenumerate(cell_MM):
      if count <= _MAX_NUMBERS and np.isfinite(value):
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

  width = max((0.34 if count <= _MAX_NUMBERS else 0.15) * (count + 1), 3)
  return [
    _image(f"Errors: {subtitle}", draw_matrix, width, width),
    _image(f"Languages by error: {subtitle}", draw_tree, 6, 0.19 * count + 0.6),
  ]


def _image(title: str, draw: Callable[[Any], None], width: float, height: float) -> Image:
  """Calls `draw` with new axes of this width and height, in inches, and returns the image."""
  import matplotlib
  from matplotlib.figure import Figure

  with matplotlib.rc_context(_STYLE), warnings.catch_warnings():
    # Letters missing from matplotlib's font do not matter, because the browser draws the text.
    warnings.filterwarnings("ignore", message="Glyph .* missing from font")
    figure = Figure(figsize=(width, height))
    draw(figure.subplots())
    stream = io.BytesIO()
    figure.savefig(stream, format="svg", bbox_inches="tight", metadata={"Date": None})
  image = base64.b64encode(stream.getvalue()).decode()
  return Image(title, f"data:image/svg+xml;base64,{image}")
