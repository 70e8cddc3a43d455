import numpy as np
import pytest

from vmsst.evaluation.metrics import agnosticism
from vmsst.evaluation.report import published

# Table 4 of the paper, with its averages: en, two Polish versions, three Russian ones, uk.
PRINTED = {
  tuple(each.of.rpartition(" ")[2].split("->")): each.value
  for each in published.load()
  if (each.paper, each.table) == ("agnostic", "4") and each.of
}
LABELS = ["en", "pl_1", "pl_2", "ru_1", "ru_2", "ru_3", "uk"]
ALICE = np.array([[PRINTED.get((x, y), 0) for y in LABELS] for x in LABELS])


def test_rows_with_repeated_empty_and_long_texts_are_left_out():
  english = ["a b", "c", "d", "e  ", "f", "a  b ", "g", "c", "h"]
  german = ["A", "B B B", "  ", "E", "E", "F", "G", "H", "B B B"]
  # 1: three words. 2: empty. 4 and 5 repeat rows 3 and 0. 7 and 8 repeat only skipped rows, but 8
  # is too long again.
  rows = agnosticism.usable_rows([english, german], max_words=2)
  assert rows.tolist() == [0, 3, 6, 7]
  assert agnosticism.usable_rows([english, german]).tolist() == [0, 1, 3, 6]
  assert agnosticism.usable_rows([[" ".join("w" * 50)], ["x"]]).tolist() == [0]
  assert agnosticism.usable_rows([[" ".join("w" * 51)], ["x"]]).tolist() == []
  with pytest.raises(ValueError, match=r"\[2, 1\]"):
    agnosticism.usable_rows([["a", "b"], ["c"]])


def test_error_matrix_is_that_of_loops_over_single_vectors():
  rng = np.random.default_rng(0)
  # At a width of 4, cosines of +-1 are exact, and many are tied.
  first, second = (rng.choice([-1.0, 1.0], [12, 4]) for _ in range(2))
  third = np.where(rng.uniform(size=[12, 1]) < 0.5, first, second)
  vectors = [first, 0.1 * second, 30 * third]
  error_LL = agnosticism.error_matrix(vectors)
  for i, source in enumerate(vectors):
    for j, target in enumerate(vectors):
      wrong = 0
      for row, query in enumerate(source):
        scores = [round(float(query @ x / np.abs(query[0] * x[0])), 6) for x in target]
        wrong += scores.index(max(scores)) != row
      assert error_LL[i, j] == pytest.approx(0 if i == j else wrong / 12)
  assert 0 < error_LL[0, 2] < error_LL[0, 1]


def test_equal_vectors_are_all_errors_but_one_and_one_sentence_is_none():
  error_LL = agnosticism.error_matrix([np.ones([5, 3])] * 3)
  np.testing.assert_allclose(error_LL, 0.8 * (1 - np.eye(3)))
  np.testing.assert_array_equal(agnosticism.error_matrix([np.ones([1, 3])] * 2), np.zeros([2, 2]))


def test_averages_are_those_that_the_paper_prints():
  found = agnosticism.averages(ALICE + 100 * np.eye(7))  # the diagonal does not count
  np.testing.assert_allclose(found.source_L, [PRINTED[x, "*"] for x in LABELS], atol=0.0051)
  np.testing.assert_allclose(found.target_L, [PRINTED["*", x] for x in LABELS], atol=0.0051)
  assert found.overall == pytest.approx(24.24, abs=0.0051)


def test_versions_of_one_language_stand_apart_from_other_pairs():
  found = agnosticism.within_and_between(ALICE, ["en", "pl", "pl", "ru", "ru", "ru", "uk"])
  within = [18.26, 20.22, 21.63, 33.99, 21.35, 27.25, 35.67, 29.78]
  assert found["within"] == pytest.approx(sum(within) / 8)
  assert found["between"] == pytest.approx((ALICE.sum() - sum(within)) / 34)
  assert set(agnosticism.within_and_between(ALICE[:2, :2], ["en", "pl"])) == {"between"}
  assert set(agnosticism.within_and_between(ALICE[1:3, 1:3], ["pl", "pl"])) == {"within"}
  with pytest.raises(ValueError, match="2 groups for 7"):
    agnosticism.within_and_between(ALICE, ["en", "pl"])


def test_versions_of_one_language_are_spread_around_every_other_text():
  found = agnosticism.version_spreads(ALICE, ["en", "pl", "pl", "ru", "ru", "ru", "uk"])
  assert [(each.group, each.queries, each.other) for each in found] == [
    *(("pl", way, other) for way in (True, False) for other in (0, 3, 4, 5, 6)),
    *(("ru", way, other) for way in (True, False) for other in (0, 1, 2, 6)),
  ]
  to_english, from_english = found[0], found[5]
  assert (to_english.lowest, to_english.highest) == (2, 1)
  assert to_english.difference == pytest.approx(23.88 - 5.06)
  assert from_english.difference == pytest.approx(25.56 - 6.18)
  assert (found[10].lowest, found[10].highest) == (4, 5)  # Russian queries for English
  assert agnosticism.version_spreads(ALICE, list("abcdefg")) == []
  assert agnosticism.version_spreads(ALICE, ["en"] * 7) == []
  with pytest.raises(ValueError, match="2 groups for 7"):
    agnosticism.version_spreads(ALICE, ["en", "pl"])


def test_distances_along_a_path_of_quarter_turns():
  english = np.array([[1.0, 0.0], [0.0, 2.0]])
  german = np.array([[0.0, 3.0], [0.0, 1.0]])
  chinese = np.array([[-1.0, 0.0], [5.0, 0.0]])
  path = agnosticism.path_distances([english, german, chinese])
  np.testing.assert_allclose(path.step_S, [2**0.5 / 2, 2**0.5])
  np.testing.assert_allclose(path.start_S, [2**0.5 / 2, (2 + 2**0.5) / 2])


def test_the_typical_row_is_neither_the_tightest_nor_the_widest():
  first = np.array([[1.0, 0.0], [0.0, 1.0], [3.0, 0.0]])
  second = np.array([[-1.0, 0.0], [0.0, 2.0], [0.0, 3.0]])
  assert agnosticism.typical_row([first, second]) == 2
  assert agnosticism.typical_row([first[:1], second[:1]]) == 0


def test_the_plane_is_that_of_scikit_learn_whatever_the_signs():
  decomposition = pytest.importorskip("sklearn.decomposition")
  vectors = np.random.default_rng(1).normal(size=[9, 20])
  plane = agnosticism.principal_plane(7 * vectors)
  units = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
  reference = decomposition.PCA(2, svd_solver="full").fit(units)
  np.testing.assert_allclose(np.abs(plane.point_V2), np.abs(reference.transform(units)), atol=1e-5)
  np.testing.assert_allclose(plane.share_2, reference.explained_variance_ratio_, rtol=1e-5)
  mirrored = agnosticism.principal_plane(-vectors)
  np.testing.assert_allclose(mirrored.point_V2, plane.point_V2, atol=1e-5)


@pytest.mark.parametrize("count", [1, 4])
def test_versions_without_differences_lie_on_one_point(count):
  vector = np.random.default_rng(2).normal(size=[1, 8])
  plane = agnosticism.principal_plane(np.repeat(vector, count, axis=0))
  np.testing.assert_array_equal(plane.point_V2, np.zeros([count, 2]))
  np.testing.assert_array_equal(plane.share_2, [0, 0])


def test_two_versions_lie_on_a_line_as_far_apart_as_they_are():
  plane = agnosticism.principal_plane(np.array([[2.0, 0.0], [0.0, 1.0]]))
  np.testing.assert_allclose(plane.point_V2, [[0.5**0.5, 0], [-(0.5**0.5), 0]], atol=1e-6)
  np.testing.assert_allclose(plane.share_2, [1, 0])


def test_what_is_no_number_or_of_no_shape_is_an_error():
  good = np.eye(3)
  bad = good.copy()
  bad[1, 1] = np.nan
  for function in (
    agnosticism.error_matrix,
    agnosticism.path_distances,
    agnosticism.typical_row,
  ):
    with pytest.raises(ValueError, match="finite"):
      function([good, bad])
    for wrong in ([good, good[:2]], [good], [good[:0], good[:0]]):
      with pytest.raises(ValueError, match="one shape"):
        function(wrong)
  with pytest.raises(ValueError, match="finite"):
    agnosticism.principal_plane(bad)
  with pytest.raises(ValueError, match="row 1, column 1 is not finite"):
    agnosticism.averages(bad)
  with pytest.raises(ValueError, match="at least two languages"):
    agnosticism.averages(np.zeros([1, 1]))
