"""Plots show the cosines and the principal components of vectors."""

import base64
import html
import re
import types

import numpy as np
import pytest

import vmsst
from vmsst import errors
from vmsst.evaluation import plots, suite

pytest.importorskip("matplotlib", reason="plots need matplotlib")
VECTORS = np.random.default_rng(0).normal(size=(12, 5)).astype(np.float32)
UNIT = VECTORS / np.linalg.norm(VECTORS, axis=1, keepdims=True)


def test_similarity_shows_the_cosines_of_sentences():
  encoder = types.SimpleNamespace(encode=lambda texts: VECTORS[[int(text) for text in texts]])
  axes = vmsst.plots.similarity(["0", "1", "2"], ["5", "7"], encoder=encoder).axes[0]
  np.testing.assert_allclose(axes.images[0].get_array(), UNIT[:3] @ UNIT[[5, 7]].T, atol=1e-6)
  assert [label.get_text() for label in axes.get_yticklabels()] == ["0", "1", "2"]
  assert len(axes.texts) == 6


def test_languages_shows_two_principal_components_by_language():
  axes = vmsst.plots.languages(VECTORS, ["de", "en", "de"] * 4).axes[0]
  groups = [points.get_offsets() for points in axes.collections]
  assert [len(group) for group in groups] == [8, 4]
  variance = np.concatenate(groups).var(axis=0, ddof=1)
  np.testing.assert_allclose(variance, np.linalg.eigvalsh(np.cov(UNIT.T))[:-3:-1], rtol=1e-5)
  with pytest.raises(errors.InputError, match="12 vectors but 2 labels"):
    vmsst.plots.languages(VECTORS, ["de", "en"])


def texts(figure):
  svg = base64.b64decode(figure.source.removeprefix("data:image/svg+xml;base64,")).decode()
  return [html.unescape(x) for x in re.findall(r"<text[^>]*>(.*?)</text>", svg, re.DOTALL)]


def test_errors_are_a_heat_map_with_averages_and_a_tree_with_families():
  codes = ("deu", "eng", "rus", "ukr")
  far_LL = np.array([[(x in codes[:2]) != (y in codes[:2]) for y in codes] for x in codes])
  arrays = {"labels": [*codes], "error": (10.0 * far_LL).tolist()}
  heat_map, tree = plots.error_figures("here", suite.Result("x", codes, {}, arrays))
  assert (heat_map.title, tree.title) == ("Errors: here", "Languages by error: here")
  cells = texts(heat_map)
  assert [cells.count(x) for x in ("10.0", "0.0", "6.7")] == [8, 4, 9]  # 6.7: the averages
  assert all(cells.count(x) == 2 for x in [*codes, "average"])
  families = {"deu, West Germanic", "eng, West Germanic", "rus, East Slavic", "ukr, East Slavic"}
  assert families < {*texts(tree)}
