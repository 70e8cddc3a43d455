import numpy as np
import pytest

from vmsst.evaluation.metrics import xsim


def naive(source, target, margin, k):
  """Returns, by loops, for every source the one of its k nearest targets with the best margin."""
  unit = [[np.array(x, float) / np.linalg.norm(x) for x in side] for side in (source, target)]
  cosine = [[float(x @ y) for y in unit[1]] for x in unit[0]]
  columns = list(zip(*cosine, strict=True))
  near = [sorted(range(len(row)), key=lambda j, row=row: (-row[j], j))[:k] for row in cosine]
  mean_x = [
    sum(row[j] for j in chosen) / len(chosen) for row, chosen in zip(cosine, near, strict=True)
  ]
  mean_y = [sum(sorted(column)[-k:]) / min(k, len(column)) for column in columns]

  def score(i, j):
    middle = (mean_x[i] + mean_y[j]) / 2
    if margin == "ratio":
      return cosine[i][j] / middle if middle > 0 else 0.0
    return cosine[i][j] - middle if margin == "distance" else cosine[i][j]

  return [max(sorted(chosen), key=lambda j, i=i: score(i, j)) for i, chosen in enumerate(near)]


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


def test_agrees_with_faiss_and_a_scoring_loop():
  faiss = pytest.importorskip("faiss", reason="needs FAISS to compare with")
  rng = np.random.default_rng(1)
  source = rng.normal(size=[80, 16]).astype(np.float32)
  target = (source + 1.2 * rng.normal(size=[80, 16])).astype(np.float32)
  sides = [x / np.linalg.norm(x, axis=1, keepdims=True) for x in (source, target)]
  found = []
  for queries, base in (sides, sides[::-1]):
    index = faiss.IndexFlatIP(16)
    index.add(base)
    found.append(index.search(queries, 4))
  (cosine, rows), (back, _) = found
  means = cosine.mean(axis=1), back.mean(axis=1)
  best = []
  for i in range(80):
    scores = [2 * cosine[i, n] / (means[0][i] + means[1][rows[i, n]]) for n in range(4)]
    best.append(rows[i, int(np.argmax(scores))])
  assert xsim.nearest(source, target)[0].margin_N.tolist() == best


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
