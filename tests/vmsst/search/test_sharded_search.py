"""Blocks of a search: together they find what a search in one piece finds, to the bit."""

import numpy as np
import pytest

from vmsst.search import exact_search, sharded_search
from vmsst.units import local
from vmsst.vectors import vector_store


def stored(folder, vectors_ND):
  writer = vector_store.Writer(folder, vectors_ND.shape[1], shard_rows=50)
  writer.append(vectors_ND)
  writer.finish()
  return vector_store.open_vectors(folder)


def sides_of(tmp_path, *counts):
  """Returns two sides: of all rows but every seventh, with repeated vectors in several blocks."""
  rng = np.random.default_rng(0)
  sides = []
  for name, count in zip("ab", counts, strict=True):
    vectors_ND = rng.normal(size=(count, 6)).astype(np.float32)
    vectors_ND[count // 2 :: 3] = vectors_ND[: len(vectors_ND[count // 2 :: 3])]
    row_S = np.flatnonzero(np.arange(count) % 7)
    sides.append(sharded_search.Side(stored(tmp_path / name, vectors_ND), row_S))
  return tuple(sides)


@pytest.mark.parametrize("counts", [(30, 50), (40, 3), (9, 60)])
def test_blocks_give_what_one_search_gives(tmp_path, monkeypatch, counts):
  sides = sides_of(tmp_path, *counts)
  monkeypatch.setattr(exact_search, "_HELD_ROWS", 8)
  monkeypatch.setattr(exact_search, "_BLOCK_ROWS", 4)
  vectors = [exact_search.SelectedRows(side.rows, side.row_S) for side in sides]
  expected = exact_search.mutual_top_k(*vectors, 3)
  made = []
  for most in (100, 4):
    monkeypatch.setattr(sharded_search, "_LEAST_SOURCES", 8)
    monkeypatch.setattr(sharded_search, "_TARGETS", 16)
    monkeypatch.setattr(sharded_search, "_MOST_BLOCKS", most)
    folder = tmp_path / str(most)
    engine = sharded_search.engine(
      sides, folder, compare=exact_search.compare, units=local.Local(), progress=False
    )
    found = exact_search.mutual_top_k(*vectors, 3, engine=engine)
    for own, whole in zip(found, expected, strict=True):
      np.testing.assert_array_equal(own.index_NK, whole.index_NK)
      np.testing.assert_array_equal(own.score_NK, whole.score_NK)
    made.append(len(list(folder.glob("*.npz"))))
  assert made[0] > made[1] or made[0] <= 4
  assert made[1] <= 4


def test_a_search_in_one_direction_is_refused(tmp_path):
  engine = sharded_search.engine(
    sides_of(tmp_path, 9, 9), tmp_path, compare=exact_search.compare, units=local.Local()
  )
  with pytest.raises(ValueError, match="both directions"):
    exact_search.nearest_in_blocks(np.eye(2), [np.eye(2)], engine=engine)


def test_a_unit_names_its_rows_and_depends_on_the_vectors(tmp_path):
  sides = sides_of(tmp_path, 9, 9)
  one, other = (sharded_search.StoredSide(sides[0].rows, "x", digest) for digest in "ab")
  units = [
    sharded_search.CompareBlock(a, b, (range(8), range(8, 9)), (2, 2), exact_search.compare, "p")
    for a, b in ((one, other), (one, one))
  ]
  assert str(units[0]) == "sources 1 to 8 and targets 9 to 9"
  assert units[0].key != units[1].key
