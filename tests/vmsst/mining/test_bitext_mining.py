import line_files
import naive_search
import numpy as np
import pytest

from vmsst import errors
from vmsst.mining import bitext_mining
from vmsst.search import exact_search, faiss_index, vector_store

BLANK = " \u200b\ufeff"
# Blank and repeated lines, and a TAB; without them, s0, s1, ... and t0, t1, ... remain once each.
SOURCE = ["s0", "s1", "", "s 2", "s1", "s3", " s\t2 ", "s4", "s5", "s1", BLANK, "s6", "s7"]
TARGET = ["t0", "", "t1", "t2", "t3", "t3 ", "t4", "t 5", "t\t5", "t6", "t7", "t8", "t8"]


def write_embedded(folder, name, lines, vectors, shard_rows=5):
  path = line_files.write_lines(folder / f"{name}.txt", lines)
  naive_search.write_vectors(folder / name, vectors, shard_rows=shard_rows)
  return vector_store.open_text(str(path), folder / name)


@pytest.fixture
def texts(tmp_path):
  """Two texts; the vectors of repeated lines would be found if they were compared."""
  rng = np.random.default_rng(5)
  source, target = (rng.normal(size=[len(lines), 4]) + 1 for lines in (SOURCE, TARGET))
  for x, y in ((0, 0), (3, 4), (5, 2), (7, 6), (11, 7), (4, 8)):
    target[y] = source[x] + 0.2 * rng.normal(size=4)
  return write_embedded(tmp_path, "source", SOURCE, source), write_embedded(
    tmp_path, "target", TARGET, target
  )


def first_rows(lines):
  """Returns the rows of the lines that are compared."""
  seen = ["" if line in ("", BLANK) else " ".join(line.split()) for line in lines]
  return [row for row, line in enumerate(seen) if line and line not in seen[:row]]


def naive(texts, k=4):
  """Finds greedy pairs by ratio margin as (score, source row, target row), by plain loops."""
  rows = [first_rows(lines) for lines in (SOURCE, TARGET)]
  vectors = (text.vectors[:][own] for own, text in zip(rows, texts, strict=True))
  found = naive_search.Naive(*vectors, k)
  return [(found.score(i, j), rows[0][i], rows[1][j]) for i, j in found.pairs()]


def mine(texts, **options):
  done = bitext_mining.mine(*texts, **options)
  return done, [line.split("\t") for line in bitext_mining.lines(done.pairs, *texts)]


def as_output(pairs):
  return [
    [f"{score:.4f}", SOURCE[x].replace("\t", " "), TARGET[y].replace("\t", " ")]
    for score, x, y in pairs
  ]


def rounded(rows):
  return [[f"{float(score):.4f}", *texts] for score, *texts in rows]


@pytest.mark.parametrize("factory", [None, "SQfp16"])
def test_what_is_mined_is_what_plain_loops_find(texts, factory):
  expected, options = naive(texts), {}
  if factory:
    indexes = (faiss_index.build_index(text.vectors, factory) for text in texts)
    options["search"] = faiss_index.index_search(*indexes)
  done, found = mine(texts, **options)
  assert rounded(found) == as_output(expected)
  assert (done.source, done.target) == (8, 9)
  assert (done.candidates, len(done.pairs), done.best) == (len(expected), len(expected), None)
  middle = expected[len(expected) // 2][0]
  done, found = mine(texts, threshold=middle - 1e-6, **options)
  assert rounded(found) == as_output(pair for pair in expected if pair[0] >= middle)
  assert (done.candidates, len(done.pairs)) == (len(expected), len(found))


@pytest.mark.parametrize("margin", ["ratio", "distance", "absolute"])
def test_a_printed_score_is_a_threshold_that_keeps_its_pair(texts, margin):
  _, lines = mine(texts, margin=margin)
  assert len(lines) > 5
  for place, (score, *_) in enumerate(lines):
    _, kept = mine(texts, margin=margin, threshold=float(score))
    assert kept == lines[: place + 1]


def test_the_threshold_is_that_of_the_best_f1_of_all(texts, tmp_path):
  # Two name later occurrences of "s1", and are one pair; the last is not found.
  gold = tmp_path / "gold.tsv"
  gold.write_text("1\t1\n8\t7\n5\t4\n10\t4\n12\t10\n", encoding="utf-8")
  known = {(0, 0), (7, 6), (1, 3), (11, 9)}
  pairs = naive(texts)
  best = (-1.0,)
  for threshold, _, _ in pairs:
    kept = {(x, y) for score, x, y in pairs if score >= threshold}
    hits = len(kept & known)
    best = max(best, (2 * hits / (len(kept) + len(known)), hits / len(kept), hits / len(known)))
  done, found = mine(texts, gold=str(gold))
  assert (done.best.f1, done.best.precision, done.best.recall) == pytest.approx(best)
  assert 0 < done.best.recall < 1
  assert len(found) < done.candidates
  assert mine(texts, threshold=done.best.threshold)[1] == found


def nothing_mutual(source, target, k_source, k_target, /):
  """Returns neighbors of which none is nearest in both directions."""
  counts = len(source.row_N), len(target.row_N)
  index_N1 = np.arange(counts[0])[:, None] % counts[1]
  index_M1 = (np.arange(counts[1])[:, None] + 1) % counts[0]
  return tuple(exact_search.Neighbors(x, np.full(x.shape, 0.9, "f4")) for x in (index_N1, index_M1))


NO_PAIRS = {"search": nothing_mutual, "neighbors": 1, "retrieval": "intersection"}


def test_broken_input_is_an_error(texts, tmp_path):
  gold = tmp_path / "gold.tsv"
  for content, message in (
    ("1\t1\n1 1\n", "gold.tsv:2: '1 1' is not two line numbers"),
    (f"{'9' * 5000}\t1\n", "gold.tsv:1: '9.*is not two line numbers"),
    ("14\t1\n", r"gold.tsv:1: there is no sentence in line 14 of .*source.txt"),
    ("3\t1\n", r"gold.tsv:1: there is no sentence in line 3 of .*source.txt"),
  ):
    gold.write_text(content, encoding="utf-8")
    with pytest.raises(errors.InputError, match=message):
      mine(texts, gold=str(gold))
  gold.write_text("1\t1\n", encoding="utf-8")
  with pytest.raises(errors.InputError, match=r"none of the 1 pairs in .*gold\.tsv is among the 0"):
    mine(texts, gold=str(gold), **NO_PAIRS)
  with pytest.raises(
    errors.InputError, match="threshold is 1; set it to None, because the gold pairs determine it"
  ):
    mine(texts, gold=str(gold), threshold=1)
  with pytest.raises(errors.InputError, match=r"threshold is nan; set it to a number in"):
    mine(texts, threshold=np.nan)
  wide = write_embedded(tmp_path, "wide", ["a"], np.ones([1, 5]))
  with pytest.raises(errors.InputError, match=r"source and .*wide differ: width is 4, not 5"):
    mine((texts[0], wide))
  blank = write_embedded(tmp_path, "blank", ["", " ", "\u2060"], np.ones([3, 4]))
  with pytest.raises(errors.InputError, match=r"blank\.txt contains no sentence"):
    mine((texts[0], blank))
  done, found = mine(texts, **NO_PAIRS)
  assert (len(done.pairs), found) == (0, [])


def by_length(sources, targets, languages, on_cut):
  """Scores a pair by its lengths; the length 3 is not finite."""
  on_cut(1, len(sources), 7)
  rows = [[len(x), len(y)] for x, y in zip(sources, targets, strict=True)]
  return np.where(np.array(rows, float) == 3, np.nan, rows)


SCORER = bitext_mining.Scorer({}, by_length)


def write_column(path, lengths):
  path.write_text("".join(f"{'x' * length}\n" for length in lengths))
  return bitext_mining.TextColumn(str(path))


def test_windows_of_pairs_are_scored_in_order_and_cut_texts_are_counted(
  tmp_path, monkeypatch, caplog
):
  monkeypatch.setattr(bitext_mining, "_WINDOW", 4)
  sides = (
    write_column(tmp_path / "a", [0, 1, 2, 4, 5, 6]),
    write_column(tmp_path / "b", [9, 8, 7, 6, 5, 4]),
  )
  blocks = list(bitext_mining.pair_scores(SCORER, *sides))
  assert list(map(len, blocks)) == [4, 2]
  expected = [[0, 9], [1, 8], [2, 7], [4, 6], [5, 5], [6, 4]]
  assert np.concatenate(blocks).tolist() == expected
  assert "2 of 12 texts exceed the encoder's maximum of 7 tokens" in caplog.text


def test_unequal_columns_and_scores_that_are_not_finite_are_errors(tmp_path):
  short, long = write_column(tmp_path / "a", [1, 2]), write_column(tmp_path / "b", [1, 2, 3])
  with pytest.raises(errors.InputError, match=r"a has 2 lines but .*b has 3; use files of equal"):
    list(bitext_mining.pair_scores(SCORER, short, long))
  with pytest.raises(errors.InputError, match=r"b:3: the score of this pair is not finite"):
    list(bitext_mining.pair_scores(SCORER, long, long))
