import naive_search
import numpy as np
import pytest

from vmsst.evaluation.metrics import xsim


def naive(source, target, margin, k):
  """Returns, by loops, for every source the one of its k nearest targets with the best margin."""
  search = naive_search.Naive(source, target, k, margin)
  return [
    max(sorted(near), key=lambda j, i=i: search.score(i, j)) for i, near in enumerate(search.near_x)
  ]


@pytest.mark.parametrize("margin", ["ratio", "distance", "absolute"])
@pytest.mark.parametrize(("n", "m", "k"), [(40, 40, 4), (15, 60, 4), (3, 2, 4), (1, 1, 4)])
def test_choices_equal_plain_loops_both_ways(margin, n, m, k):
  rng = np.random.default_rng(n + m)
  source, target = rng.normal(size=[n, 6]) + 0.4, rng.normal(size=[m, 6]) + 0.4
  shared = min(n, m)
  target[:shared] = source[:shared] + 0.8 * rng.normal(size=[shared, 6])
  forward, backward = xsim.nearest(3 * source, target, margin=margin, neighbors=k)
  assert forward.margin_N.tolist() == naive(source, target, margin, k)
  assert backward.margin_N.tolist() == naive(target, source, margin, k)
  assert forward.cosine_N.tolist() == naive(source, target, "absolute", k)
  near = naive_search.Naive(source, target, k, margin).near_x
  often = [sum(j in rows for rows in near) for j in range(m)]
  mean = sum(often) / m
  second, third = (sum((x - mean) ** power for x in often) / m for power in (2, 3))
  assert forward.hubness == pytest.approx(third / second**1.5 if second else 0.0)


def test_errors_are_counted_by_text_and_by_type():
  texts = ["it is 3", "yes", "yes", "no", "it is 4", "it is not 3", "odd"]
  changes = {"it is 4": ("it is 3", "Number"), "it is not 3": ("it is 3", "Causality")}
  nearest = np.array([4, 2, 1, 5])  # an own change; twice the same text; a change of another
  assert xsim.wrong(nearest, texts) == [0, 3]
  assert xsim.error_rate(nearest, texts) == 0.5
  assert xsim.error_types(nearest, texts, changes) == {"Number": 1, "Misaligned": 1}
  assert xsim.error_types(np.array([0, 6, 1, 3]), texts, changes) == {"Misaligned": 1}
