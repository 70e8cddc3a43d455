import base64
import html
import re

import numpy as np
import pytest

from vmsst.evaluation import suite
from vmsst.evaluation.report import plots

pytest.importorskip("matplotlib")


def texts(figure):
  svg = base64.b64decode(figure.source.removeprefix("data:image/svg+xml;base64,")).decode()
  return [html.unescape(x) for x in re.findall(r"<text[^>]*>(.*?)</text>", svg, re.DOTALL)]


def test_errors_are_a_heat_map_with_averages_and_a_tree_with_families():
  codes = ("deu", "eng", "rus", "ukr")
  far_LL = np.array([[(x in codes[:2]) != (y in codes[:2]) for y in codes] for x in codes])
  arrays = {"labels": [*codes], "error": (10.0 * far_LL).tolist()}
  heat_map, tree = plots.errors("here", suite.Result("x", codes, {}, arrays))
  assert (heat_map.title, tree.title) == ("Errors: here", "Languages by error: here")
  cells = texts(heat_map)
  assert [cells.count(x) for x in ("10.0", "0.0", "6.7")] == [8, 4, 9]  # 6.7: the averages
  assert all(cells.count(x) == 2 for x in [*codes, "average"])
  families = {"deu, West Germanic", "eng, West Germanic", "rus, East Slavic", "ukr, East Slavic"}
  assert families < {*texts(tree)}


def test_curves_have_a_panel_for_each_metric_and_gaps_for_values_that_cannot_be_drawn():
  curve = {1: 5.0, 2: -3e38, 3: float("nan")}
  figure = plots.curves("Metrics", {"loss": {"_<run> $5 $6": curve}, "accuracy": {"other": curve}})
  assert {"loss", "accuracy", "_<run> $5 $6", "other", "training steps"} < {*texts(figure)}
