import re
import sys
from xml.etree import ElementTree

import numpy as np
import pytest

pytest.importorskip("matplotlib")

from vmsst import errors
from vmsst.evaluation.metrics import clustering
from vmsst.evaluation.report import plots

SVG = "{http://www.w3.org/2000/svg}"
TITLE = "Errors <of> _all_ & $more$"
LABELS = ["deu", "spa", "por", "_ita", "$x$"]
ERRORS = np.array([[abs(i - j) * 10 + i + j / 10 for j in range(5)] for i in range(5)], float)
TREE = clustering.tree(clustering.distances(ERRORS))
CURVES = {
  "loss (nats)": [
    plots.Curve("_first", [0, 10, 20], [3.0, float("nan"), 1.0]),
    plots.Curve("学 $2$", [0, 10], [4.0, 2.0]),
  ],
  "accuracy (%)": [plots.Curve("_first", [20], [50.0])],
}


def heat_map() -> str:
  return plots.heat_map(ERRORS, LABELS, order=[4, 3, 2, 1, 0], title=TITLE)


def tree() -> str:
  families = ["Germanic", "Romance", "Romance", "Romance", "Greek"]
  return plots.dendrogram(TREE, LABELS, families, title=TITLE)


def sentences() -> str:
  points = np.array([[0.1, 0.2], [0.3, -0.1], [0.0, 0.0], [-0.4, 0.1], [0.1, 0.2]])
  edges = [plots.Edge(0, 1, 0.5), plots.Edge(1, 2, 0.25)]
  return plots.sentence_plot(points, LABELS, share_2=[0.5, 0.25], title=TITLE, edges=edges)


def curves() -> str:
  return plots.training_curves(CURVES, title=TITLE)


def comparison() -> str:
  scores = [
    plots.Scores("one\nlabel", [-20.0, 50.0], ["", "†"], [40.0, 60.0], 60.0, "best one"),
    plots.Scores("two", [None, 0.25], ["", ""], [10.0], 10.0, "only one"),
  ]
  return plots.comparison(scores, ["_first", "学 $2$"], title=TITLE)


def texts(svg: str) -> dict[str, list[tuple[float, float]]]:
  """Returns the positions, from left and top, of each text of a plot."""
  found: dict[str, list[tuple[float, float]]] = {}
  for element in ElementTree.fromstring(svg).iter(f"{SVG}text"):
    place = float(element.get("x", "nan")), float(element.get("y", "nan"))
    if np.isnan(place[0]):
      numbers = re.findall(r"-?[\d.]+", element.get("transform", ""))
      place = float(numbers[0]), float(numbers[1])
    found.setdefault("".join(element.itertext()).strip("\u200b"), []).append(place)
  return found


@pytest.mark.parametrize("draw", [heat_map, tree, sentences, curves, comparison])
def test_a_figure_is_self_contained(draw):
  svg = draw()
  assert svg == draw()
  root = ElementTree.fromstring(svg)
  title = root.find(f"{SVG}title")
  assert (root.tag, root.get("role"), title.text) == (f"{SVG}svg", "img", TITLE)
  assert root.get("aria-labelledby") == title.get("id")
  assert root.find(f".//{SVG}script") is None
  assert root.find(f".//{SVG}metadata") is None
  ids = [element.get("id") for element in root.iter() if element.get("id")]
  assert len(ids) == len(set(ids))
  links = re.findall(r'href="([^"]*)"|url\(([^)]*)\)', svg)
  for link in (a or b for a, b in links):
    assert link.startswith("data:image/png") or link.removeprefix("#") in ids, link
  assert "sans-serif" in svg
  shown = texts(svg)
  assert TITLE in shown
  names = ["_first", "学 $2$"] if draw in (curves, comparison) else LABELS
  for name in names:
    assert any(name in text.split(", ") or text.endswith(f" {name}") for text in shown), name


def test_figures_of_one_page_share_no_ids():
  draws = (heat_map, tree, sentences, curves, comparison)
  ids = [set(re.findall(r'\bid="([^"]+)"', draw())) for draw in draws]
  assert sum(map(len, ids)) == len(set().union(*ids))


def test_numbers_of_a_heat_map_stand_at_their_row_and_column():
  shown = texts(heat_map())
  columns = {label: min(shown[label], key=lambda place: place[1]) for label in LABELS}
  rows = {label: max(shown[label], key=lambda place: place[1]) for label in LABELS}
  assert sorted(LABELS, key=lambda label: columns[label][0]) == LABELS[::-1]
  assert sorted(LABELS, key=lambda label: rows[label][1]) == LABELS[::-1]
  for i, j in np.argwhere(~np.eye(5, dtype=bool)):
    (place,) = shown[f"{ERRORS[i, j]:.1f}"]
    assert abs(place[0] - columns[LABELS[j]][0]) < 5, (i, j)
    assert abs(place[1] - rows[LABELS[i]][1]) < 5, (i, j)


def test_averages_stand_after_the_last_row_and_column_of_a_heat_map():
  shown = texts(heat_map())
  numbers = {place: text for text, places in shown.items() for place in places}
  labels = [*LABELS, "average"]
  column = [min(shown[label], key=lambda place: place[1])[0] for label in labels]
  row = [max(shown[label], key=lambda place: place[1])[1] for label in labels]

  def number_at(i, j):
    (found,) = (x for (a, b), x in numbers.items() if np.hypot(a - column[j], b - row[i]) < 5)
    return float(found)

  for place in range(5):
    others = [i for i in range(5) if i != place]
    queries, searched = (sum(errors_LL[place, others]) / 4 for errors_LL in (ERRORS, ERRORS.T))
    assert number_at(place, 5) == pytest.approx(queries, abs=0.0501)
    assert number_at(5, place) == pytest.approx(searched, abs=0.0501)
  assert number_at(5, 5) == pytest.approx((ERRORS.sum() - np.trace(ERRORS)) / 20, abs=0.0501)


def test_languages_of_a_tree_stand_in_its_order_with_their_families():
  shown = texts(tree())
  found = sorted(
    (name for name in shown if name.count(", ") == 1), key=lambda name: shown[name][0][1]
  )
  assert [name.split(", ")[0] for name in found] == [
    LABELS[leaf] for leaf in clustering.leaf_order(TREE)
  ]
  assert {"spa, Romance", "deu, Germanic", "$x$, Greek"} <= set(found)


def test_scores_stand_on_a_line_each_from_low_to_high():
  shown = texts(comparison())
  lines = ["-20.0 _first", "50.0† 学 $2$", "60.0 best one", "_first: –", "0.25 学 $2$"]
  places = [shown[text][0] for text in [*lines, "10.0 only one"]]
  heights = [y for _, y in places]
  assert heights == sorted(heights)
  assert min(np.diff(heights)) > 10  # the height of a line of text, in points
  # The published values of the first group reach further than the others.
  assert places[0][0] == places[3][0] < places[1][0] < places[2][0]


def test_labels_of_a_crowded_figure_do_not_overlap():
  count = 60
  rng = np.random.default_rng(0)
  labels = [f"l{number:02}" for number in range(count)]
  points = rng.normal(size=[count, 2]) * 0.1
  shown = texts(plots.sentence_plot(points, labels, share_2=[0.1, 0.1], title="Crowded"))
  places = np.array([shown[label][0] for label in labels])
  x, y = (np.abs(places[:, None, axis] - places[None, :, axis]) for axis in (0, 1))
  apart = (x > 12) | (y > 8) | np.eye(count, dtype=bool)  # the size of three letters, in points
  assert apart.all()


def test_equal_errors_equal_points_and_many_languages_can_be_plotted():
  none = np.zeros([3, 3])
  assert "0.0" in texts(plots.heat_map(none, "abc", order=[0, 1, 2], title="None"))
  plots.dendrogram(clustering.tree(none), "abc", "xyz", title="None")
  plots.sentence_plot(np.zeros([3, 2]), "abc", share_2=[0, 0], title="None")
  many = np.full([45, 45], 50.0)
  labels = [f"l{number:03}" for number in range(45)]
  shown = texts(plots.heat_map(many, labels, order=range(45), title="Many"))
  assert "50.0" not in shown  # in color only
  assert all(len(shown[label]) == 2 for label in labels)


def test_what_cannot_be_plotted_is_an_error():
  with pytest.raises(ValueError, match="2 labels"):
    plots.heat_map(np.zeros([3, 3]), "ab", order=[0, 1], title="x")
  with pytest.raises(ValueError, match="order"):
    plots.heat_map(np.zeros([2, 2]), "ab", order=[0, 0], title="x")
  with pytest.raises(ValueError, match="finite"):
    plots.heat_map(np.full([2, 2], np.nan), "ab", order=[0, 1], title="x")
  with pytest.raises(ValueError, match="1 families for 5"):
    plots.dendrogram(TREE, LABELS, ["Greek"], title="x")
  with pytest.raises(ValueError, match="finite"):
    plots.sentence_plot(np.full([2, 2], np.inf), "ab", share_2=[0, 0], title="x")
  astray = [plots.Edge(0, 2, 0.5)]
  with pytest.raises(ValueError, match="no point"):
    plots.sentence_plot(np.zeros([2, 2]), "ab", share_2=[0, 0], title="x", edges=astray)
  with pytest.raises(ValueError, match="no scores"):
    plots.comparison([], ["a"], title="x")
  one = plots.Scores("two", [1.0], [""], [10.0], 10.0, "only one")
  with pytest.raises(ValueError, match="two: 1 values for 2 encoders"):
    plots.comparison([one], ["a", "b"], title="x")
  with pytest.raises(ValueError, match="no curve"):
    plots.training_curves({"loss": []}, title="x")
  with pytest.raises(ValueError, match="loss of a: 2 steps and 1 values"):
    plots.training_curves({"loss": [plots.Curve("a", [1, 2], [1.0])]}, title="x")


def test_without_matplotlib_the_message_says_what_to_install(monkeypatch):
  monkeypatch.setitem(sys.modules, "matplotlib", None)
  with pytest.raises(errors.InputError, match=r"pip install 'vmsst\[report\]'"):
    heat_map()
