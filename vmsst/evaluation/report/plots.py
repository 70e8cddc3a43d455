"""Plots for reports, each a string of SVG; they need matplotlib, the optional extra `report`.

A plot works alone and inside an HTML page next to others: it contains no script, date or link, its
ids are unique, its text is text in a common font, and screen readers read its title. Equal input
gives an equal string.
"""

import contextlib
import dataclasses
import hashlib
import io
import math
import re
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from vmsst import errors
from vmsst.evaluation.metrics import agnosticism

# After the colors of Okabe and Ito (2008), which people with any color vision can distinguish.
_COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#8f6a00", "#56b4e9", "#7a0019", "#5b4ea0")
_LARGEST = 1e30  # Larger values are not drawn.
_OTHER = "#777777"
_DASHES: tuple[Any, ...] = ("-", "--", ":", "-.")
_MARKS = ("s", "^", "D", "v", "P", "X", "*", "p")
_STYLE: Any = {
  "font.family": "sans-serif",
  "font.sans-serif": ["DejaVu Sans"],
  "font.size": 9,
  "axes.titlesize": 11,
  "axes.titlelocation": "left",
  "axes.titlepad": 10,
  "axes.spines.top": False,
  "axes.spines.right": False,
  "figure.dpi": 72,
  "legend.fontsize": 8,
  "legend.frameon": False,
  "svg.fonttype": "none",
  "svg.hashsalt": "vmsst",
  "text.parse_math": False,
  "text.usetex": False,
}


@dataclasses.dataclass(frozen=True)
class Curve:
  """A number over the training steps of a run; values that are not finite leave a gap.

  Attributes:
    run: Title of the run; curves of one run look the same in all panels.
    steps: Training steps, or numbers of dimensions, ascending.
    values: One per step.
  """

  run: str
  steps: Sequence[float]
  values: Sequence[float]


@dataclasses.dataclass(frozen=True)
class Edge:
  """A line between two points of a plot, with a number at its middle.

  Attributes:
    first: Row of one point.
    second: Row of the other.
    distance: The number.
  """

  first: int
  second: int
  distance: float


@dataclasses.dataclass(frozen=True)
class Scores:
  """Numbers to compare, 0 to 100, or below 0 for correlations.

  Attributes:
    label: What they measure, in lines.
    own: Value of each encoder; None if it was not measured.
    marks: Text after each value, such as "†"; "" for none.
    published: Published values, at least one.
    best: The best one, which is one of them.
    remark: Text on the best one, such as its system.
  """

  label: str
  own: Sequence[float | None]
  marks: Sequence[str]
  published: Sequence[float]
  best: float
  remark: str


def comparison(scores: Sequence[Scores], encoders: Sequence[str], *, title: str) -> str:
  """Plots the scores of encoders next to published ones, a line per encoder and one for those.

  Each line names its encoder and value; every published value is a small mark on the last line.

  Args:
    scores: From top to bottom.
    encoders: Titles of the encoders; long ones are cut.
    title: Title of the plot.

  Raises:
    ValueError: there are no scores, or not one value per encoder.
    InputError: matplotlib is not installed.
  """
  if not scores:
    raise ValueError("no scores to draw")
  for each in scores:
    if not len(each.own) == len(each.marks) == len(encoders):
      raise ValueError(f"{each.label}: {len(each.own)} values for {len(encoders)} encoders")
  names = [name if len(name) <= 40 else f"{name[:39]}…" for name in encoders]
  # Lines from top to bottom: in each group those of its numbers, or of its label if it has more.
  sizes = [max(len(encoders) + 1, each.label.count("\n") + 1) for each in scores]
  tops = np.cumsum([0, *(size + 0.8 for size in sizes)])
  low = min([0.0, *(x for each in scores for x in (*each.own, *each.published) if x is not None)])
  with _style():
    axes = _axes(4.6, 0.19 * float(tops[-1]))
    axes.set_xlim(10 * math.floor(low / 10), 100)
    axes.set_ylim(float(tops[-1]) - 0.9, -0.9)
    for top, size, each in zip(tops, sizes, scores, strict=False):
      first = top + (size - len(encoders) - 1) / 2
      for place, (name, value, mark) in enumerate(zip(names, each.own, each.marks, strict=True)):
        text = f"{name}: –" if value is None else f"{_rounded(value)}{mark} {name}"
        color = _COLORS[place % len(_COLORS)]
        symbol = _MARKS[place % len(_MARKS)]
        if value is not None:
          axes.plot([0, value], [first + place] * 2, color=color, linewidth=2.4)
          axes.plot([value], [first + place], symbol, color=color, markersize=5, clip_on=False)
        _after(axes, max(value or 0, 0), first + place, text)
      line = first + len(encoders)
      marks = {"markersize": 9, "clip_on": False, "zorder": 3}
      axes.plot(each.published, [line] * len(each.published), "|", color=_OTHER, **marks)
      axes.plot([each.best], [line], "|", color="black", markeredgewidth=2, **marks)
      _after(
        axes, max(*each.published, 0), line, f"{_rounded(each.best)} {each.remark}", color="#555555"
      )
    middles = [top + (size - 1) / 2 for top, size in zip(tops, sizes, strict=False)]
    axes.set_yticks(middles, [each.label for each in scores])
    axes.tick_params(axis="y", length=0)
    for top in tops[1:-1]:
      axes.axhline(top - 0.9, color="#dddddd", linewidth=0.6)
    axes.grid(axis="x", color="#eeeeee", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines["left"].set_visible(False)
    if low < 0:
      axes.axvline(0, color="#999999", linewidth=0.8)
    return _svg(axes, title)


def _rounded(value: float) -> str:
  """Returns a number with one decimal; small ones, such as error rates, with two."""
  return f"{value:.1f}" if abs(value) >= 1 else f"{value:.2f}"


def _after(axes: Any, x: float, y: float, text: str, color: str = "black") -> None:
  """Writes text to the right of a point."""
  axes.annotate(
    text,
    (x, y),
    (7, 0),
    textcoords="offset points",
    va="center",
    size=8,
    color=color,
    annotation_clip=False,
  )


def heat_map(
  error_LL: np.ndarray, labels: Sequence[str], *, order: Sequence[int], title: str
) -> str:
  """Plots an error matrix and its averages in color, and up to 40 languages in numbers too.

  Args:
    error_LL: Errors in percent; row: language of the query, column: language searched. The diagonal
      is left blank.
    labels: One per language.
    order: Rows of the languages from first to last, as `clustering.leaf_order` returns them.
    title: Title of the plot.

  Raises:
    ValueError: sizes differ, `order` is not a permutation, there are fewer than two languages, or a
      value is not finite.
    InputError: matplotlib is not installed.
  """
  error_LL = agnosticism.square(error_LL)
  count = len(labels)
  if error_LL.shape != (count, count) or sorted(order) != list(range(count)):
    raise ValueError(f"{count} labels and an order {list(order)} of a matrix {error_LL.shape}")
  names = [*(labels[place] for place in order), "average"]
  ordered_LL = error_LL[np.ix_(order, order)]
  edges = agnosticism.averages(ordered_LL)
  shown_MM = np.ma.masked_all((count + 1, count + 1))  # M: the languages and their average.
  shown_MM[:count, :count] = np.ma.array(ordered_LL, mask=np.eye(count, dtype=bool))
  shown_MM[:count, count], shown_MM[count, :count] = edges.source_L, edges.target_L
  shown_MM[count, count] = edges.overall
  numbers = count <= 40
  side = max((0.3 if numbers else 0.14) * (count + 1), 2.6)
  with _style():
    axes = _axes(side, side)
    # The highest color is the highest error, so that the weakest encoder's map is not one color.
    image = axes.imshow(
      shown_MM, cmap="viridis_r", vmin=0, vmax=shown_MM.max() or 1, interpolation="none"
    )
    size = 8 if numbers else 7
    axes.set_xticks(range(count + 1), names, rotation=90, fontsize=size)
    axes.set_yticks(range(count + 1), names, fontsize=size)
    axes.tick_params(top=True, bottom=False, labeltop=True, labelbottom=False, length=2)
    axes.spines[:].set_visible(False)
    for line in (axes.axhline, axes.axvline):
      line(count - 0.5, color="white", linewidth=2)
    axes.set_xlabel("language that is searched (target)", loc="left")
    axes.xaxis.set_label_position("top")
    axes.set_ylabel("language of the query (source)", loc="top")
    long = min(side, 3) / side
    bar = axes.inset_axes((1 + 0.2 / side, 1 - long, 0.14 / side, long))
    axes.figure.colorbar(image, cax=bar, label="wrong nearest neighbors (%)")
    for row, column in np.ndindex(shown_MM.shape) if numbers else ():
      if shown_MM[row, column] is not np.ma.masked:
        value = float(shown_MM[row, column])
        axes.text(
          column,
          row,
          f"{value:.0f}" if value >= 99.95 else f"{value:.1f}",
          ha="center",
          va="center",
          fontsize=6,
          color=_ink(image.to_rgba(value)),
        )
    return _svg(axes, title)


def dendrogram(
  tree_M4: np.ndarray,
  labels: Sequence[str],
  families: Sequence[str],
  *,
  title: str,
  distance: str = "mean error of both directions where groups join (%)",
) -> str:
  """Plots a tree of languages, each with its family; branches within one family have its color.

  The eight largest families have colors of their own; every label names the family.

  Args:
    tree_M4: As `clustering.tree` returns it.
    labels: One per language.
    families: One per language.
    title: Title of the plot.
    distance: Label of the axis along the branches.

  Raises:
    ValueError: there is not one label and one family per language.
    InputError: matplotlib is not installed.
  """
  from scipy.cluster import hierarchy

  count = len(tree_M4) + 1
  if not len(labels) == len(families) == count:
    raise ValueError(f"{len(labels)} labels and {len(families)} families for {count} languages")
  of_cluster = _kinds(families)
  look = _looks(of_cluster)
  for first, second in tree_M4[:, :2].astype(int):
    same = of_cluster[first] == of_cluster[second]
    of_cluster.append(of_cluster[first] if same else "other")
  drawn = hierarchy.dendrogram(
    tree_M4,
    orientation="right",
    no_plot=True,
    link_color_func=lambda cluster: look.get(of_cluster[cluster], (_OTHER, ""))[0],
  )
  names = [f"{labels[leaf]}, {families[leaf]}" for leaf in drawn["leaves"]]
  with _style():
    axes = _axes(5, (0.19 if count <= 60 else 0.15) * count)
    for places, heights, link in zip(
      drawn["icoord"], drawn["dcoord"], drawn["color_list"], strict=True
    ):
      axes.plot(heights, places, color=link, linewidth=1.4)
    far = float(tree_M4[:, 2].max()) or 1.0
    axes.set_xlim(1.02 * far, 0)
    axes.set_ylim(10 * count, 0)
    at = [5 + 10 * place for place in range(count)]
    axes.set_yticks(at, names, fontsize=9 if count <= 60 else 7.5)
    axes.yaxis.tick_right()
    axes.tick_params(axis="y", length=0, pad=9)
    colors = [look[of_cluster[leaf]][0] for leaf in drawn["leaves"]]
    axes.scatter([-0.012 * far] * count, at, c=colors, s=22, marker="s", clip_on=False, zorder=3)
    axes.spines["left"].set_visible(False)
    axes.set_xlabel(distance)
    return _svg(axes, title)


def sentence_plot(
  point_V2: np.ndarray,
  labels: Sequence[str],
  *,
  share_2: Sequence[float],
  title: str,
  groups: Sequence[str] | None = None,
  edges: Sequence[Edge] = (),
) -> str:
  """Plots the vectors of one sentence in all its versions as points (the paper's Fig. 1).

  Args:
    point_V2: As `agnosticism.principal_plane` returns them.
    labels: One per point.
    share_2: Share of the variance along each axis, 0 to 1.
    title: Title of the plot.
    groups: One per point, such as families: points of one group look the same.
    edges: Lines to plot, such as from each translation to its source.

  Raises:
    ValueError: sizes differ, there is no point, a point is not finite, or an edge has no point.
    InputError: matplotlib is not installed.
  """
  point_V2 = np.asarray(point_V2, np.float64)
  kinds = ["other"] * len(labels) if groups is None else _kinds(groups)
  if point_V2.shape != (len(labels), 2) or len(kinds) != len(labels) or not len(labels):
    raise ValueError(f"{len(labels)} labels and {len(kinds)} groups of points {point_V2.shape}")
  if not np.isfinite(point_V2).all():
    raise ValueError("a point is not finite")
  if any(not 0 <= end < len(labels) for edge in edges for end in (edge.first, edge.second)):
    raise ValueError("an edge leads to no point")
  # One scale on both axes: distances can be compared in all directions.
  low_2, high_2 = point_V2.min(axis=0), point_V2.max(axis=0)
  reach = 0.62 * max(float((high_2 - low_2).max()), 0.02)  # Half a side, with room for labels.
  middle_2 = (low_2 + high_2) / 2
  side = 5 * max(1, math.sqrt(len(labels) / 40))
  with _style():
    axes = _axes(side, side)
    axes.set_xlim(middle_2[0] - reach, middle_2[0] + reach)
    axes.set_ylim(middle_2[1] - reach, middle_2[1] + reach)
    for kind, (color, mark) in _looks(kinds).items():
      rows = [row for row, each in enumerate(kinds) if each == kind]
      axes.scatter(
        *point_V2[rows].T, c=color, marker=mark, s=26, zorder=3, linewidths=0, label=_visible(kind)
      )
    lines, numbers = [], []
    for edge in edges:
      ends_22 = point_V2[[edge.first, edge.second]]
      lines += axes.plot(*ends_22.T, color="#999999", linewidth=1, zorder=1)
      numbers.append(
        axes.text(
          *ends_22.mean(axis=0),
          f"{edge.distance:.2f}",
          ha="center",
          va="center",
          size=7,
          color="#444444",
          zorder=4,
          bbox={"facecolor": "white", "edgecolor": "none", "pad": 1},
        )
      )
    _label_points(axes, point_V2, labels, lines, numbers)
    axes.set_xlabel(f"first principal component ({100 * share_2[0]:.0f} % of the variance)")
    axes.set_ylabel(f"second principal component ({100 * share_2[1]:.0f} % of the variance)")
    if groups is not None:
      axes.legend(loc="upper left", bbox_to_anchor=(1, 1))
    return _svg(axes, title)


def training_curves(panels: Mapping[str, Sequence[Curve]], *, title: str) -> str:
  """Plots numbers over training steps, one panel below the other, for one or more runs.

  Args:
    panels: Curves by the label of their values, with the unit: "training loss (nats)".
    title: Title of the plot.

  Raises:
    ValueError: there is no curve, or one does not have one value per step.
    InputError: matplotlib is not installed.
  """
  return _curves(panels, title=title, axis="training steps")


def dimension_curves(panels: Mapping[str, Sequence[Curve]], *, title: str) -> str:
  """Plots numbers over the dimensions of vectors, on a logarithmic axis; see `training_curves`."""
  sizes = {step for curves in panels.values() for curve in curves for step in curve.steps}
  return _curves(panels, title=title, axis="first dimensions of each vector", ticks=sorted(sizes))


def _curves(
  panels: Mapping[str, Sequence[Curve]],
  *,
  title: str,
  axis: str,
  ticks: Sequence[float] | None = None,
) -> str:
  """Plots curves; an axis with ticks is logarithmic."""
  runs = list(dict.fromkeys(curve.run for curves in panels.values() for curve in curves))
  if not runs:
    raise ValueError("no curve to draw")
  for name, curves in panels.items():
    for curve in curves:
      if len(curve.steps) != len(curve.values):
        raise ValueError(
          f"{name} of {curve.run}: {len(curve.steps)} steps and {len(curve.values)} values"
        )
  look = {
    run: {
      "color": _COLORS[place % len(_COLORS)],
      "linestyle": _DASHES[place // len(_COLORS) % len(_DASHES)],
    }
    for place, run in enumerate(runs)
  }
  with _style():
    from matplotlib import figure, lines

    drawn = figure.Figure(figsize=(6, 2.5 * len(panels)))
    drawn.subplots_adjust(left=0, right=1, bottom=0, top=1, hspace=0.14)
    rows = drawn.subplots(len(panels), sharex=True, squeeze=False)[:, 0]
    for axes, (name, curves) in zip(rows, panels.items(), strict=True):
      for curve in curves:
        values = np.asarray(curve.values, np.float64)
        axes.plot(
          np.asarray(curve.steps, np.float64),
          np.where(np.abs(values) < _LARGEST, values, np.nan),
          linewidth=1.5,
          marker="o" if len(values) <= 40 else None,
          markersize=3,
          **look[curve.run],
        )
      axes.set_ylabel(name)
      axes.grid(axis="y", color="#dddddd", linewidth=0.6)
      if ticks:
        axes.set_xscale("log", base=2)
        axes.set_xticks(ticks)
        axes.minorticks_off()
      axes.xaxis.set_major_formatter(lambda step, _: f"{step:,.10g}")
    axes.set_xlabel(axis)
    drawn.align_ylabels()
    rows[0].legend(
      [lines.Line2D([], [], **look[run]) for run in runs],
      map(_visible, runs),
      loc="upper left",
      bbox_to_anchor=(1, 1),
    )
    return _svg(rows[0], title)


@contextlib.contextmanager
def _style() -> Iterator[None]:
  """Applies the style of all plots; raises InputError if matplotlib is not installed."""
  with errors.requires("report", "a figure"):
    import matplotlib
  with (
    matplotlib.rc_context(matplotlib.rcParamsDefault),
    matplotlib.rc_context(_STYLE),
    warnings.catch_warnings(),
  ):
    # Browsers have the letters that the font lacks by which matplotlib measures.
    warnings.filterwarnings("ignore", message="Glyph .* missing from font")
    yield


def _axes(width: float, height: float) -> Any:
  """Returns axes of this size in inches; `_svg` makes room for labels around them."""
  from matplotlib import figure

  return figure.Figure(figsize=(width, height)).add_axes((0, 0, 1, 1))


def _svg(axes: Any, title: str) -> str:
  """Returns the figure of some axes as SVG to embed, with a title above the axes."""
  axes.set_title(title)
  stream = io.StringIO()
  axes.figure.savefig(
    stream,
    format="svg",
    bbox_inches="tight",
    pad_inches=0.15,
    metadata={"Date": None, "Title": title},
  )
  return _embeddable(stream.getvalue())


def _embeddable(svg: str) -> str:
  """Returns the svg element alone, with ids unique to it and a role for screen readers."""
  svg = re.sub(r"\s*<metadata>.*?</metadata>", "", svg[svg.index("<svg") :], flags=re.DOTALL)
  own = "f" + hashlib.sha256(svg.encode()).hexdigest()[:10]
  svg = re.sub(r'\bid="', f'id="{own}-', svg)
  svg = re.sub(r'(\burl\(#|href="#)', rf"\1{own}-", svg)
  svg = svg.replace("<title>", f'<title id="{own}-title">', 1)
  svg = svg.replace("<svg ", f'<svg id="{own}" role="img" aria-labelledby="{own}-title" ', 1)
  return re.sub(r'(<style type="text/css">)\*', rf"\1#{own} *", svg)


def _kinds(groups: Sequence[str]) -> list[str]:
  """Returns the groups; those outside the eight largest, or with one member, become "other"."""
  counts = Counter(groups)
  several = sorted((name for name in counts if counts[name] > 1), key=lambda x: (-counts[x], x))
  return [name if name in several[: len(_COLORS)] else "other" for name in groups]


def _looks(kinds: Sequence[str]) -> dict[str, tuple[str, str]]:
  """Returns the color and marker of each kind, the largest first and "other" last."""
  counts = Counter(kinds)
  named = sorted(set(kinds) - {"other"}, key=lambda name: (-counts[name], name))
  looks = {name: (_COLORS[place], _MARKS[place]) for place, name in enumerate(named)}
  return looks | ({"other": (_OTHER, "o")} if "other" in counts else {})


def _visible(name: str) -> str:
  """Returns the name as matplotlib shows it in legends, even if it starts with "_"."""
  return f"\u200b{name}" if name.startswith("_") else name


def _label_points(
  axes: Any, point_V2: np.ndarray, labels: Sequence[str], lines: Sequence[Any], texts: Sequence[Any]
) -> None:
  """Puts each label as near to its point as is free of points, lines, texts and other labels."""
  from matplotlib import transforms

  spot_V2 = axes.transData.transform(point_V2)
  taken = [transforms.Bbox([spot_2 - 4, spot_2 + 4]) for spot_2 in spot_V2]
  taken += [text.get_window_extent() for text in texts]
  paths = [line.get_path().transformed(axes.transData) for line in lines]

  def free(box: Any) -> bool:
    crossed = any(path.intersects_bbox(box, filled=False) for path in paths)
    return not crossed and not box.count_overlaps(taken)

  for point_2, label in zip(point_V2, labels, strict=True):
    text = axes.annotate(
      label,
      point_2,
      (0, 0),
      textcoords="offset points",
      ha="center",
      va="center",
      size=8,
      zorder=5,
      arrowprops={"arrowstyle": "-", "color": "#bbbbbb", "lw": 0.6, "shrinkA": 0, "shrinkB": 4},
    )
    box = text.get_window_extent()
    offsets = list(_offsets(np.array(box.size) / 2))
    offset_2 = next((x for x in offsets if free(box.translated(*x))), offsets[0])
    text.set_position(offset_2)
    taken.append(box.translated(*offset_2))


def _offsets(half_2: np.ndarray) -> Iterator[np.ndarray]:
  """Yields places around a point for a box, given half its size, from near to far."""
  for ring in range(12):
    turns = 8 if ring < 2 else 16
    for turn in range(turns):
      angle = turn * math.tau / turns
      yield np.array([math.cos(angle), math.sin(angle)]) * (half_2 + 4 + 7 * ring)


def _ink(color: Sequence[float]) -> str:
  """Returns black or white, whichever has more contrast (as WCAG defines it) to a color."""
  linear = [x / 12.92 if x <= 0.04045 else ((x + 0.055) / 1.055) ** 2.4 for x in color[:3]]
  luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
  return "black" if luminance > 0.179 else "white"
