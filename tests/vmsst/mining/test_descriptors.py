"""Vectors with more shards than a process may open files."""

import os
import resource

import fake_encoders
import line_files
import numpy as np
import pytest

from vmsst.mining import bitext_mining, text_search
from vmsst.vectors import embedded_text, index_folder, vector_store

SHARDS, MORE = 150, 30
ROWS = np.random.default_rng(0).normal(size=[2 * SHARDS, 8]).astype(np.float32)


@pytest.fixture
def few_descriptors(monkeypatch):
  """At most `MORE` files more than are open now."""
  monkeypatch.setattr(vector_store, "_MAPS", 8)
  limits = resource.getrlimit(resource.RLIMIT_NOFILE)
  used = max(map(int, os.listdir("/proc/self/fd")))
  resource.setrlimit(resource.RLIMIT_NOFILE, (used + MORE, limits[1]))
  yield
  resource.setrlimit(resource.RLIMIT_NOFILE, limits)


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="counts descriptors on Linux")
@pytest.mark.usefixtures("few_descriptors")
def test_more_shards_than_descriptors(tmp_path):
  sides, indexes = [], []
  for name, blank in (("x", 7), ("y", None)):
    lines = ["" if row == blank else str(row) for row in range(len(ROWS))]
    path = line_files.write_lines(tmp_path / f"{name}.txt", lines)
    writer = vector_store.Writer(tmp_path / name, 8, shard_rows=2)
    writer.append(ROWS)
    writer.finish()
    index_folder.build_index(tmp_path / name, tmp_path / f"{name}.index", factory="IVF4,SQ8")
    sides.append(embedded_text.open_text(str(path), tmp_path / name))
    indexes.append(sides[-1].open_index(tmp_path / f"{name}.index"))
  encoder = fake_encoders.FakeEncoder(lambda text: ROWS[int(text)])
  expected = [str(row) for row in range(len(ROWS)) if row != 7]
  for index in (None, indexes[0]):
    searcher = text_search.Searcher(encoder, sides[0], index=index)
    assert [hits[0].text for hits in searcher.search(expected, 2)] == expected
  for both in (None, tuple(indexes)):
    bitext_mining.mine(*sides, tmp_path / "out.tsv", indexes=both, threshold=1.01)
    found = [line.split("\t") for line in (tmp_path / "out.tsv").read_text().splitlines()]
    assert sorted(int(row) for _, row, _ in found) == sorted(map(int, expected))
    assert all(source == target for _, source, target in found)
