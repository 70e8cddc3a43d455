import collections
import warnings

import naive_search
import numpy as np
import pytest
from scipy import stats

from vmsst import errors
from vmsst.evaluation.benchmarks import averages, similarity
from vmsst.evaluation.metrics import agnosticism, classification, clustering, retrieval, xsim
from vmsst.evaluation.report import published
from vmsst.search import exact_search


@pytest.mark.parametrize(
  ("answer", "expected"),
  [
    ("The Beatles", "beatles"),
    ("  an  Apple,\ta day!", "apple day"),
    ("U.S.A.", "usa"),
    ("A.", ""),
    ("theatre of Athens", "theatre of athens"),
    ("O'Brien–the great", "obrien– great"),  # ASCII punctuation only; a dash ends a word
    ("Ångström 1,000", "ångström 1000"),
    ("«the»", "« »"),
  ],
)
def test_answers_are_normalized(answer, expected):
  assert retrieval.normalized(answer) == expected


def test_sets_of_answers_meet_after_normalization():
  gold = retrieval.normalized_set(["14 December 1972 UTC", "December 1972"])
  assert gold & retrieval.normalized_set(["1969", "the December, 1972"]) == {"december 1972"}
  assert gold.isdisjoint(retrieval.normalized_set(["1972", "December 1973"]))
  assert retrieval.normalized_set([]) == frozenset()


def _clusters(rng, count, *, classes=4, dim=6, noise=0.2):
  label_N = rng.integers(classes, size=count)
  vectors_ND = 2 * np.eye(dim)[label_N] + noise * rng.normal(size=(count, dim))
  return classification.LabeledVectors(vectors_ND.astype(np.float32), label_N)


def test_the_best_epoch_on_the_dev_set_counts():
  # Training teaches the reverse of the dev set: its first epochs are its best.
  rng = np.random.default_rng(1)
  train = _clusters(rng, 240, classes=2)
  turned = classification.LabeledVectors(train.vectors_ND, 1 - train.label_N)
  config = classification.MlpConfig(hidden=(8,), learning_rate=3e-4, epochs=60, dropout_rate=0.0)
  by_dev = {
    name: classification.transfer_accuracies(
      {"": classification.Split(train, dev)},
      {"test": train},
      num_classes=2,
      seeds=range(6),
      config=config,
    )[""]["test"]
    for name, dev in {"same": train, "turned": turned}.items()
  }
  assert by_dev["same"].min() > 0.95
  assert by_dev["turned"].mean() < 0.6


def test_input_that_cannot_be_used_is_named():
  rng = np.random.default_rng(2)
  few, data = _clusters(rng, 5), _clusters(rng, 40)
  with pytest.raises(errors.InputError, match="en: 5 training vectors do not fill a batch of 12"):
    classification.transfer_accuracies({"en": classification.Split(few, data)}, {}, num_classes=4)
  with pytest.raises(errors.InputError, match="en: a label is not one of the 2 classes"):
    classification.transfer_accuracies({"en": classification.Split(data, data)}, {}, num_classes=2)
  with pytest.raises(ValueError, match=r"\(40, 6\) and \(39,\)"):
    classification.LabeledVectors(data.vectors_ND, data.label_N[1:])


def test_accuracy_of_a_matrix_checked_by_hand():
  # Cosines of sources (rows) and targets (columns); * is the best of a row, + the best of a column:
  #   0.8    1.0*+  0.6
  #   0.6    0.0    0.8*
  #   1.0*+  0.8    0.96+
  source = np.array([[0.0, 2.0], [1.0, 0.0], [0.6, 0.8]])
  target = np.array([[6.0, 8.0], [0.0, 1.0], [8.0, 6.0]])
  near = exact_search.mutual_top_k(source, target, 1)
  assert [x.index_NK[:, 0].tolist() for x in near] == [[1, 2, 0], [2, 0, 2]]
  accuracy = retrieval.translation_accuracy(source, target)
  assert accuracy == pytest.approx({"forward": 0, "backward": 1 / 3, "average": 1 / 6})
  aligned = retrieval.translation_accuracy(source, target[[1, 2, 0]])
  assert aligned == pytest.approx({"forward": 1, "backward": 2 / 3, "average": 5 / 6})


def test_of_equal_sentences_the_first_counts():
  vectors = np.eye(3)[[0, 1, 1, 2]]
  accuracy = retrieval.translation_accuracy(vectors, vectors)
  assert accuracy == {"forward": 0.75, "backward": 0.75, "average": 0.75}
  assert retrieval.translation_accuracy(np.ones([4, 2]), np.ones([4, 2]))["average"] == 0.25


def test_broken_vectors_and_wrong_shapes_are_an_error():
  good = np.eye(3)
  bad = good.copy()
  bad[1, 1] = np.nan
  with pytest.raises(ValueError, match="vector 1 contains a value that is not finite"):
    retrieval.translation_accuracy(good, bad)
  with pytest.raises(ValueError, match="one shape"):
    retrieval.translation_accuracy(good, good[:2])
  with pytest.raises(ValueError, match="one shape"):
    retrieval.translation_accuracy(good[:0], good[:0])


def test_rank_metrics_by_hand():
  index = np.array([[3, 1, 0, 2], [0, 2, 1, 3], [2, 0, 1, 3], [1, 3, 2, 0]])
  gold = [{1}, {0, 3}, {1, 2, 3}, {0}]  # at ranks 2; 1, 4; 1, 3, 4; 4
  found = retrieval.rank_metrics(exact_search.Neighbors(index, index), gold, 3)
  gain = 1 / np.log2(3)  # at rank 2; at ranks 1 and 3, 1 and 0.5
  gains = gain + 1 / (1 + gain) + 1.5 / (1.5 + gain)
  expected = {"accuracy": 2, "MRR@3": 2.5, "R@3": 1 + 1 / 2 + 2 / 3, "nDCG@3": gains}
  assert found == pytest.approx({name: x / 4 for name, x in expected.items()})
  # More texts are right than are asked for.
  found = retrieval.rank_metrics(exact_search.Neighbors(index[:1, 2:], index), [{0, 1, 3}], 2)
  assert (found["R@2"], found["nDCG@2"]) == pytest.approx((1 / 3, 1 / (1 + gain)))


def printed_rows():
  """Returns results and Scores from rows of the VMSST paper's Tables 1, 4 and 7."""
  keys = [key for part in averages.SCORE_PARTS.values() for key in part]
  rows = collections.defaultdict(lambda: ({"absent": {}, "benchmarks": {}}, []))
  for number in published.load():
    if number.paper == "vmsst" and number.table in ("1", "4", "7"):
      results, score = rows[number.table, number.system]
      if number.benchmark == "score":
        score.append(number.value)
      elif (number.benchmark, number.name) in keys:
        found = results["benchmarks"].setdefault(number.benchmark, {"summary": {}, "missing": []})
        found["summary"][number.name] = number.value
  return rows


def test_printed_parts_give_the_printed_score():
  rows = printed_rows()
  assert len(rows) == 12 + 9 + 12
  for results, (score,) in rows.values():
    assert averages.overall_score(results)["Score"] == pytest.approx(score, abs=0.06)


@pytest.mark.parametrize(
  ("benchmark", "key"), [("bucc", "margin_f1"), ("tatoeba", "average"), ("questions", "mkqa")]
)
def test_no_score_where_a_part_lacks_sets(benchmark, key):
  results, _ = printed_rows()["1", "VMSST 6L"]
  summary = results["benchmarks"][benchmark]["summary"]
  summary[f"{key} (incomplete)"] = summary.pop(key)
  assert averages.overall_score(results) == {}


def test_correlations_are_those_of_scipy_with_ties():
  rng = np.random.default_rng(0)
  first, second = rng.normal(size=[40, 6]), rng.normal(size=[40, 6])
  second[::2] += 2 * first[::2]
  second[3], first[3] = second[5], first[5]  # two equal cosines
  gold = rng.integers(0, 6, 40)  # many equal scores
  cosine = [x @ y / np.sqrt((x @ x) * (y @ y)) for x, y in zip(first, second, strict=True)]
  cosine[3] = cosine[5]
  found = similarity.cosines(first, second)
  np.testing.assert_allclose(found, cosine, atol=1e-6)
  np.testing.assert_allclose(similarity.cosines(first * 7, second * 0.1), found, atol=1e-6)
  metrics = similarity.correlations("pairs", ("en",), found, gold).metrics
  assert metrics["pearson"] / 100 == pytest.approx(stats.pearsonr(cosine, gold).statistic, abs=1e-6)
  expected = stats.spearmanr(cosine, gold).statistic
  assert metrics["spearman"] / 100 == pytest.approx(expected, abs=1e-12)


def test_tiny_scores_and_vectors_of_zeros():
  rising = np.array([1.0, 2.0, 4.0])
  found = similarity.correlations("pairs", ("en",), rising, 1e-200 * rising)
  assert found.metrics["pearson"] == pytest.approx(100)
  np.testing.assert_allclose(
    similarity.cosines([[0, 0], [1, 1]], [[1, 0], [1, 0]]), [0, np.sqrt(0.5)]
  )


@pytest.mark.parametrize("same", [[3.0, 3.0, 3.0], [1.0]])
def test_what_has_no_correlation_is_an_error_and_not_a_number(same):
  lists = np.arange(len(same), dtype=float), np.array(same)
  with warnings.catch_warnings():
    warnings.simplefilter("error")
    for cosine, gold in (lists, lists[::-1]):
      with pytest.raises(ValueError, match=rf"for pairs: all {len(same)} values are [\d.]+: no"):
        similarity.correlations("pairs", ("en",), cosine, gold)


def test_vectors_have_to_fit_and_to_be_finite():
  vectors = np.eye(3)
  with pytest.raises(ValueError, match="one shape"):
    similarity.cosines(vectors, vectors[:2])
  with pytest.raises(ValueError, match="vector 1 contains"):
    similarity.cosines(vectors, np.where(np.arange(3)[:, None] == 1, np.nan, vectors))


def naive(source, target, margin, k):
  """Returns, by loops, for every source the one of its k nearest targets with the best margin."""
  found = naive_search.Naive(source, target, k, margin)
  return [
    max(sorted(near), key=lambda j, i=i: found.score(i, j)) for i, near in enumerate(found.near_x)
  ]


@pytest.mark.parametrize("margin", ["ratio", "distance", "absolute"])
@pytest.mark.parametrize(("n", "m", "k"), [(40, 40, 4), (15, 60, 4), (3, 2, 4), (1, 1, 4)])
def test_choices_are_those_of_plain_loops_both_ways(margin, n, m, k):
  rng = np.random.default_rng(n + m)
  source, target = rng.normal(size=[n, 6]) + 0.4, rng.normal(size=[m, 6]) + 0.4
  shared = min(n, m)
  target[:shared] = source[:shared] + 0.8 * rng.normal(size=[shared, 6])
  forward, backward = xsim.nearest(3 * source, target, margin=margin, neighbors=k)
  assert forward.margin_N.tolist() == naive(source, target, margin, k)
  assert backward.margin_N.tolist() == naive(target, source, margin, k)
  assert forward.cosine_N.tolist() == naive(source, target, "absolute", k)
  near = naive_search.Naive(source, target, k, margin).near_x
  often = [sum(j in found for found in near) for j in range(m)]
  mean = sum(often) / m
  second, third = (sum((x - mean) ** power for x in often) / m for power in (2, 3))
  assert forward.hubness == pytest.approx(third / second**1.5 if second else 0.0)


def test_hubs_are_what_margins_are_for_and_ties_go_to_the_first():
  # Cosines: .87 .91 (first source), .57 1.0 (second); the second target is near to both sources.
  # Means: .89 and .79 of the sources, .72 and .95 of the targets. Ratios: 1.08 .99, .76 1.15.
  source, target = np.radians([0, 25]), np.radians([-30, 25])
  sides = [np.stack([np.cos(angle), np.sin(angle)], axis=1) for angle in (source, target)]
  forward, backward = xsim.nearest(*sides, neighbors=2)
  assert forward.cosine_N.tolist() == [1, 1]
  assert forward.margin_N.tolist() == backward.margin_N.tolist() == [0, 1]
  equal, back = xsim.nearest(np.ones([3, 4]), np.ones([5, 4]))  # nothing but ties
  for found in (equal, back):
    assert not found.cosine_N.any()
    assert not found.margin_N.any()


def test_errors_are_counted_by_text_and_by_type():
  texts = ["it is 3", "yes", "yes", "no", "it is 4", "it is not 3", "odd"]
  changes = {"it is 4": ("it is 3", "Number"), "it is not 3": ("it is 3", "Causality")}
  found = np.array([4, 2, 1, 5])  # an own change; twice the same text; a change of another
  assert xsim.wrong(found, texts) == [0, 3]
  assert xsim.error_rate(found, texts) == 0.5
  assert xsim.error_types(found, texts, changes) == {"Number": 1, "Misaligned": 1}
  assert xsim.error_types(np.array([0, 6, 1, 3]), texts, changes) == {"Misaligned": 1}


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
  groups = ["en", "pl", "pl", "ru", "ru", "ru", "uk"]
  expected = []
  for versions in ((1, 2), (3, 4, 5)):
    others = [row for row in range(7) if row not in versions]
    for queries in (True, False):
      for other in others:
        cells = [ALICE[x, other] if queries else ALICE[other, x] for x in versions]
        expected.append(max(cells) - min(cells))
  found = agnosticism.version_spreads(ALICE, groups)
  assert found == pytest.approx(expected)
  assert found[0] == pytest.approx(23.88 - 5.06)  # Polish queries for English
  assert found[5] == pytest.approx(25.56 - 6.18)
  assert agnosticism.version_spreads(ALICE, list("abcdefg")) == []
  assert agnosticism.version_spreads(ALICE, ["en"] * 7) == []
  with pytest.raises(ValueError, match="2 groups for 7"):
    agnosticism.version_spreads(ALICE, ["en", "pl"])


def test_the_plane_is_that_of_scikit_learn_with_the_outermost_points_positive():
  decomposition = pytest.importorskip("sklearn.decomposition")
  vectors = np.random.default_rng(1).normal(size=[9, 20])
  plane = agnosticism.principal_plane(7 * vectors)
  units = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
  reference = decomposition.PCA(2, svd_solver="full").fit(units)
  np.testing.assert_allclose(np.abs(plane.point_V2), np.abs(reference.transform(units)), atol=1e-5)
  np.testing.assert_allclose(plane.share_2, reference.explained_variance_ratio_, rtol=1e-5)
  line_2 = agnosticism.principal_plane(np.array([[2.0, 0.0], [0.0, 1.0]])).point_V2[:, 0]
  np.testing.assert_allclose(line_2, [0.5**0.5, -(0.5**0.5)], atol=1e-6)


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


def test_distances_are_the_mean_of_both_directions():
  distance = clustering.distances([[7.0, 1.0], [4.0, 9.0]])
  np.testing.assert_array_equal(distance, [[0, 2.5], [2.5, 0]])
  for wrong in ([[0, -1], [1, 0]], [[0, np.nan], [1, 0]], [[0, 1, 2], [1, 0, 3]]):
    with pytest.raises(ValueError, match=r"negative|finite|matrix"):
      clustering.distances(wrong)


def test_similar_languages_are_neighbors_in_the_tree():
  error_LL = np.full([4, 4], 50.0)
  error_LL[[0, 2, 1, 3], [2, 0, 3, 1]] = 1.0
  tree = clustering.tree(clustering.distances(error_LL))
  order = clustering.leaf_order(tree)
  assert sorted(map(frozenset, (order[:2], order[2:])), key=min) == [{0, 2}, {1, 3}]
  distance_LL = np.array([[0, 1, 4, 9], [1, 0, 6, 5], [4, 6, 0, 7], [9, 5, 7, 0.0]])
  assert clustering.tree(distance_LL)[:, 2].tolist() == [1, 5, 7]  # means of the pairs
