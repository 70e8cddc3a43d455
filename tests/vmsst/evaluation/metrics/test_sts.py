import warnings

import numpy as np
import pytest
from scipy import stats

from vmsst.evaluation.metrics import sts


def test_correlations_are_those_of_scipy_with_ties():
  rng = np.random.default_rng(0)
  first, second = rng.normal(size=[40, 6]), rng.normal(size=[40, 6])
  second[::2] += 2 * first[::2]
  second[3], first[3] = second[5], first[5]  # two equal cosines
  gold = rng.integers(0, 6, 40)  # many equal scores
  cosine = [x @ y / np.sqrt((x @ x) * (y @ y)) for x, y in zip(first, second, strict=True)]
  cosine[3] = cosine[5]
  found = sts.cosines(first, second)
  np.testing.assert_allclose(found, cosine, atol=1e-6)
  np.testing.assert_allclose(sts.cosines(first * 7, second * 0.1), found, atol=1e-6)
  assert sts.pearson(found, gold) == pytest.approx(stats.pearsonr(cosine, gold).statistic, abs=1e-6)
  expected = stats.spearmanr(cosine, gold).statistic
  assert sts.spearman(found, gold) == pytest.approx(expected, abs=1e-12)


def test_extremes_checked_by_hand():
  rising, falling = np.array([1.0, 2.0, 4.0]), np.array([9.0, 5.0, 4.0])
  assert sts.spearman(rising, falling) == pytest.approx(-1)
  assert sts.pearson(rising, 3 * rising + 1) == pytest.approx(1)
  tiny = 1e-200 * rising
  assert sts.pearson(tiny, rising) == pytest.approx(1)
  np.testing.assert_allclose(sts.cosines([[0, 0], [1, 1]], [[1, 0], [1, 0]]), [0, np.sqrt(0.5)])


@pytest.mark.parametrize(
  ("x", "message"),
  [
    ([1.0, np.nan, 2.0], "value 1 is not finite"),
    ([1.0, 2.0, np.inf], "value 2 is not finite"),
    ([3.0, 3.0, 3.0], "all 3 values are 3.0"),
    ([1.0], "all 1 values"),
    ([], "numbers must be a list"),
    ([1.0, 2.0], "one length"),
  ],
)
def test_what_has_no_correlation_is_an_error_and_not_a_number(x, message):
  good = np.array([1.0, 2.0, 3.0])
  with warnings.catch_warnings():
    warnings.simplefilter("error")
    for correlation in (sts.pearson, sts.spearman):
      with pytest.raises(ValueError, match=message):
        correlation(good, x)


def test_vectors_have_to_fit_and_to_be_finite():
  vectors = np.eye(3)
  with pytest.raises(ValueError, match="one shape"):
    sts.cosines(vectors, vectors[:2])
  with pytest.raises(ValueError, match="vector 1 contains"):
    sts.cosines(vectors, np.where(np.arange(3)[:, None] == 1, np.nan, vectors))
