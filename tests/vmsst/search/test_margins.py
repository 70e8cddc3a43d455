import numpy as np
import pytest
from naive_search import MARGINS, Naive

from vmsst.io import array_files
from vmsst.search import exact_search, margins


def rows_of(pairs):
  return list(zip(pairs.source_P.tolist(), pairs.target_P.tolist(), strict=True))


def naive_f1(pairs, gold):
  """Returns the best F1 over all scores as thresholds."""
  best = (-1.0,)
  for threshold in sorted(set(pairs.score_P.tolist()), reverse=True):
    kept = {pair for pair, x in zip(rows_of(pairs), pairs.score_P, strict=True) if x >= threshold}
    hits = len(kept & set(gold))
    precision, recall = hits / len(kept), hits / len(gold)
    f1 = 2 * precision * recall / (precision + recall) if hits else 0.0
    best = max(best, (f1, precision, recall, threshold), key=lambda x: x[0])
  return best


def make_sides(n, m):
  """Returns vectors, half of which have a near one on the other side."""
  rng = np.random.default_rng(n)
  source, target = rng.normal(size=[n, 5]) + 0.5, rng.normal(size=[m, 5]) + 0.5
  shared = min(n, m) // 2
  target[:shared] = source[:shared] + 0.3 * rng.normal(size=[shared, 5])
  return source, target


# Each source with its nearest target.
NEAREST = {"neighbors": 1, "margin": "absolute", "retrieval": "forward"}


@pytest.mark.parametrize("margin", MARGINS)
@pytest.mark.parametrize("retrieval", ["max", "forward", "backward", "intersection"])
@pytest.mark.parametrize(
  ("n", "m", "k"), [(30, 43, 4), (43, 30, 1), (3, 9, 4), (1, 1, 4), (1, 5, 2)]
)
def test_pairs_are_those_of_plain_loops(n, m, k, margin, retrieval):
  source, target = make_sides(n, m)
  naive = Naive(source, target, k, margin)
  options = {"neighbors": k, "margin": margin, "retrieval": retrieval}
  found = margins.margin_pairs(source, target, **options)
  assert rows_of(found) == naive.pairs(retrieval)
  np.testing.assert_allclose(found.score_P, [naive.score(*x) for x in rows_of(found)], atol=1e-5)
  nearest = margins.margin_pairs(3 * source, target, **NEAREST)
  assert sorted(rows_of(nearest)) == list(enumerate(naive.cosine.argmax(axis=1).tolist()))
  assert (np.diff(nearest.score_P) <= 0).all()


def test_many_pairs_are_chosen_and_sorted_in_blocks(monkeypatch):
  monkeypatch.setattr(array_files, "_IN_MEMORY", 0)
  rng, count = np.random.default_rng(0), exact_search.BLOCK_ROWS + 500
  sides = [rng.normal(size=[count, 2])] * 2
  near = [
    exact_search.Neighbors(rng.integers(count, size=[count, 1]), rng.random([count, 1], "f4"))
    for _ in range(2)
  ]
  (index, cosine), (index_back, cosine_back) = (
    (each.index_NK[:, 0], each.score_NK[:, 0].astype(float)) for each in near
  )
  mean = [(cosine + cosine_back[index]) / 2, (cosine_back + cosine[index_back]) / 2]
  forward = list(zip(-cosine / mean[0], range(count), index.tolist(), strict=True))
  backward = list(zip(-cosine_back / mean[1], index_back.tolist(), range(count), strict=True))
  used, best = (set(), set()), []
  for _, i, j in sorted({*forward, *backward}):
    if i not in used[0] and j not in used[1]:
      used[0].add(i)
      used[1].add(j)
      best.append((i, j))
  options = {"neighbors": 1, "search": lambda *_: tuple(near)}
  assert rows_of(margins.margin_pairs(*sides, **options)) == best
  found = margins.margin_pairs(*sides, retrieval="forward", **options)
  assert rows_of(found) == [pair[1:] for pair in sorted(forward)]
  both = {pair[1:] for pair in forward} & {pair[1:] for pair in backward}
  assert set(rows_of(margins.margin_pairs(*sides, retrieval="intersection", **options))) == both


@pytest.mark.parametrize("margin", MARGINS)
def test_given_pairs_have_the_scores_of_plain_loops(margin):
  source, target = make_sides(15, 15)
  naive = Naive(source, target, 4, margin)
  found = margins.margin_scores(source.tolist(), target, margin=margin)
  np.testing.assert_allclose(found, [naive.score(i, i) for i in range(15)], rtol=1e-5)


def test_copies_of_a_sentence_are_one_neighbor():
  source, target = make_sides(9, 12)
  naive = Naive(source, target, 4)
  pairs = [(3, 2), (0, 2), (3, 0), (0, 1), (8, 8), *((i, i) for i in range(9)), (1, 9), (2, 10)]
  pairs += [(2, 11)]
  rows_2N = np.array(pairs).T
  found = margins.margin_scores(
    source[rows_2N[0]], target[rows_2N[1]], sentences=[7 * x % 13 for x in rows_2N]
  )
  np.testing.assert_allclose(found, [naive.score(*pair) for pair in pairs], rtol=1e-5)


def test_duplicates_and_ties_go_by_row_numbers():
  same = np.ones([4, 2])
  assert rows_of(margins.margin_pairs(same, same, **NEAREST)) == [(0, 0), (1, 0), (2, 0), (3, 0)]
  found = margins.margin_pairs(same, same[:3], neighbors=2)
  assert rows_of(found) == [(0, 0)]  # row 0 is the best of all and can be used once
  assert found.score_P.tolist() == pytest.approx([1.0])
  twice = np.repeat(np.eye(3), 2, axis=0)
  assert rows_of(margins.margin_pairs(twice, np.eye(3), neighbors=1)) == [(0, 0), (2, 1), (4, 2)]


def test_neighborhoods_without_similarity_score_zero():
  for retrieval in ("max", "forward"):
    sides, options = ([[1.0, 0.0]], [[-1.0, 0.1], [0.0, 0.0]]), {"retrieval": retrieval}
    found = margins.margin_pairs(*sides, neighbors=2, **options)
    assert (rows_of(found), found.score_P.tolist()) == ([(0, 0)], [0.0])


def test_no_cosine_of_rounded_vectors_is_above_1():
  vectors_ND = np.random.default_rng(0).normal(size=[400, 6]).astype(np.float32)
  assert margins.margin_pairs(vectors_ND, vectors_ND, margin="absolute").score_P.max() <= 1


def test_f1_is_that_of_every_threshold_tried():
  for seed in range(20):
    rng = np.random.default_rng(seed)
    count = int(rng.integers(1, 12))
    score = np.sort(rng.integers(0, 5, count))[::-1].astype(float)  # many ties
    columns = [np.arange(count), rng.integers(0, 3, count), score]
    pairs = np.rec.fromarrays(columns, dtype=margins.PAIR)
    gold = {(int(i), int(j)) for i, j in rng.integers(0, [count, 3], [5, 2])}
    found = margins.best_f1(pairs, np.array(sorted(gold)))
    expected = naive_f1(pairs, gold)
    assert (found.f1, found.precision, found.recall) == pytest.approx(expected[:3])
    assert found.threshold == expected[3]


def test_broken_input_is_an_error():
  good = np.eye(3)
  for search, options, message in (
    (margins.margin_pairs, {"margin": "rate"}, "margin is 'rate'; known: ratio, distance, abs"),
    (margins.margin_scores, {"margin": "rate"}, "margin is 'rate'"),
    (margins.margin_pairs, {"retrieval": "best"}, "retrieval is 'best'; known: max, forward"),
  ):
    with pytest.raises(ValueError, match=message):
      search(good, good, **options)
  with pytest.raises(ValueError, match="3 sources, 2 targets; pass equally many"):
    margins.margin_scores(good, good[:2])
  with pytest.raises(ValueError, match="0 gold pairs"):
    margins.best_f1(margins.margin_pairs(good, good), np.zeros([0, 2], int))
