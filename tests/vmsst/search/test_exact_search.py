import functools
import tracemalloc
from concurrent import futures

import commands
import naive_search
import numpy as np
import pytest
import threadpoolctl

from vmsst.io import large_arrays
from vmsst.jobs import engines
from vmsst.search import device_search, exact_search, sharded_search

SMALL = functools.partial(exact_search.compare, held_rows=10, block_rows=5)
DEVICES = functools.partial(device_search.compare_on_devices, sources=16, targets=24)


def signs(rng, count, width=4):
  """Returns rows of +-1: cosines are exact with few values; at width 4 many rows are identical."""
  return rng.choice([-1.0, 1.0], [count, width])


def assert_best(near, score_NM, k):
  """Asserts that neighbors are the first k columns of a stable sort of each row."""
  order_NK = np.argsort(-score_NM, axis=1, kind="stable")[:, :k]
  np.testing.assert_array_equal(near.index_NK, order_NK)
  np.testing.assert_allclose(
    near.score_NK, np.take_along_axis(score_NM, order_NK, axis=1), rtol=0, atol=1e-6
  )
  assert (near.index_NK.dtype, near.score_NK.dtype) == (np.int64, np.float32)


def distinct(vectors_ND, wanted_N=None):
  return exact_search.DistinctVectors(vectors_ND, wanted_N, block_rows=7)


@pytest.fixture
def on_disk(monkeypatch):
  """Makes what is stored per vector large."""
  monkeypatch.setattr(large_arrays, "_RECORDS", 8)
  monkeypatch.setattr(large_arrays, "_IN_MEMORY", 0)


@pytest.mark.usefixtures("on_disk")
@pytest.mark.parametrize(
  ("compare", "n", "m", "k", "width"),
  [
    (exact_search.compare, 23, 17, 5, 4), (exact_search.compare, 200, 17, 5, 16),
    (SMALL, 23, 17, 5, 16), (SMALL, 40, 61, 1, 4),
    (SMALL, 3, 50, 4, 16), (SMALL, 1, 1, 99, 4), (DEVICES, 23, 57, 5, 4), (DEVICES, 3, 50, 4, 16),
  ],
)  # fmt: skip
def test_the_nearest_are_those_of_a_stable_sort(compare, n, m, k, width):
  rng = np.random.default_rng(n)
  source, target = signs(rng, n, width), signs(rng, m, width)
  score = source @ target.T / width
  sides = distinct(3 * source), distinct(target)
  forward, backward = exact_search.mutual_top_k(*sides, k, compare=compare)
  assert_best(forward, score, k)
  assert_best(backward, score.T, k)
  assert_best(exact_search.top_k(source.tolist(), target, k, compare=compare), score, k)
  assert_best(exact_search.top_k(source[0], target, k, compare=compare), score[:1], k)
  wanted_N, wanted_M = np.arange(n) % 3 != 1, np.arange(m) % 2 == 0
  sides = distinct(source, wanted_N), distinct(target, wanted_M)
  forward, backward = exact_search.mutual_top_k(*sides, k, compare=compare)
  some = score[wanted_N][:, wanted_M]
  for near, own, other, wanted in (
    (forward, wanted_N, wanted_M, some),
    (backward, wanted_M, wanted_N, some.T),
  ):
    assert (near.score_NK[~own] == -np.inf).all()
    places = np.searchsorted(np.flatnonzero(other), near.index_NK[own])
    assert_best(exact_search.Neighbors(places, near.score_NK[own]), wanted, k)


def test_identical_vectors_are_equally_near_wherever_they_stand():
  rng = np.random.default_rng(0)
  x, y = (rng.normal(size=[count, 300]).astype(np.float32) for count in (40, 50))
  x[:, 0] = 0
  of_source, of_target = rng.integers(0, 40, 333), rng.integers(0, 50, 517)
  unit_x, unit_y = (v / np.linalg.norm(v.astype(float), axis=1, keepdims=True) for v in (x, y))
  score = (unit_x @ unit_y.T)[of_source][:, of_target]
  source, target = x[of_source], y[of_target]
  source[::2, 0] = -0.0  # equal to 0
  forward, backward = exact_search.mutual_top_k(source, target, 4)
  assert_best(forward, score, 4)
  assert_best(backward, score.T, 4)


def test_fewer_than_k_give_all_and_zeros_are_near_nothing():
  source, target = np.array([[1.0, 0.0], [0.0, 0.0]]), np.array([[-2.0, 0.0], [0.0, 0.0], [3.0, 0]])
  forward, backward = exact_search.mutual_top_k(source, target, 9)
  assert forward.index_NK.tolist() == [[2, 1, 0], [0, 1, 2]]
  assert forward.score_NK.tolist() == [[1, 0, -1], [0, 0, 0]]
  assert backward.index_NK.tolist() == [[1, 0], [0, 1], [0, 1]]


@pytest.mark.parametrize("order", [1, -1])
def test_later_blocks_that_are_better_or_worse_throughout_change_nothing(order):
  angle = np.linspace(0.1, 1.5, 1500)[::order]
  rising = np.stack([np.sin(angle), np.cos(angle)], axis=1)
  query = np.array([[1.0, 0.0], [0.0, 1.0]])
  compare = functools.partial(exact_search.compare, block_rows=600)
  forward, backward = exact_search.mutual_top_k(query, rising, 4, compare=compare)
  assert_best(forward, query @ rising.T, 4)
  assert_best(backward, rising @ query.T, 4)


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


def test_vectors_are_read_in_blocks_and_in_half_precision():
  source, target = Recorded(50, 6), Recorded(70, 6)
  found = exact_search.mutual_top_k(distinct(source), distinct(target), 2, compare=SMALL)
  assert (max(source.asked), max(target.asked)) == (10, 7)
  assert 5 in target.asked
  half = [side[:].astype(np.float16) for side in (source, target)]
  for sides, exact in (([source[:], 2 * target[:].astype(np.float32)], True), (half, False)):
    for near, other in zip(found, exact_search.mutual_top_k(*sides, 2), strict=True):
      np.testing.assert_allclose(near.score_NK, other.score_NK, atol=1e-6 if exact else 2e-3)
      assert not exact or (near.index_NK == other.index_NK).all()


def test_memory_does_not_grow_with_the_vectors():
  def peak(count):
    sides = Recorded(50, 64), Recorded(count, 64)
    tracemalloc.start()
    compare = functools.partial(exact_search.compare, block_rows=256)
    exact_search.top_k(*map(distinct, sides), 3, compare=compare)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return most

  peak(100)  # allocates what is allocated once
  assert peak(9000) < 1.5 * peak(2000)


@pytest.mark.parametrize("scale", [1e-38, 3e38])
def test_lengths_that_float32_cannot_hold_do_not_matter(scale):
  rng = np.random.default_rng(3)
  source, target = (rng.uniform(-1, 1, [9, 50]).astype(np.float32) for _ in range(2))
  long = (source * np.float32(scale), target)
  for found, wanted in zip(
    exact_search.mutual_top_k(*long, 3), exact_search.mutual_top_k(source, target, 3), strict=True
  ):
    np.testing.assert_array_equal(found.index_NK, wanted.index_NK)
    np.testing.assert_allclose(found.score_NK, wanted.score_NK, atol=1e-6)


@pytest.mark.parametrize("search", [exact_search.mutual_top_k, exact_search.top_k])
def test_broken_input_is_an_error(search):
  good = np.eye(3)
  for value in (np.nan, np.inf, 1e300):
    bad = np.concatenate([np.ones([4, 3]), good])
    bad[5, 0] = value
    for sides in ((good, distinct), (distinct, good)):
      with pytest.raises(ValueError, match="vector 5 contains"):
        search(*(distinct(bad) if side is distinct else side for side in sides), 1)
    with pytest.raises(ValueError, match="vector 5 contains"):
      exact_search.unit_rows(bad)
  for sides, k, message in (
    ((good, good[:, :2]), 1, "one width, not 3 and 2"),
    ((good, good[:0]), 1, "neighbors among (3 and )?0 vectors"),
    ((good[None], good), 1, r"must be \[N, D\]"),
    ((good, good[0]), 1, r"must be \[N, D\]"),
    ((good, good), 0, "k is 0; set it to an integer of 1 or more"),
    ((good, good), 2.5, "k is 2.5; set it"),
  ):
    with pytest.raises(ValueError, match=message):
      search(*sides, k)


def run_on_eight_devices(folder):
  """Asserts that devices agree with a stable sort, for any device and block of a row."""
  import jax

  assert jax.device_count() == 8
  rng = np.random.default_rng(0)
  source = np.concatenate([signs(rng, 30, 16)] * 2)
  target = np.concatenate([source[:20], signs(rng, 60, 16), source[10:20]])
  # A device has fewer than 5 rows of a block.
  forward, backward = exact_search.mutual_top_k(source, target, 5, compare=DEVICES)
  assert_best(forward, source @ target.T / 16, 5)
  assert_best(backward, target @ source.T / 16, 5)
  assert_best(exact_search.top_k(source, target, 5, compare=DEVICES), source @ target.T / 16, 5)
  print("the same")


def test_devices_find_the_same_together(tmp_path):
  printed = commands.on_eight_devices(__file__, tmp_path)
  assert printed.splitlines()[-1] == "the same"


def stored_sides(tmp_path, *counts):
  """Returns two stored sides, with repeated vectors in several blocks."""
  rng = np.random.default_rng(0)
  for name, count in zip("ab", counts, strict=True):
    vectors_ND = rng.normal(size=(count, 6)).astype(np.float32)
    vectors_ND[count // 2 :: 3] = vectors_ND[: len(vectors_ND[count // 2 :: 3])]
    rows = naive_search.write_vectors(tmp_path / name, vectors_ND, shard_rows=50)
    yield exact_search.DistinctVectors(rows, np.arange(count) % 7 > 0)


@pytest.mark.parametrize("counts", [(30, 50), (40, 3), (9, 60)])
@pytest.mark.parametrize("most", [100, 4])
def test_units_give_what_one_search_gives_to_the_bit(tmp_path, monkeypatch, counts, most):
  monkeypatch.setattr(sharded_search, "_MOST_BLOCKS", most)
  monkeypatch.setattr(sharded_search, "_SOURCES", 8)
  monkeypatch.setattr(sharded_search, "_TARGETS", 16)
  sides = list(stored_sides(tmp_path, *counts))
  compare = functools.partial(exact_search.compare, held_rows=8, block_rows=4)
  for folder, search in (("one", exact_search.top_k), ("both", exact_search.mutual_top_k)):
    units = sharded_search.compare(tmp_path / folder, compare=compare, engine=engines.Local())
    found, expected = (search(*sides, 3, compare=each) for each in (units, compare))
    if search is exact_search.top_k:
      found, expected = (found,), (expected,)
    for own, whole in zip(found, expected, strict=True):
      np.testing.assert_array_equal(own.index_NK, whole.index_NK)
      np.testing.assert_array_equal(own.score_NK, whole.score_NK)
    made = len(list((tmp_path / folder).glob("*.npz")))
    whole = -(-counts[0] // 8) * -(-counts[1] // 16)
    assert made == whole if most == 100 else made <= 4
