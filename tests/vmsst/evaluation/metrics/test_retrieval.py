import naive_search
import numpy as np
import pytest

from vmsst.evaluation.metrics import retrieval
from vmsst.search import exact_search


@pytest.mark.parametrize(
  ("answer", "expected"),
  [
    ("The Beatles", "beatles"),
    ("  an  Apple,\ta day!", "apple day"),
    ("U.S.A.", "usa"),
    ("O'Brien–the great", "obrien– great"),  # ASCII punctuation only; a dash ends a word
    ("Ångström 1,000", "ångström 1000"),
  ],
)
def test_answers_are_normalized(answer, expected):
  assert retrieval.normalize_answer(answer) == expected
  assert retrieval.normalize_answers([answer, expected]) == {expected}


def test_accuracy_of_a_matrix_checked_by_hand():
  # Cosines of sources (rows) and targets (columns); * is the maximum of a row, + of a column:
  #   0.8    1.0*+  0.6
  #   0.6    0.0    0.8*
  #   1.0*+  0.8    0.96+
  source = np.array([[0.0, 2.0], [1.0, 0.0], [0.6, 0.8]])
  target = np.array([[6.0, 8.0], [0.0, 1.0], [8.0, 6.0]])
  accuracy = retrieval.translation_accuracy(source, target)
  assert accuracy == pytest.approx({"forward": 0, "backward": 1 / 3, "average": 1 / 6})
  accuracy = retrieval.translation_accuracy(source, target[[1, 2, 0]])
  assert accuracy == pytest.approx({"forward": 1, "backward": 2 / 3, "average": 5 / 6})
  # The first of equal sentences counts.
  equal = np.eye(3)[[0, 1, 1, 2]]
  assert {*retrieval.translation_accuracy(equal, equal).values()} == {0.75}
  texts = "xyyz", "abbc"  # Rows 1 and 2 have equal texts, so that both translations are right.
  assert {*retrieval.translation_accuracy(equal, equal, texts=texts).values()} == {1.0}


def test_rank_metrics_by_hand():
  index = np.array([[3, 1, 0, 2], [0, 2, 1, 3], [2, 0, 1, 3], [1, 3, 2, 0]])
  rows = ({1}, {0, 3}, {1, 2, 3}, {0})  # Their ranks are 2; 1, 4; 1, 3, 4; 4.
  gold = [dict.fromkeys(x, 1) for x in rows]
  metrics = retrieval.rank_metrics(exact_search.Neighbors(index, index), gold, 3)
  gain = 1 / np.log2(3)  # Gain at rank 2. The gains at ranks 1 and 3 are 1 and 0.5.
  gains = gain + 1 / (1 + gain) + 1.5 / (1.5 + gain)
  expected = {"accuracy": 2, "MRR@3": 2.5, "R@3": 1 + 1 / 2 + 2 / 3, "nDCG@3": gains}
  assert metrics == pytest.approx({name: x / 4 for name, x in expected.items()})
  # A query has more relevant rows than k.
  gold = [dict.fromkeys((0, 1, 3), 1)]
  metrics = retrieval.rank_metrics(exact_search.Neighbors(index[:1, 2:], index), gold, 2)
  assert (metrics["R@2"], metrics["nDCG@2"]) == pytest.approx((1 / 3, 1 / (1 + gain)))


def naive(source, target, margin):
  """Returns the target with the best margin among the 4 nearest, per source, by loops."""
  search = naive_search.Naive(source, target, 4, margin)
  return [
    max(sorted(near), key=lambda j, i=i: search.score(i, j)) for i, near in enumerate(search.near_x)
  ]


@pytest.mark.parametrize(("n", "m"), [(40, 40), (15, 60), (3, 2), (1, 1)])
def test_predictions_equal_plain_loops_in_both_directions(n, m):
  rng = np.random.default_rng(n + m)
  source, target = rng.normal(size=[n, 6]) + 0.4, rng.normal(size=[m, 6]) + 0.4
  shared = min(n, m)
  target[:shared] = source[:shared] + 0.8 * rng.normal(size=[shared, 6])
  forward, backward = retrieval.nearest(3 * source, target)
  assert forward.margin_N.tolist() == naive(source, target, "ratio")
  assert backward.margin_N.tolist() == naive(target, source, "ratio")
  assert forward.cosine_N.tolist() == naive(source, target, "absolute")
  near = naive_search.Naive(source, target, 4).near_x
  often = [sum(j in rows for rows in near) for j in range(m)]
  mean = sum(often) / m
  second, third = (sum((x - mean) ** power for x in often) / m for power in (2, 3))
  assert forward.hubness == pytest.approx(third / second**1.5 if second else 0.0)


def test_errors_are_counted_by_text():
  texts = ["it is 3", "yes", "yes", "no", "it is 4", "it is not 3"]
  # Predictions: a changed text, an equal text, an equal text, and another changed text.
  assert retrieval.error_rate(np.array([4, 2, 1, 5]), texts) == 0.5
