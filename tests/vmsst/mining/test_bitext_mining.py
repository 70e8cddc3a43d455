import line_files
import numpy as np
import pytest

from vmsst import errors
from vmsst.mining import bitext_mining
from vmsst.search import device_search, exact_search, resumable_search
from vmsst.vectors import embedded_text, vector_store

# Blank and repeated lines, and a TAB; without them, s0, s1, ... and t0, t1, ... remain once each.
SOURCE = ["s0", "s1", "", "s 2", "s1", "s3", " s\t2 ", "s4", "s5", "s1", " ", "s6", "s7"]
TARGET = ["t0", "", "t1", "t2", "t3", "t3 ", "t4", "t 5", "t\t5", "t6", "t7", "t8", "t8"]


def write_embedded(folder, name, lines, vectors):
  path = line_files.write_lines(folder / f"{name}.txt", lines)
  writer = vector_store.Writer(folder / name, vectors.shape[1], shard_rows=5)
  writer.append(vectors)
  writer.finish()
  return embedded_text.open_text(str(path), folder / name)


@pytest.fixture
def texts(tmp_path, monkeypatch):
  """Two texts; the vectors of repeated lines would be found if they were compared."""
  monkeypatch.setattr(bitext_mining, "_SPAN", 3)
  rng = np.random.default_rng(5)
  source, target = (rng.normal(size=[len(lines), 4]) + 1 for lines in (SOURCE, TARGET))
  for x, y in ((0, 0), (3, 4), (5, 2), (7, 6), (11, 7), (4, 8)):
    target[y] = source[x] + 0.2 * rng.normal(size=4)
  return write_embedded(tmp_path, "source", SOURCE, source), write_embedded(
    tmp_path, "target", TARGET, target
  )


def first_rows(lines):
  """Returns the rows of the lines that are compared."""
  seen = [" ".join(line.split()) for line in lines]
  return [row for row, line in enumerate(seen) if line and line not in seen[:row]]


def naive(texts, k=4, floor=-2.0, keep_duplicates=False):
  """Finds greedy pairs by ratio margin as (score, source row, target row), by plain loops."""
  rows = []
  for lines in (SOURCE, TARGET):
    kept = [row for row, line in enumerate(lines) if line.strip()]
    rows.append(kept if keep_duplicates else first_rows(lines))
  unit = []
  for own, text in zip(rows, texts, strict=True):
    vectors = text.vectors[:].astype(float)
    unit.append({row: vectors[row] / np.linalg.norm(vectors[row]) for row in own})
  cosine = {(x, y): unit[0][x] @ unit[1][y] for x in rows[0] for y in rows[1]}
  near_x = {x: sorted(rows[1], key=lambda y, x=x: -cosine[x, y])[:k] for x in rows[0]}
  near_y = {y: sorted(rows[0], key=lambda x, y=y: -cosine[x, y])[:k] for y in rows[1]}
  mean_x = {x: np.mean([cosine[x, y] for y in near]) for x, near in near_x.items()}
  mean_y = {y: np.mean([cosine[x, y] for x in near]) for y, near in near_y.items()}
  score = {(x, y): 2 * c / (mean_x[x] + mean_y[y]) for (x, y), c in cosine.items()}
  found = set()
  for x, near in near_x.items():
    found.add(max(((x, y) for y in near if cosine[x, y] >= floor), key=score.get, default=None))
  for y, near in near_y.items():
    found.add(max(((x, y) for x in near if cosine[x, y] >= floor), key=score.get, default=None))
  kept = []
  for pair in sorted(found - {None}, key=lambda pair: -score[pair]):
    if all(pair[0] != x and pair[1] != y for _, x, y in kept):
      kept.append((score[pair], *pair))
  return kept


def mine(texts, tmp_path, **options):
  options = {"progress": False, **options}
  done = bitext_mining.mine(*texts, tmp_path / "out.tsv", **options)
  lines = (tmp_path / "out.tsv").read_text(encoding="utf-8").splitlines()
  return done, [line.split("\t") for line in lines]


def as_output(pairs):
  return [
    [f"{score:.4f}", SOURCE[x].replace("\t", " "), TARGET[y].replace("\t", " ")]
    for score, x, y in pairs
  ]


def rounded(rows):
  return [[f"{float(score):.4f}", *texts] for score, *texts in rows]


@pytest.mark.parametrize("options", [{}, {"keep_duplicates": True}, {"min_cosine": 0.8}])
def test_what_is_mined_is_what_plain_loops_find(texts, tmp_path, options):
  names = {"min_cosine": "floor"}
  expected = naive(texts, **{names.get(key, key): value for key, value in options.items()})
  done, found = mine(texts, tmp_path, **options)
  assert rounded(found) == as_output(expected)
  assert (done.candidates, done.kept, done.best) == (len(expected), len(expected), None)
  middle = expected[len(expected) // 2][0]
  done, found = mine(texts, tmp_path, threshold=middle - 1e-6, **options)
  assert rounded(found) == as_output(pair for pair in expected if pair[0] >= middle)
  assert (done.candidates, done.kept) == (len(expected), len(found))
  assert sorted(path.name for path in tmp_path.glob("out*")) == ["out.tsv"]


def test_lines_that_are_the_same_count_once(texts, tmp_path):
  done, found = mine(texts, tmp_path)
  assert (done.source, done.target) == (8, 9)
  assert all(field.strip() for row in found for field in row)
  done, _ = mine(texts, tmp_path, keep_duplicates=True)
  assert (done.source, done.target) == (11, 12)


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
  done, found = mine(texts, tmp_path, gold=str(gold))
  assert (done.best.f1, done.best.precision, done.best.recall) == pytest.approx(best)
  assert 0 < done.best.recall < 1
  assert done.kept == len(found) < done.candidates
  again, same = mine(texts, tmp_path, threshold=done.best.threshold)
  assert (again.kept, same) == (done.kept, found)


class Failing:
  """An engine that records blocks and can fail when it requests the last block of sources."""

  def __init__(self, engine, fail):
    self.engine, self.fail, self.rows = engine, fail, []

  def __call__(self, source, target, forward, backward, /):
    blocks = source.unit_blocks

    def watched(height):
      for number, block in blocks(height):
        if self.fail and number + len(block) == len(source):
          raise KeyboardInterrupt
        self.rows.append((number, len(block)))
        yield number, block

    source.unit_blocks = watched
    self.engine(source, target, forward, backward)


def set_heights(monkeypatch, sources, targets):
  monkeypatch.setattr(exact_search, "_HELD_ROWS", sources)
  monkeypatch.setattr(exact_search, "_BLOCK_ROWS", targets)
  monkeypatch.setattr(device_search, "_SOURCES", sources)
  monkeypatch.setattr(device_search, "_TARGETS", targets)


@pytest.mark.parametrize("engine", [exact_search.compare, device_search.compare])
def test_an_interrupted_search_resumes_and_finds_the_same(texts, tmp_path, monkeypatch, engine):
  _, expected = mine(texts, tmp_path)
  (tmp_path / "out.tsv").unlink()
  set_heights(monkeypatch, 3, 4)
  monkeypatch.setattr(resumable_search, "_SECONDS", 0.0)
  first = Failing(engine, True)
  with pytest.raises(KeyboardInterrupt):
    mine(texts, tmp_path, engine=first)
  assert [path.name for path in tmp_path.glob("out*")] == ["out.tsv.search.npz"]
  with pytest.raises(errors.InputError, match="other vectors or settings: delete it"):
    mine(texts, tmp_path, neighbors=2)
  set_heights(monkeypatch, 5, 5)  # as on another machine
  second = Failing(engine, False)
  assert mine(texts, tmp_path, engine=second)[1] == expected
  assert (first.rows, second.rows) == ([(0, 3), (3, 3)], [(6, 2)])
  assert [path.name for path in tmp_path.glob("out*")] == ["out.tsv"]
  state = tmp_path / "out.tsv.search.npz"
  state.write_bytes(b"PK\x03\x04 broken")
  with pytest.raises(errors.InputError, match=r"search\.npz: broken"):
    mine(texts, tmp_path)


def test_a_search_in_one_direction_cannot_be_kept(tmp_path):
  engine = resumable_search.resumable(exact_search.compare, tmp_path / "x", {}, progress=False)
  with pytest.raises(ValueError, match="one direction"):
    exact_search.nearest_in_blocks(np.eye(2), [np.eye(2)], engine=engine)


def test_progress_ends_when_all_is_compared(texts, tmp_path, capsys, monkeypatch):
  monkeypatch.setattr(exact_search, "_HELD_ROWS", 3)
  mine(texts, tmp_path, progress=True)
  assert "100%" in (shown := capsys.readouterr().err)
  assert "72.0/72.0" in shown


def test_broken_input_is_an_error_and_nothing_is_written(texts, tmp_path):
  gold = tmp_path / "gold.tsv"
  for content, message in (
    ("1\t1\n1 1\n", "gold.tsv:2: '1 1' is not `source line TAB target line`"),
    ("1\t0\n", r"gold.tsv:1: there is no line 0 in .*target.txt: it has 13"),
    ("14\t1\n", r"gold.tsv:1: there is no line 14 in .*source.txt"),
    ("3\t1\n", r"gold.tsv:1: line 3 of .*source.txt is empty"),
    ("", "is empty"),
  ):
    gold.write_text(content, encoding="utf-8")
    with pytest.raises(errors.InputError, match=message):
      mine(texts, tmp_path, gold=str(gold))
  gold.write_text("1\t1\n", encoding="utf-8")
  with pytest.raises(
    errors.InputError, match=r"none of the 1 pairs of .*gold\.tsv is among the 0 found"
  ):
    mine(texts, tmp_path, gold=str(gold), min_cosine=1.5)
  with pytest.raises(errors.InputError, match=r"a threshold of 1 and gold pairs .* are both given"):
    mine(texts, tmp_path, gold=str(gold), threshold=1)
  wide = write_embedded(tmp_path, "wide", ["a"], np.ones([1, 5]))
  with pytest.raises(errors.InputError, match=r"source has .* width 4 and .*wide of 5"):
    mine((texts[0], wide), tmp_path)
  blank = write_embedded(tmp_path, "blank", ["", " "], np.ones([2, 4]))
  with pytest.raises(errors.InputError, match=r"blank\.txt contains no sentence"):
    mine((texts[0], blank), tmp_path)
  with pytest.raises(errors.InputError, match="is a folder"):
    bitext_mining.mine(*texts, tmp_path)
  assert not list(tmp_path.glob("out*"))
  done, found = mine(texts, tmp_path, min_cosine=1.5)
  assert (done.kept, found) == (0, [])
