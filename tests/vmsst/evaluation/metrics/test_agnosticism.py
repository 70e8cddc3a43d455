import numpy as np
import pytest

from vmsst.evaluation.metrics import agnosticism, clustering
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


def test_averages_are_those_at_the_edges_of_the_table():
  found = agnosticism.averages(ALICE)
  for place, label in enumerate(LABELS):
    assert found.source_L[place] == pytest.approx(PRINTED[label, "*"], abs=0.0101)
    assert found.target_L[place] == pytest.approx(PRINTED["*", label], abs=0.0101)
  assert found.overall == pytest.approx(np.mean([PRINTED[x, "*"] for x in LABELS]), abs=0.0101)


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


def test_what_is_no_number_or_of_no_shape_is_an_error():
  good = np.eye(3)
  bad = good.copy()
  bad[1, 1] = np.nan
  with pytest.raises(ValueError, match="finite"):
    agnosticism.error_matrix([good, bad])
  for wrong in ([good, good[:2]], [good], [good[:0], good[:0]]):
    with pytest.raises(ValueError, match="one shape"):
      agnosticism.error_matrix(wrong)
  with pytest.raises(ValueError, match="finite"):
    agnosticism.principal_plane(bad)
  with pytest.raises(ValueError, match="row 1, column 1 is not finite"):
    agnosticism.averages(bad)
  with pytest.raises(ValueError, match="at least two languages"):
    agnosticism.averages(np.zeros([1, 1]))


# Table 3 of the paper, "The Little Prince", without French.
def random_distances(seed: int, count: int) -> np.ndarray:
  return clustering.distances(np.random.default_rng(seed).uniform(1, 100, [count, count]))


def members(tree_M4: np.ndarray) -> list[frozenset[int]]:
  """Returns the languages of each cluster of a tree: single ones first, then those of its rows."""
  found = [frozenset([leaf]) for leaf in range(len(tree_M4) + 1)]
  for first, second, *_ in tree_M4:
    found.append(found[int(first)] | found[int(second)])
  return found


def test_distances_are_the_mean_of_both_directions():
  distance = clustering.distances([[7.0, 1.0], [4.0, 9.0]])
  np.testing.assert_array_equal(distance, [[0, 2.5], [2.5, 0]])
  for wrong in ([[0, -1], [1, 0]], [[0, np.nan], [1, 0]], [[0, 1, 2], [1, 0, 3]]):
    with pytest.raises(ValueError, match=r"negative|finite|matrix"):
      clustering.distances(wrong)


@pytest.mark.parametrize("seed", range(3))
def test_clusters_are_those_of_scikit_learn(seed):
  cluster = pytest.importorskip("sklearn.cluster")
  distance = random_distances(seed, 14)
  tree = clustering.tree(distance)
  assert sorted(clustering.leaf_order(tree)) == list(range(14))
  for count in (1, 2, 5, 13, 14):
    found = clustering.clusters(tree, count)
    peer = cluster.AgglomerativeClustering(count, metric="precomputed", linkage="average")
    assert found.tolist() == clustering.numbered(peer.fit_predict(distance).tolist()).tolist()
  for count in (0, 15):
    with pytest.raises(ValueError, match=f"cannot form {count} clusters"):
      clustering.clusters(tree, count)


def test_a_cut_makes_as_many_clusters_as_asked_for_even_of_equal_distances():
  tree = clustering.tree(clustering.distances(np.full([6, 6], 0.25)))
  for count in range(1, 7):
    assert len(set(clustering.clusters(tree, count).tolist())) == count


def test_agreement_of_groupings_is_that_of_scikit_learn():
  metrics = pytest.importorskip("sklearn.metrics")
  rng = np.random.default_rng(4)
  cases = [(rng.integers(0, 4, 20).tolist(), rng.integers(0, 6, 20).tolist()) for _ in range(5)]
  cases += [([0] * 4, [0] * 4), (list("abcd"), list("wxyz")), ([0] * 4, list("abcd")), ([1], [2])]
  cases += [([0, 0, 1, 1], list("aabb")), ([0, 0, 1, 1], list("abab"))]
  for first, second in cases:
    expected = metrics.adjusted_rand_score(first, second)
    assert clustering.adjusted_rand_index(first, second) == pytest.approx(expected, abs=1e-12)
  table = metrics.cluster.contingency_matrix(*cases[0])
  assert clustering.purity(*cases[0]) == pytest.approx(table.max(axis=1).sum() / 20)
  for function in (clustering.purity, clustering.adjusted_rand_index):
    for first, second in (([0, 1], [0]), ([], [])):
      with pytest.raises(ValueError, match=f"{len(first)} and {len(second)}"):
        function(first, second)


def test_cophenetic_correlation_is_that_of_the_heights_at_which_pairs_meet():
  distance = random_distances(5, 8)
  tree = clustering.tree(distance)
  branches = members(tree)
  pairs = [(i, j) for i in range(8) for j in range(i)]
  heights = []
  for i, j in pairs:
    rows = [row for row in range(7) if {i, j} <= branches[8 + row]]
    heights.append(min(tree[row, 2] for row in rows))
  expected = np.corrcoef(heights, [distance[pair] for pair in pairs])[0, 1]
  assert clustering.cophenetic_correlation(tree, distance) == pytest.approx(expected)
  same = clustering.distances(np.full([3, 3], 0.1))
  with pytest.raises(ValueError, match=r"all 3 distances are 0\.1"):
    clustering.cophenetic_correlation(clustering.tree(same), same)
