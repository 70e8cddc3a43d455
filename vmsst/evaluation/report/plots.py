"""Pictures for reports, each a string of SVG; they need matplotlib, the optional extra `report`.

A picture stands alone or inside an HTML page, beside others: it holds no script, date or link, its
ids are its own, its text is text in a common font, and its title is read aloud. The same input
gives the same string.
"""

import dataclasses
import hashlib
import io
import math
import re
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from vmsst import errors

# After the colors of Okabe and Ito (2008), which people with any vision tell apart.
_COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#8f6a00", "#56b4e9", "#7a0019", "#5b4ea0")
_OTHER = "#777777"
_DASHES: tuple[Any, ...] = ("-", "--", ":", "-.")
_MARKS = ("s", "^", "D", "v", "P", "X", "*", "p")
_POINT = 1 / 72  # inches
_STYLE: dict[str, Any] = {
  "font.family": "sans-serif",
  "font.sans-serif": ["DejaVu Sans"],
  "font.size": 9,
  "axes.titlesize": 11,
  "axes.spines.top": False,
  "axes.spines.right": False,
  "svg.fonttype": "none",
  "svg.hashsalt": "vmsst",
  "text.parse_math": False,
  "text.usetex": False,
}


@dataclasses.dataclass(frozen=True)
class Curve:
  """A number over the training steps of a run; where it is not finite the line has a gap.

  Attributes:
    run: The run, for people; curves of one run look the same in all panels.
    steps: Of training, rising.
    values: One a step.
  """

  run: str
  steps: Sequence[float]
  values: Sequence[float]


@dataclasses.dataclass(frozen=True)
class Edge:
  """A line between two points of a picture, with a number at its middle.

  Attributes:
    first: Row of a point.
    second: Row of the other.
    distance: The number.
  """

  first: int
  second: int
  distance: float


def heat_map(
  error_LL: np.ndarray, labels: Sequence[str], *, order: Sequence[int], title: str
) -> str:
  """An error matrix in color, and in numbers too for up to 40 languages.

  Args:
    error_LL: Errors in percent; row: language of the query, column: language searched. The diagonal
      is left blank.
    labels: One a language.
    order: Places of the languages from first to last, as `clustering.leaf_order` gives them.
    title: Of the picture.

  Raises:
    ValueError: sizes differ, `order` is no order of them, or a value is not finite.
    InputError: matplotlib is not installed.
  """
  error_LL = np.asarray(error_LL, np.float64)
  count = len(labels)
  if error_LL.shape != (count, count) or sorted(order) != list(range(count)) or not count:
    raise ValueError(f"{count} labels and an order {list(order)} of a matrix {error_LL.shape}")
  if not np.isfinite(error_LL).all():
    raise ValueError("an error is not finite")
  names = [labels[place] for place in order]
  shown_LL = np.ma.array(error_LL[np.ix_(order, order)], mask=np.eye(count, dtype=bool))
  numbers = count <= 40
  side = max((0.3 if numbers else 0.14) * count, 2.6)
  edge = 0.3 + _text_width(names, 8 if numbers else 7)
  left, top, right, bottom = edge + 0.25, edge + 0.6, 1.1, 0.2
  width = max(left + side + right, _title_width(title))
  height = top + side + bottom

  def draw(figure: Any) -> None:
    axes = figure.add_axes((left / width, bottom / height, side / width, side / height))
    # The highest color is the highest error, so that the weakest encoder's map is not one color.
    image = axes.imshow(
      shown_LL, cmap="viridis_r", vmin=0, vmax=shown_LL.max() or 1, interpolation="none"
    )
    size = 8 if numbers else 7
    axes.set_xticks(range(count), names, rotation=90, fontsize=size)
    axes.set_yticks(range(count), names, fontsize=size)
    axes.tick_params(top=True, bottom=False, labeltop=True, labelbottom=False, length=2)
    axes.spines[:].set_visible(False)
    axes.set_xlabel("language that is searched (target)", loc="left")
    axes.xaxis.set_label_position("top")
    axes.set_ylabel("language of the query (source)", loc="top")
    figure.text(0.1 / width, 1 - 0.12 / height, title, fontsize=11, ha="left", va="top")
    long = min(side, 3)
    at = (left + side + 0.2) / width, (bottom + side - long) / height
    bar = figure.add_axes((*at, 0.14 / width, long / height))
    figure.colorbar(image, cax=bar, label="wrong nearest neighbors (%)")
    if numbers:
      for row, column in np.ndindex(shown_LL.shape):
        if row != column:
          value = float(shown_LL[row, column])
          axes.text(
            column,
            row,
            f"{value:.0f}" if value >= 99.95 else f"{value:.1f}",
            ha="center",
            va="center",
            fontsize=6,
            color=_ink(image.to_rgba(value)),
          )

  return _svg(draw, width, height, title)


def dendrogram(
  tree_M4: np.ndarray,
  labels: Sequence[str],
  families: Sequence[str],
  *,
  title: str,
  distance: str = "mean error of both directions where groups join (%)",
) -> str:
  """A tree of languages, each with its family; branches within one family have its color.

  The eight largest families have colors of their own, and every language names its family.

  Args:
    tree_M4: As `clustering.tree` gives it.
    labels: One a language.
    families: One a language.
    title: Of the picture.
    distance: What the lengths of branches are, for people.

  Raises:
    ValueError: there is not one label and one family a language.
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
  line = 0.19 if count <= 60 else 0.15
  size = 9 if count <= 60 else 7.5
  left, right, top, bottom, side = 0.35, 0.25 + _text_width(names, size), 0.45, 0.55, 5.0
  width = max(left + side + right, _title_width(title))
  height = top + line * count + bottom

  def draw(figure: Any) -> None:
    axes = figure.add_axes((left / width, bottom / height, side / width, line * count / height))
    for places, heights, link in zip(
      drawn["icoord"], drawn["dcoord"], drawn["color_list"], strict=True
    ):
      axes.plot(heights, places, color=link, linewidth=1.4)
    far = float(tree_M4[:, 2].max()) or 1.0
    axes.set_xlim(1.02 * far, 0)
    axes.set_ylim(10 * count, 0)
    at = [5 + 10 * place for place in range(count)]
    axes.set_yticks(at, names, fontsize=size)
    axes.yaxis.tick_right()
    axes.tick_params(axis="y", length=0, pad=9)
    colors = [look[of_cluster[leaf]][0] for leaf in drawn["leaves"]]
    axes.scatter([-0.012 * far] * count, at, c=colors, s=22, marker="s", clip_on=False, zorder=3)
    axes.spines["left"].set_visible(False)
    axes.set_xlabel(distance)
    figure.text(0.1 / width, 1 - 0.12 / height, title, fontsize=11, ha="left", va="top")

  return _svg(draw, width, height, title)


def sentence_plot(
  point_V2: np.ndarray,
  labels: Sequence[str],
  *,
  share_2: Sequence[float],
  title: str,
  groups: Sequence[str] | None = None,
  edges: Sequence[Edge] = (),
) -> str:
  """The vectors of one sentence in all its versions, as points of a plane (the paper's Fig. 1).

  Args:
    point_V2: As `agnosticism.principal_plane` gives them.
    labels: One a point.
    share_2: Share of the variance along each axis, 0 to 1.
    title: Of the picture.
    groups: One a point, such as families: points of one group look the same.
    edges: Lines to draw, such as from each translation to its source.

  Raises:
    ValueError: sizes differ, there is no point, a point is not finite, or an edge leads nowhere.
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
  look = _looks(kinds)
  # One scale on both axes: distances can be compared in all directions.
  low_2, high_2 = point_V2.min(axis=0), point_V2.max(axis=0)
  wide = max(float((high_2 - low_2).max()), 0.02)
  side = 5 * max(1, math.sqrt(len(labels) / 40))
  middle_2 = (low_2 + high_2) / 2
  left, top, bottom = 0.75, 0.5, 0.6
  right = 0.2 if groups is None else 0.6 + _text_width(list(look), 8)
  width = max(left + side + right, _title_width(title))
  height = top + side + bottom
  reach = 0.62 * wide  # Half a side, in the units of the points; there is room for labels around.

  def draw(figure: Any) -> None:
    axes = figure.add_axes((left / width, bottom / height, side / width, side / height))
    axes.set_xlim(middle_2[0] - reach, middle_2[0] + reach)
    axes.set_ylim(middle_2[1] - reach, middle_2[1] + reach)
    for edge in edges:
      ends_22 = point_V2[[edge.first, edge.second]]
      axes.plot(ends_22[:, 0], ends_22[:, 1], color="#999999", linewidth=1, zorder=1)
    for kind, (color, mark) in look.items():
      rows = [row for row, each in enumerate(kinds) if each == kind]
      axes.scatter(*point_V2[rows].T, c=color, marker=mark, s=26, zorder=3, linewidths=0)
    scale = side / _POINT / (2 * reach)  # points of type per unit
    spots_V2 = (point_V2 - middle_2) * scale
    share_S1 = np.linspace(0.05, 0.95, 30)[:, None]
    lines = [
      spots_V2[edge.first] * share_S1 + spots_V2[edge.second] * (1 - share_S1) for edge in edges
    ]
    middles = [spots_V2[[edge.first, edge.second]].mean(axis=0) for edge in edges]
    occupied = [(spot, 4.0) for spot in spots_V2] + [(spot, 6.0) for spot in middles]
    occupied += [(spot, 1.0) for line in lines for spot in line]
    for text, spot_2, center_2 in zip(
      labels, spots_V2, _label_centers(spots_V2, labels, occupied, side / _POINT), strict=True
    ):
      near_2 = np.clip(spot_2, *(center_2 + way * _half_size(text) for way in (-1, 1)))
      if np.linalg.norm(near_2 - spot_2) > 10:
        leader_22 = np.array([spot_2, near_2]) / scale + middle_2
        axes.plot(leader_22[:, 0], leader_22[:, 1], color="#bbbbbb", linewidth=0.6, zorder=2)
      axes.text(*(center_2 / scale + middle_2), text, ha="center", va="center", size=8, zorder=5)
    for edge, spot_2 in zip(edges, middles, strict=True):
      axes.text(
        *(spot_2 / scale + middle_2),
        f"{edge.distance:.2f}",
        ha="center",
        va="center",
        size=7,
        color="#444444",
        zorder=4,
        bbox={"facecolor": "white", "edgecolor": "none", "pad": 1},
      )
    axes.set_xlabel(f"first principal component ({100 * share_2[0]:.0f} % of the variance)")
    axes.set_ylabel(f"second principal component ({100 * share_2[1]:.0f} % of the variance)")
    figure.text(0.1 / width, 1 - 0.12 / height, title, fontsize=11, ha="left", va="top")
    if groups is not None:
      looks = {kind: {"color": x, "marker": y, "linewidth": 0} for kind, (x, y) in look.items()}
      _legend(figure, axes, looks)

  return _svg(draw, width, height, title)


def training_curves(panels: Mapping[str, Sequence[Curve]], *, title: str) -> str:
  """Numbers over training steps, a panel for each under one another, for one run or several.

  Args:
    panels: Curves by what their values are, for people and with the unit: "training loss (nats)".
    title: Of the picture.

  Raises:
    ValueError: there is no curve, or one has not a value a step.
    InputError: matplotlib is not installed.
  """
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
  left, top, bottom, gap, wide, high = 0.9, 0.5, 0.6, 0.3, 6.0, 2.2
  width = max(left + wide + 0.7 + _text_width(runs, 8), _title_width(title))
  height = top + len(panels) * (high + gap) - gap + bottom
  height = max(height, top + 0.17 * len(runs) + 0.3)

  def draw(figure: Any) -> None:
    first = None
    for place, (name, curves) in enumerate(panels.items()):
      low = height - top - (place + 1) * high - place * gap
      axes = figure.add_axes(
        (left / width, low / height, wide / width, high / height), sharex=first
      )
      for curve in curves:
        values = np.asarray(curve.values, np.float64)
        mark = "o" if len(values) <= 40 else None
        axes.plot(
          np.asarray(curve.steps, np.float64),
          np.where(np.isfinite(values), values, np.nan),
          linewidth=1.5,
          marker=mark,
          markersize=3,
          **look[curve.run],
        )
      axes.set_ylabel(name)
      axes.grid(axis="y", color="#dddddd", linewidth=0.6)
      last = place == len(panels) - 1
      axes.tick_params(labelbottom=last)
      axes.xaxis.set_major_formatter(lambda step, _: f"{step:,.10g}")
      if last:
        axes.set_xlabel("training steps")
      if first is None:
        first = axes
        _legend(figure, axes, look)
    figure.text(0.1 / width, 1 - 0.12 / height, title, fontsize=11, ha="left", va="top")

  return _svg(draw, width, height, title)


def _svg(draw: Callable[[Any], None], width: float, height: float, title: str) -> str:
  """A picture of this size in inches, drawn by `draw(figure)`, as SVG that fits into a page."""
  matplotlib = _import_matplotlib()
  from matplotlib import figure as figures
  from matplotlib.backends import backend_svg

  with matplotlib.rc_context({**matplotlib.rcParamsDefault, **_STYLE}), warnings.catch_warnings():
    # The browser has the letters that the font by which widths are measured lacks.
    warnings.filterwarnings("ignore", message="Glyph .* missing from font")
    picture = figures.Figure(figsize=(width, height))
    draw(picture)
    stream = io.StringIO()
    backend_svg.FigureCanvasSVG(picture).print_svg(stream, metadata={"Date": None, "Title": title})
  return _embeddable(stream.getvalue())


def _import_matplotlib() -> Any:
  try:
    import matplotlib
  except ModuleNotFoundError:
    raise errors.InputError(
      "pictures need the package matplotlib, which is not installed: pip install 'vmsst[report]'"
    ) from None
  return matplotlib


def _embeddable(svg: str) -> str:
  """The element alone, with ids that no other picture has and a role for those who listen."""
  svg = re.sub(r"\s*<metadata>.*?</metadata>", "", svg[svg.index("<svg") :], flags=re.DOTALL)
  own = "f" + hashlib.sha256(svg.encode()).hexdigest()[:10]
  svg = re.sub(r'\bid="', f'id="{own}-', svg)
  svg = re.sub(r'(\burl\(#|href="#)', rf"\1{own}-", svg)
  svg = svg.replace("<title>", f'<title id="{own}-title">', 1)
  svg = svg.replace("<svg ", f'<svg id="{own}" role="img" aria-labelledby="{own}-title" ', 1)
  return re.sub(r'(<style type="text/css">)\*', rf"\1#{own} *", svg)


def _kinds(groups: Sequence[str]) -> list[str]:
  """The groups, with "other" for those that are not among the eight largest, or have one member."""
  counts = Counter(groups)
  several = sorted((name for name in counts if counts[name] > 1), key=lambda x: (-counts[x], x))
  return [name if name in several[: len(_COLORS)] else "other" for name in groups]


def _looks(kinds: Sequence[str]) -> dict[str, tuple[str, str]]:
  """Color and mark of each kind, the largest first and "other" last."""
  counts = Counter(kinds)
  named = sorted(set(kinds) - {"other"}, key=lambda name: (-counts[name], name))
  looks = {name: (_COLORS[place], _MARKS[place]) for place, name in enumerate(named)}
  return looks | ({"other": (_OTHER, "o")} if "other" in counts else {})


def _legend(figure: Any, axes: Any, looks: Mapping[str, Mapping[str, Any]]) -> None:
  """What colors and marks mean, right of the axes."""
  from matplotlib import lines

  place = axes.get_position()
  figure.legend(
    [lines.Line2D([], [], **look) for look in looks.values()],
    # matplotlib leaves out what begins with "_".
    [f"\u200b{name}" if name.startswith("_") else name for name in looks],
    loc="upper left",
    bbox_to_anchor=(place.x1, place.y1),
    fontsize=8,
    frameon=False,
    borderaxespad=0.4,
  )


def _label_centers(
  spots_V2: np.ndarray,
  texts: Sequence[str],
  occupied: Sequence[tuple[np.ndarray, float]],
  side: float,
) -> list[np.ndarray]:
  """Where the middle of each text goes: as near its spot as is free, within the axes.

  All lengths are points of type, counted from the middle of axes that are `side` long; occupied are
  squares, by their middle and half their side.
  """
  middle_B2 = np.array([spot for spot, _ in occupied])
  half_B2 = np.array([[half, half] for _, half in occupied])
  centers = []
  for spot_2, text in zip(spots_V2, texts, strict=True):
    half_2 = _half_size(text)
    best_2, least = spot_2, math.inf
    for choice_2 in _choices(spot_2, half_2):
      shared_B2 = np.maximum(half_2 + half_B2 - np.abs(choice_2 - middle_B2), 0)
      outside = np.maximum(np.abs(choice_2) + half_2 - side / 2, 0).sum()
      over = float(shared_B2.prod(axis=1).sum() + 100 * outside)
      if over < least:
        best_2, least = choice_2, over
      if not over:
        break
    middle_B2 = np.concatenate([middle_B2, [best_2]])
    half_B2 = np.concatenate([half_B2, [half_2]])
    centers.append(best_2)
  return centers


def _choices(spot_2: np.ndarray, half_2: np.ndarray) -> Iterator[np.ndarray]:
  """Places around a spot, the nearest first: right, above, left, below and between."""
  for ring in range(12):
    turns = 8 if ring < 2 else 16
    for turn in range(turns):
      angle = turn * math.tau / turns
      yield spot_2 + np.array([math.cos(angle), math.sin(angle)]) * (half_2 + 4 + 7 * ring)


def _half_size(text: str) -> np.ndarray:
  """Half the width and height of a text of size 8, in points of type."""
  return np.array([_text_width([text], 8) / _POINT / 2, 5.0])


def _text_width(texts: Sequence[str], size: float) -> float:
  """Inches that the longest text takes, about; wide letters count twice."""
  units = (sum(2 if ord(letter) > 0x2E80 else 1 for letter in text) for text in texts)
  return 0.6 * size * _POINT * max(units, default=0)


def _title_width(title: str) -> float:
  return 0.3 + _text_width([title], 11)


def _ink(color: Sequence[float]) -> str:
  """Black or white, whichever stands out more from a color, by the contrast that WCAG defines."""
  linear = [x / 12.92 if x <= 0.04045 else ((x + 0.055) / 1.055) ** 2.4 for x in color[:3]]
  luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
  return "black" if luminance > 0.179 else "white"
