import numpy as np
import pytest

from vmsst.evaluation.metrics import clustering
from vmsst.evaluation.report import published

# Table 3 of the paper, "The Little Prince", without French.
SLAVIC = ["bg", "cs", "hr", "mk", "ru", "sk", "sl", "sr", "uk"]
PRINTED = {
  tuple(each.of.rpartition(" ")[2].split("->")): each.value
  for each in published.load()
  if (each.paper, each.table) == ("agnostic", "3") and each.of
}
LITTLE_PRINCE = np.array([[PRINTED.get((x, y), 0) for y in SLAVIC] for x in SLAVIC])


def random_distances(seed: int, count: int) -> np.ndarray:
  return clustering.distances(np.random.default_rng(seed).uniform(1, 100, [count, count]))


def members(tree_M4: np.ndarray) -> list[frozenset[int]]:
  """Returns the languages of each cluster of a tree: single ones first, then those of its rows."""
  found = [frozenset([leaf]) for leaf in range(len(tree_M4) + 1)]
  for first, second, *_ in tree_M4:
    found.append(found[int(first)] | found[int(second)])
  return found


def test_the_groups_that_the_paper_reads_off_its_table_are_branches_of_the_tree():
  branches = members(clustering.tree(clustering.distances(LITTLE_PRINCE)))
  for group in (["cs", "sk"], ["ru", "uk"], ["bg", "hr", "mk", "sr"]):
    assert frozenset(SLAVIC.index(code) for code in group) in branches


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
