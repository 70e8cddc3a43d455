import functools
import itertools
from concurrent import futures

import naive_search
import numpy as np
import pytest
import threadpoolctl

from vmsst.io import array_files
from vmsst.search import exact_search


@pytest.fixture
def small(monkeypatch):
  """Makes blocks small, and what is stored per vector large."""
  for name, rows in (("_SOURCE_ROWS", 10), ("_TARGET_ROWS", 5), ("_TASK_ROWS", 4)):
    monkeypatch.setattr(exact_search, name, rows)
  monkeypatch.setattr(array_files, "_IN_MEMORY", 0)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize(
  ("n", "m", "k", "width"),
  [(23, 17, 5, 4), (200, 17, 5, 16), (40, 61, 1, 4), (3, 50, 4, 16), (1, 1, 99, 4)],
)
def test_the_nearest_are_those_of_a_stable_sort(n, m, k, width):
  naive_search.check_searches(exact_search.search, n, m, k, width)


def test_fewer_than_k_give_all_and_zeros_are_near_nothing():
  source, target = np.array([[1.0, 0.0], [0.0, 0.0]]), np.array([[-2.0, 0.0], [0.0, 0.0], [3.0, 0]])
  forward, backward = exact_search.mutual_top_k(source, target, 9)
  assert forward.index_NK.tolist() == [[2, 1, 0], [0, 1, 2]]
  assert forward.score_NK.tolist() == [[1, 0, -1], [0, 0, 0]]
  assert backward.index_NK.tolist() == [[1, 0], [0, 1], [0, 1]]


@pytest.mark.parametrize("order", [1, -1])
def test_later_blocks_that_are_better_or_worse_throughout_change_nothing(order, monkeypatch):
  monkeypatch.setattr(exact_search, "_TARGET_ROWS", 600)
  angle = np.linspace(0.1, 1.5, 1500)[::order]
  rising = np.stack([np.sin(angle), np.cos(angle)], axis=1)
  query = np.array([[1.0, 0.0], [0.0, 1.0]])
  forward, backward = exact_search.mutual_top_k(query, rising, 4)
  naive_search.assert_best(forward, query @ rising.T, 4)
  naive_search.assert_best(backward, rising @ query.T, 4)


def test_searches_in_several_threads_leave_blas_as_it_was():
  def blas_threads():
    return [each["num_threads"] for each in threadpoolctl.threadpool_info()]

  before, side = blas_threads(), np.random.default_rng(7).normal(size=[300, 8])
  with futures.ThreadPoolExecutor(4) as pool:
    found = list(pool.map(lambda _: exact_search.top_k(side, side).index_NK[:, 0], range(8)))
  np.testing.assert_array_equal(found, np.tile(np.arange(300), [8, 1]))
  assert blas_threads() == before


class Recorded:
  """Vectors that are never in memory as a whole; records the rows requested."""

  def __init__(self, count, width):
    self.shape, self.asked = (count, width), []

  def __getitem__(self, rows):
    start, stop, _ = rows.indices(self.shape[0])
    self.asked.append(stop - start)
    return np.stack([np.cos(np.arange(self.shape[1]) * row) for row in range(start, stop)])


@pytest.mark.usefixtures("small")
def test_vectors_are_read_in_blocks_and_in_half_precision():
  source, target = Recorded(50, 6), Recorded(70, 6)
  near = exact_search.mutual_top_k(source, target, 2)
  assert (max(source.asked), max(target.asked)) == (10, 5)
  half = [side[:].astype(np.float16) for side in (source, target)]
  for sides, exact in (([source[:], 2 * target[:].astype(np.float32)], True), (half, False)):
    for one, other in zip(near, exact_search.mutual_top_k(*sides, 2), strict=True):
      np.testing.assert_allclose(one.score_NK, other.score_NK, atol=1e-6 if exact else 2e-3)
      assert not exact or (one.index_NK == other.index_NK).all()


@pytest.mark.parametrize("search", [exact_search.mutual_top_k, exact_search.top_k])
def test_broken_input_is_an_error(search):
  good = np.eye(3)
  for value in (np.nan, np.inf, 1e300, 3e38):
    bad = np.concatenate([np.ones([4, 3]), good])
    bad[5] = value
    for sides in ((good, bad), (bad, good)):
      with pytest.raises(ValueError, match="vector 5 is too large or contains"):
        search(*sides, 1)
  for sides, k, message in (
    ((good, good[:, :2]), 1, "different widths, 3 and 2"),
    ((good, good[:0]), 1, "neighbors among (3 sources and 0 targets|0 vectors)"),
    ((good, good[0]), 1, r"must be \[N, D\]"),
    ((good, good), 0, "k is 0; set it to an integer of 1 or more"),
    (
      (good.astype(np.uint8),) * 2,
      1,
      "uint8 vectors are quantized, so their cosines are meaningless; pass the unquantized",
    ),
  ):
    with pytest.raises(ValueError, match=message):
      search(*sides, k)


@pytest.mark.parametrize("counts", [(30, 50), (40, 3), (9, 60)])
def test_blocks_give_what_one_search_gives_to_the_bit(monkeypatch, counts):
  for name, value in (
    ("_SOURCE_ROWS", 8), ("_TARGET_ROWS", 4), ("_LEAST_SOURCES", 8), ("_BLOCK_SOURCES", 8),
    ("_BLOCK_TARGETS", 16),
  ):  # fmt: skip
    monkeypatch.setattr(exact_search, name, value)
  rng = np.random.default_rng(0)
  vectors = [rng.normal(size=(2 * count, 6)).astype(np.float32) for count in counts]
  sides = [exact_search.Selection(x, np.arange(0, len(x), 2)) for x in vectors]
  ran = []

  def run_blocks(function, blocks):
    ran.append(len(blocks))
    return itertools.starmap(function, blocks)

  search = functools.partial(exact_search.search_blocks, run_blocks=run_blocks)
  for one, other in zip(
    [
      exact_search.top_k(*sides, 3, search=search),
      *exact_search.mutual_top_k(*sides, 3, search=search),
    ],
    [exact_search.top_k(*sides, 3), *exact_search.mutual_top_k(*sides, 3)],
    strict=True,
  ):
    np.testing.assert_array_equal(one.index_NK, other.index_NK)
    np.testing.assert_array_equal(one.score_NK, other.score_NK)
  assert ran == [-(-counts[0] // 8) * -(-counts[1] // 16)] * 2
