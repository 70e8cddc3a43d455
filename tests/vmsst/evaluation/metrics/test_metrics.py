import collections
import warnings

import naive_margins
import numpy as np
import pytest
from scipy import stats

from vmsst import errors
from vmsst.evaluation.metrics import classification, retrieval, scores, sts, xsim
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


def test_recall_looks_at_the_k_nearest_and_no_further():
  index = np.array([[3, 1, 0], [0, 2, 1], [2, 0, 1], [1, 3, 2]])
  near = exact_search.Neighbors(index, np.zeros(index.shape, np.float32))
  gold = [1, 0, 1, 0]  # second, first, third, not at all
  assert [retrieval.recall(near, gold, k) for k in (1, 2, 3, 9)] == [0.25, 0.5, 0.75, 0.75]
  with pytest.raises(ValueError, match="R@0 is undefined"):
    retrieval.recall(near, gold, 0)
  with pytest.raises(ValueError, match="for 4 queries"):
    retrieval.recall(near, gold[:2], 1)


def printed_rows():
  """Returns results and Scores from rows of the VMSST paper's Tables 1, 4 and 7."""
  keys = [key for part in scores.PARTS.values() for key in part]
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
    found = scores.overall(results)
    assert not found.missing
    assert found.value == pytest.approx(score, abs=0.06)


def test_no_score_where_a_part_is_missing():
  results, _ = printed_rows()["1", "VMSST 6L"]
  del results["benchmarks"]["sts"]
  results["absent"]["sts"] = "no folder"
  for benchmark, key in (("bucc", "margin_f1"), ("tatoeba", "average"), ("questions", "mkqa")):
    summary = results["benchmarks"][benchmark]["summary"]
    summary[f"{key} (incomplete)"] = summary.pop(key)
  found = scores.overall(results)
  assert found.value is None
  assert found.parts == {"XL STS": 67.4, "NQ": 37.3}
  assert list(found.missing) == ["English STS", "Tatoeba", "BUCC", "MKQA"]
  assert found.missing["English STS"] == "sts is absent"
  assert found.missing["Tatoeba"] == "tatoeba has no complete average"
  assert found.missing["BUCC"] == "bucc has no complete margin_f1"


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


def test_tiny_numbers_and_vectors_of_zeros():
  rising = np.array([1.0, 2.0, 4.0])
  assert sts.pearson(1e-200 * rising, rising) == pytest.approx(1)
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


def naive(source, target, margin, k):
  """Returns, by loops, for every source the one of its k nearest targets with the best margin."""
  found = naive_margins.Naive(source, target, k, margin)
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


@pytest.mark.parametrize(
  ("source", "target", "options", "message"),
  [
    ([[1.0, np.nan]], [[1.0, 0.0]], {}, "not finite"),
    ([[1.0, 0.0]], [[1.0]], {}, "width"),
    (np.zeros([0, 2]), [[1.0, 0.0]], {}, "0"),
    ([[1.0]], [[1.0]], {"neighbors": 0}, "0"),
    ([[1.0]], [[1.0]], {"margin": "sum"}, "'sum'; known: ratio, distance, absolute"),
  ],
)
def test_what_cannot_be_compared_is_an_error(source, target, options, message):
  with pytest.raises(ValueError, match=message):
    xsim.nearest(np.array(source), np.array(target), **options)
