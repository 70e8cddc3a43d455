import itertools
import tracemalloc
import zlib

import fake_encoders
import numpy as np
import pytest

from vmsst import errors
from vmsst.evaluation.metrics import alignment
from vmsst.io import text_files
from vmsst.mining import alignment_files, document_alignment
from vmsst.mining.document_alignment import Alignment

WIDTH = 32


def word_vector(word):
  return np.random.default_rng(zlib.crc32(word.encode())).standard_normal(WIDTH)


def make_encoder():
  """An encoder for which languages differ only in case, plus a vector that all texts share."""
  return fake_encoders.FakeEncoder(
    lambda text: 0.5 + sum(word_vector(word) for word in text.lower().split())
  )


def sentences(count, first=0):
  return [f"word{n} other{n * 7}" for n in range(first, first + count)]


def align(source, target, **options):
  return document_alignment.align(source, target, make_encoder(), **options)


def numbers(alignments):
  return [(x.source, x.target) for x in alignments]


def document(rng, count, sizes):
  """Random vectors of groups, all distinct."""
  row_GN = np.arange(sizes * count).reshape(sizes, count)
  vector_FD = rng.standard_normal((sizes * count, 6)).astype(np.float32)
  vector_FD /= np.linalg.norm(vector_FD, axis=1, keepdims=True)
  return document_alignment.Groups(vector_FD, row_GN, rng.integers(5, 60, count).astype(float))


def cost(source, target, i, j, a, b, deletion):
  """The cost of the groups that end at i and j, after the equation of `align_groups`."""
  if not (a and b):
    return deletion * (a + b)
  x, y = (s.vector_FD[s.row_GN[g - 1, n - 1]] for s, g, n in ((source, a, i), (target, b, j)))
  means = [np.vstack([s.vector_FD, np.zeros(6)]).mean(axis=0) for s in (target, source)]
  norm = 1 - (x @ means[0] + y @ means[1]) / 2
  one, other = source.length_N[i - a : i].sum(), target.length_N[j - b : j].sum()
  squared = (one - other) ** 2 / (6.8 * max(one + other, 1) / 2)
  return (a * b - (a - 1) * (b - 1) / 2) * (1 - x @ y) / norm + 0.06 * squared


def search_of_all_paths(source, target, most, deletion):
  """Returns the cost of the cheapest alignment, and the positions before and after each step."""
  best = {(0, 0): (0.0, [])}
  counts = (len(source.length_N), len(target.length_N))
  for i, j in itertools.product(*(range(count + 1) for count in counts)):
    sizes = itertools.product(range(i + 1), range(j + 1))
    steps = [(a, b) for a, b in sizes if (2 <= a + b <= most and a and b) or a + b == 1]
    options = []
    for a, b in steps:
      before, path = best[i - a, j - b]
      options.append((before + cost(source, target, i, j, a, b, deletion), [*path, (i, j, a, b)]))
    best[i, j] = min(options, default=best.get((i, j)))
  return best[counts]


@pytest.mark.parametrize("seed", range(12))
def test_the_cost_is_that_of_a_search_of_all_paths(seed):
  rng = np.random.default_rng(seed)
  n, m = rng.integers(1, 9, 2).tolist()
  most, deletion = int(rng.integers(2, 6)), float(rng.uniform(0, 1))
  source, target = (document(rng, count, most - 1) for count in (n, m))
  found = document_alignment.align_groups(source, target, max_size=most, deletion=deletion)
  # The first search, of single sentences without lengths, and what it estimates.
  bare = [x._replace(length_N=np.zeros_like(x.length_N)) for x in (source, target)]
  pairs = [step for step in search_of_all_paths(*bare, 2, 0.65)[1] if step[2:] == (1, 1)]
  typical = np.median([cost(*bare, *step, 0) for step in pairs] or [1])
  deletion = typical + deletion * (1 - typical)
  ratios = [target.length_N[j - 1] / source.length_N[i - 1] for i, j, _, _ in pairs]
  root = np.median(ratios or [1]) ** 0.5
  source = source._replace(length_N=source.length_N * root)
  target = target._replace(length_N=target.length_N / root)
  total, i, j = 0.0, 0, 0
  for x in found:
    a, b = len(x.source), len(x.target)
    assert x.source == [*range(i, i + a)]
    assert x.target == [*range(j, j + b)]
    i, j = i + a, j + b
    total += cost(source, target, i, j, a, b, deletion)
  assert (i, j) == (n, m)
  assert total == pytest.approx(search_of_all_paths(source, target, most, deletion)[0], abs=1e-4)


@pytest.mark.parametrize("summed", [False, True])
def test_split_joined_and_missing_sentences(summed):
  texts = sentences(30)
  target = [x.upper() for x in texts]
  target[3:5] = [" ".join(target[3:5])]
  source = [*texts[:10], *texts[10].split(), *texts[11:20], *texts[22:]]
  found = align(source, target, summed=summed)
  expected = [([n], [n]) for n in range(3)] + [([3, 4], [3])]
  expected += [([n], [n - 1]) for n in range(5, 10)] + [([10, 11], [9])]
  expected += [([n], [n - 2]) for n in range(12, 21)] + [([], [19]), ([], [20])]
  expected += [([n], [n]) for n in range(21, 29)]
  assert numbers(found) == expected
  assert all(-1 <= x.score <= 1.000001 and (x.score > 0.8 or not x.source) for x in found)


def test_long_documents_are_searched_in_a_window():
  texts = sentences(1_200)
  # A block without a translation on each side, and joined sentences.
  source = [*texts[:200], *sentences(90, 5_000), *texts[200:]]
  target = [*texts[:700], *sentences(150, 9_000), *texts[700:1_000]]
  target += [f"{texts[n]} {texts[n + 1]}" for n in range(1_000, 1_200, 2)]
  tracemalloc.start()
  found = numbers(align(source, [x.upper() for x in target], summed=True, max_size=4))
  assert tracemalloc.get_traced_memory()[1] < 100e6  # a table of all positions has 1.7 million
  tracemalloc.stop()
  expected = [([n], [n]) for n in range(200)] + [([n], []) for n in range(200, 290)]
  expected += [([n], [n - 90]) for n in range(290, 790)] + [([], [n]) for n in range(700, 850)]
  expected += [([n], [n + 60]) for n in range(790, 1_090)]
  expected += [([n, n + 1], [1_150 + (n - 1_090) // 2]) for n in range(1_090, 1_290, 2)]
  assert len({*map(str, expected)} & {*map(str, found)}) > 0.99 * len(expected)


def test_degenerate_documents():
  one, texts = sentences(1), sentences(5)
  assert align([], []) == []
  assert align(one, []) == align([*one, " "], ["", "\t"]) == [Alignment([0], [], 0.0)]
  assert numbers(align([], texts)) == [([], [n]) for n in range(5)]
  assert numbers(align(one, one)) == [([0], [0])]
  assert numbers(align(texts, texts)) == [([n], [n]) for n in range(5)]
  assert numbers(align(["same same"] * 4, ["same same"] * 4)) == [([n], [n]) for n in range(4)]
  (pair,) = (x for x in align([texts[2]], sentences(400)) if x.source)
  assert pair.target == [2]
  with pytest.raises(errors.InputError, match="not finite"):
    document_alignment.align(one, one, fake_encoders.FakeEncoder(lambda text: [np.nan, 1]))
  with pytest.raises(errors.InputError, match="max_size is 1"):
    align(one, one, max_size=1)


def test_blank_lines_are_in_no_alignment_and_texts_are_encoded_once():
  encoder = make_encoder()
  texts = ["a b", "", "c d", "a b", "c d"]
  found = document_alignment.align(texts, [x.upper() for x in texts], encoder, max_size=3)
  assert numbers(found) == [([n], [n]) for n in (0, 2, 3, 4)]
  assert sorted(encoder.calls[0]) == ["a b", "a b c d", "c d", "c d a b"]


def ngram_vector(text):
  """Counts of hashed character 4-grams: names, numbers and cognates of related languages."""
  counts = np.zeros(512)
  for start in range(len(text) - 1):
    counts[zlib.crc32(f" {text.lower()} "[start : start + 4].encode()) % 512] += 1
  return np.sqrt(counts)


def test_a_real_text_against_its_gold_alignment(data_root):
  path = data_root / "alignment" / "dev"
  source, target = ([*text_files.read_lines(f"{path}.{code}")] for code in ("de", "fr"))
  gold = alignment_files.read_line_numbers(f"{path}.defr")
  encoder = fake_encoders.FakeEncoder(ngram_vector)
  found = document_alignment.align(source, target, encoder, max_size=6)
  scores = alignment.alignment_scores([gold], [found])
  # With a real encoder: benchmarks/alignment.py.
  assert scores["strict_f1"] > 0.5
  assert scores["lax_f1"] > 0.65
