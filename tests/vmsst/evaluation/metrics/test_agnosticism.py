import numpy as np
import pytest

from vmsst.evaluation.metrics import agnosticism
from vmsst.evaluation.report import papers

# Table 4 of the paper, with its averages: en, two Polish versions, three Russian ones, uk.
PRINTED = {
  tuple(each.of.rpartition(" ")[2].split("->")): each.value
  for each in papers.load()
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


def test_error_matrix_equals_loops_over_single_vectors():
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


def test_means_equal_the_margins_of_the_papers_table():
  source_L, target_L = map(agnosticism.mean_errors, (ALICE, ALICE.T))
  assert source_L == pytest.approx([PRINTED[label, "*"] for label in LABELS], abs=0.0101)
  assert target_L == pytest.approx([PRINTED["*", label] for label in LABELS], abs=0.0101)


def test_versions_of_one_language_are_spread_around_every_other_text():
  groups = ["en", "pl", "pl", "ru", "ru", "ru", "uk"]
  expected = []
  for versions in ((1, 2), (3, 4, 5)):
    others = [row for row in range(7) if row not in versions]
    for queries in (True, False):
      for other in others:
        cells = [ALICE[x, other] if queries else ALICE[other, x] for x in versions]
        expected.append(max(cells) - min(cells))
  spreads = agnosticism.version_spreads(ALICE, groups)
  assert spreads == pytest.approx(expected)
  assert spreads[0] == pytest.approx(23.88 - 5.06)  # Polish queries for English
  assert spreads[5] == pytest.approx(25.56 - 6.18)
  assert agnosticism.version_spreads(ALICE, list("abcdefg")) == []
  assert agnosticism.version_spreads(ALICE, ["en"] * 7) == []


def test_similar_languages_are_neighbors_in_the_tree():
  error_LL = np.array([[0, 1, 2, 9], [1, 0, 6, 5], [6, 6, 0, 7], [9, 5, 7, 0.0]])
  # Of both directions: 0 and 2 have 4. Means of the pairs: (4 + 6) / 2 and (9 + 5 + 7) / 3.
  tree_M4 = agnosticism.language_tree(error_LL)
  np.testing.assert_array_equal(tree_M4[:, 2], [1, 5, 7])
  assert {*tree_M4[0, :2]} == {0, 1}
