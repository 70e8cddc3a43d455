import os
import pathlib
import tempfile
import tracemalloc

import line_files
import memory_store
import naive_search
import numpy as np
import pytest

from vmsst import errors, storage
from vmsst.io import input_files, large_arrays, progress_bar, text_files
from vmsst.jobs import work_folders
from vmsst.mining import bitext_mining, pair_scoring
from vmsst.search import device_search, embedded_text, exact_search, index_folder, sharded_search

BLANK = " \u200b\ufeff"
# Blank and repeated lines, and a TAB; without them, s0, s1, ... and t0, t1, ... remain once each.
SOURCE = ["s0", "s1", "", "s 2", "s1", "s3", " s\t2 ", "s4", "s5", "s1", BLANK, "s6", "s7"]
TARGET = ["t0", "", "t1", "t2", "t3", "t3 ", "t4", "t 5", "t\t5", "t6", "t7", "t8", "t8"]


def write_embedded(folder, name, lines, vectors, shard_rows=5):
  path = line_files.write_lines(folder / f"{name}.txt", lines)
  naive_search.write_vectors(folder / name, vectors, shard_rows=shard_rows)
  return embedded_text.open_text(str(path), folder / name)


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


def mine(texts, tmp_path, **options):
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


@pytest.mark.parametrize("factory", [None, "SQfp16"])
def test_what_is_mined_is_what_plain_loops_find(texts, tmp_path, factory):
  expected, options = naive(texts), {}
  if factory:
    for side in texts:
      index_folder.build_index(side.folder, f"{side.folder}.index", factory=factory)
    options["indexes"] = tuple(side.open_index(f"{side.folder}.index") for side in texts)
  done, found = mine(texts, tmp_path, **options)
  assert rounded(found) == as_output(expected)
  assert (done.source, done.target) == (8, 9)
  assert (done.candidates, done.kept, done.best) == (len(expected), len(expected), None)
  middle = expected[len(expected) // 2][0]
  done, found = mine(texts, tmp_path, threshold=middle - 1e-6, **options)
  assert rounded(found) == as_output(pair for pair in expected if pair[0] >= middle)
  assert (done.candidates, done.kept) == (len(expected), len(found))
  assert sorted(path.name for path in tmp_path.glob("out*")) == ["out.tsv"]


@pytest.mark.parametrize("margin", ["ratio", "distance", "absolute"])
def test_a_printed_score_is_a_threshold_that_keeps_its_pair(texts, tmp_path, margin):
  _, lines = mine(texts, tmp_path, margin=margin)
  assert len(lines) > 5
  for place, (score, *_) in enumerate(lines):
    _, kept = mine(texts, tmp_path, margin=margin, threshold=float(score))
    assert kept == lines[: place + 1]


def same_places(source, target, forward, backward, /):
  """Sets the neighbors of a block without comparing: rows with the same number, and those after."""
  for near, count in ((forward, len(target)), (backward, len(source))):
    near.index_NK[:] = (np.arange(len(near))[:, None] + np.arange(near.index_NK.shape[1])) % count
    near.score_NK[:] = 0.9 ** np.arange(near.index_NK.shape[1])


@pytest.mark.slow
def test_memory_does_not_grow_with_the_number_of_lines(tmp_path, monkeypatch):
  sizes = {
    large_arrays: {"_RECORDS": 1 << 14, "_IN_MEMORY": 0, "_WRITTEN": bytes(1024)},
    text_files: {"_ENDS": 256},
    sharded_search: {"_SOURCES": 1 << 14, "_TARGETS": 1 << 14},
  }
  for module, values in sizes.items():
    for name, size in values.items():
      monkeypatch.setattr(module, name, size)
  gold = tmp_path / "gold.tsv"
  gold.write_text("1\t1\n", encoding="utf-8")

  def peak(count):
    folder = pathlib.Path(tempfile.mkdtemp(dir=tmp_path))
    vectors_ND = np.ones([count, 2], np.float32)
    vectors_ND[:, 0] = np.arange(count) // 2  # Each twice.
    sides = [
      write_embedded(
        folder, name, [f"{name} {i % (count - 9)}" for i in range(count)], vectors_ND, 1 << 14
      )
      for name in "ab"
    ]
    tracemalloc.start()
    mine(sides, folder, compare=same_places, gold=str(gold))
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return most

  peak(20_000)  # Allocates what is allocated once.
  # Other threads of this process may have allocated in one of the calls.
  assert min(peak(120_000), peak(120_000)) < 1.5 * peak(40_000)


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


def make_blocks_small(monkeypatch):
  monkeypatch.setattr(sharded_search, "_SOURCES", 4)
  monkeypatch.setattr(sharded_search, "_TARGETS", 5)


@pytest.mark.parametrize("compare", [exact_search.compare, device_search.compare])
def test_an_interrupted_search_resumes_and_finds_the_same(texts, tmp_path, compare, monkeypatch):
  _, expected = mine(texts, tmp_path)
  make_blocks_small(monkeypatch)
  (tmp_path / "out.tsv").unlink()
  compared = []

  def failing(source, target, forward, backward, /):
    if len(compared) == 4:
      raise KeyboardInterrupt
    compared.append((len(source), len(target)))
    compare(source, target, forward, backward)

  with pytest.raises(KeyboardInterrupt):
    mine(texts, tmp_path, compare=failing)
  assert [path.name for path in tmp_path.glob("*out*")] == [".out.tsv.vmsst"]
  broken = tmp_path / ".out.tsv.vmsst" / "block-0-1.npz"
  broken.write_bytes(broken.read_bytes()[::-1])
  again = []

  def watched(*sides):
    again.append(sides)
    compare(*sides)

  assert mine(texts, tmp_path, compare=watched)[1] == expected
  assert len(again) == 9  # of 12; 4 were done, and one of these is broken
  assert [path.name for path in tmp_path.glob("*out*")] == ["out.tsv"]


def test_blocks_of_another_search_are_not_used(texts, tmp_path, monkeypatch, capsys):
  expected = mine(texts, tmp_path, neighbors=2)[1]
  make_blocks_small(monkeypatch)
  monkeypatch.setattr(progress_bar, "LINE_SECONDS", 1e-9)
  gold = tmp_path / "gold.tsv"
  gold.write_text("1\t13\n", encoding="utf-8")
  with (
    progress_bar.shown("anywhere"),
    pytest.raises(errors.InputError, match="none of the 1 pairs"),
  ):
    mine(texts, tmp_path, gold=str(gold))
  assert "12/12" in capsys.readouterr().err
  assert (tmp_path / ".out.tsv.vmsst").exists()
  assert mine(texts, tmp_path, neighbors=2)[1] == expected


def nothing_mutual(source, target, forward, backward, /):
  """Sets neighbors of which none is nearest in both directions."""
  forward.index_NK[:, 0] = np.arange(len(source)) % len(target)
  backward.index_NK[:, 0] = (np.arange(len(target)) + 1) % len(source)
  forward.score_NK[:] = backward.score_NK[:] = 0.9


NO_PAIRS = {"compare": nothing_mutual, "neighbors": 1, "retrieval": "intersection"}


def test_broken_input_is_an_error_and_nothing_is_written(texts, tmp_path):
  gold = tmp_path / "gold.tsv"
  for content, message in (
    ("1\t1\n1 1\n", "gold.tsv:2: '1 1' is not `source line TAB target line`"),
    (f"{'9' * 5000}\t1\n", "gold.tsv:1: '9.*is not `source line TAB target line`"),
    ("1\t0\n", r"gold.tsv:1: there is no line 0 in .*target.txt: it has 13"),
    ("14\t1\n", r"gold.tsv:1: there is no line 14 in .*source.txt"),
    ("3\t1\n", r"gold.tsv:1: line 3 of .*source.txt is empty"),
  ):
    gold.write_text(content, encoding="utf-8")
    with pytest.raises(errors.InputError, match=message):
      mine(texts, tmp_path, gold=str(gold))
  gold.write_text("1\t1\n", encoding="utf-8")
  with pytest.raises(errors.InputError, match=r"none of the 1 pairs of .*gold\.tsv is among the 0"):
    mine(texts, tmp_path, gold=str(gold), **NO_PAIRS)
  with pytest.raises(
    errors.InputError, match="threshold is 1; set it to None: gold pairs choose it"
  ):
    mine(texts, tmp_path, gold=str(gold), threshold=1)
  for value in (np.nan, np.inf, "0.5"):
    with pytest.raises(errors.InputError, match=r"threshold is .*; set it to a finite number"):
      mine(texts, tmp_path, threshold=value)
  wide = write_embedded(tmp_path, "wide", ["a"], np.ones([1, 5]))
  with pytest.raises(errors.InputError, match=r"source has .* width 4 and .*wide of 5"):
    mine((texts[0], wide), tmp_path)
  blank = write_embedded(tmp_path, "blank", ["", " ", "\u2060"], np.ones([3, 4]))
  with pytest.raises(errors.InputError, match=r"blank\.txt contains no sentence"):
    mine((texts[0], blank), tmp_path)
  # With other gold pairs, the search is not repeated.
  assert [path.name for path in tmp_path.glob("*out*")] == [".out.tsv.vmsst"]
  done, found = mine(texts, tmp_path, **NO_PAIRS)
  assert (done.kept, found) == (0, [])


class Scorer:
  """Scores a pair by its lengths; Ctrl-C interrupts it after some windows."""

  def __init__(self, name, windows):
    self.settings, self.windows, self.texts = {"scorer": name}, windows, []

  def score(self, sources, targets, languages, on_cut):
    self.windows -= 1
    if self.windows < 0:
      raise KeyboardInterrupt
    self.texts += sources
    on_cut(1, len(sources), 7)
    return np.array([[len(x), len(y)] for x, y in zip(sources, targets, strict=True)], float)


@pytest.mark.parametrize("kind", ["local", "store"])
def test_scores_resume_with_the_same_settings(kind, tmp_path, monkeypatch):
  memory_store.installed(monkeypatch)
  monkeypatch.setattr(pair_scoring, "_WINDOW", 4)
  place = str(tmp_path / "new") if kind == "local" else "gs://bucket/new"
  lines = ["x" * n for n in range(10)]
  (tmp_path / "text").write_text("".join(f"{line}\n" for line in lines))
  text = pair_scoring.TextColumn(str(tmp_path / "text"))

  def score(scorer):
    return pair_scoring.score_file(scorer, text, text, f"{place}/out")

  with pytest.raises(KeyboardInterrupt):
    score(Scorer("a", 2))
  assert storage.names(place) == {".out.vmsst"}
  for name, windows in (("a", 1), ("b", 3)):  # the rest, or all if it has other settings
    scorer = Scorer(name, windows)
    assert score(scorer) == 10
    assert scorer.texts == (lines[8:] if name == "a" else lines)
    found = input_files.read_bytes(f"{place}/out").decode()
    assert found == "".join(f"{n}.000000\t{n}.000000\n" for n in range(10))
    assert storage.names(place) == {"out"}
  with pytest.raises(KeyboardInterrupt):
    score(Scorer("a", 0))
  assert storage.names(place) == {"out"}
  assert not storage.names(work_folders.work_path(f"{place}/out"))


def test_scores_of_a_changed_text_are_not_kept(tmp_path, monkeypatch):
  monkeypatch.setattr(pair_scoring, "_WINDOW", 4)
  path, content = tmp_path / "text", "".join(f"{'x' * n}\n" for n in range(10))
  text = pair_scoring.TextColumn(str(path))
  path.write_text(content)

  class Changing(Scorer):
    def score(self, *given):
      status = path.stat()
      while path.stat().st_ctime_ns == status.st_ctime_ns:  # The clock of files is coarse.
        path.write_text(content.replace("x", "y"))
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
      return super().score(*given)

  with pytest.raises(errors.InputError, match="text has changed since the work on it started"):
    pair_scoring.score_file(Changing("a", 3), text, text, tmp_path / "out")
  path.unlink()
  with pytest.raises(errors.InputError, match="text: cannot be read: No such file"):
    pair_scoring.score_file(Scorer("a", 3), text, text, tmp_path / "out")
  path.write_text(content)
  assert pair_scoring.score_file(Scorer("a", 3), text, text, tmp_path / "out") == 10
  found = (tmp_path / "out").read_text()
  assert found == "".join(f"{n}.000000\t{n}.000000\n" for n in range(10))


def test_scores_of_a_stream_are_written_directly_and_cut_texts_are_counted(tmp_path, caplog):
  (tmp_path / "text").write_text("a\nb\n")
  text = pair_scoring.TextColumn(str(tmp_path / "text"))
  assert pair_scoring.score_file(Scorer("a", 1), text, text, "/dev/null") == 2
  assert "1 of 4 texts have more than the 7 tokens" in caplog.text
