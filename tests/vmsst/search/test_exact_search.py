import tracemalloc
from concurrent import futures

import eight_devices
import numpy as np
import pytest
import threadpoolctl

from vmsst.files import external_sort, large_arrays
from vmsst.search import exact_search


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


@pytest.fixture(params=["one block", "many blocks"])
def blocks(request, monkeypatch):
  if request.param == "many blocks":
    sizes = {
      "_BLOCK_ROWS": 5,
      "_HELD_ROWS": 10,
      "_SEGMENT": 3,
      "_GROUP": 2,
      "_PIECE": 2,
      "_EXPANDED": 40,
      "_NUMBERED": 7,
    }
    for name, size in sizes.items():
      monkeypatch.setattr(exact_search, name, size)
    monkeypatch.setattr(external_sort, "_RECORDS", 8)
    monkeypatch.setattr(large_arrays, "_IN_MEMORY", 0)


@pytest.mark.parametrize("width", [4, 16])
@pytest.mark.parametrize(("n", "m", "k"), [(23, 17, 5), (40, 61, 1), (3, 50, 4), (1, 1, 1)])
def test_nearest_both_ways_are_those_of_a_stable_sort(n, m, k, width, blocks):
  rng = np.random.default_rng(n)
  source, target = signs(rng, n, width), signs(rng, m, width)
  forward, backward = exact_search.mutual_top_k(3 * source, target, k)
  assert_best(forward, source @ target.T / width, k)
  assert_best(backward, target @ source.T / width, k)
  first, second = exact_search.mutual_neighbors(source.tolist(), target)
  np.testing.assert_array_equal(first, (source @ target.T).argmax(axis=1))
  np.testing.assert_array_equal(second, (target @ source.T).argmax(axis=1))


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
  parts = np.split(target, [1, 100, 101, 400])
  assert_best(exact_search.nearest_in_blocks(source, parts, 4), score, 4)


def test_fewer_than_k_give_all_and_zeros_are_near_nothing(blocks):
  source, target = np.array([[1.0, 0.0], [0.0, 0.0]]), np.array([[-2.0, 0.0], [0.0, 0.0], [3.0, 0]])
  forward, backward = exact_search.mutual_top_k(source, target, 9)
  assert forward.index_NK.tolist() == [[2, 1, 0], [0, 1, 2]]
  assert forward.score_NK.tolist() == [[1, 0, -1], [0, 0, 0]]
  assert backward.index_NK.tolist() == [[1, 0], [0, 1], [0, 1]]
  same = np.ones([7, 3])
  forward, backward = exact_search.mutual_top_k(same, same[:4], 2)
  assert forward.index_NK.tolist() == [[0, 1]] * 7
  assert backward.index_NK.tolist() == [[0, 1]] * 4


@pytest.mark.parametrize("k", [1, 3, 99])
def test_a_streamed_knowledge_base_gives_what_a_whole_one_gives(k, blocks):
  rng = np.random.default_rng(4)
  query, base = signs(rng, 11), signs(rng, 60)
  parts = iter([base[:1], base[1:1], base[1:20], 5 * base[20:]])
  assert_best(exact_search.nearest_in_blocks(query, parts, k), query @ base.T / 4, k)


def test_later_blocks_that_are_better_or_worse_throughout_change_nothing(blocks):
  angle = np.linspace(0.1, 1.5, 57)
  rising = np.stack([np.sin(angle), np.cos(angle)], axis=1)
  query = np.array([[1.0, 0.0], [0.0, 1.0]])
  assert_best(exact_search.nearest_in_blocks(query, np.split(rising, 3), 4), query @ rising.T, 4)


def test_half_precision_and_scale(blocks):
  rng = np.random.default_rng(1)
  source, target = (rng.normal(size=[30, 8]).astype(np.float16) for _ in range(2))
  whole = exact_search.mutual_top_k(source.astype(np.float64), 2 * target.astype(np.float32), 3)
  for near, expected in zip(exact_search.mutual_top_k(source, target, 3), whole, strict=True):
    np.testing.assert_array_equal(near.index_NK, expected.index_NK)
    np.testing.assert_array_equal(near.score_NK, expected.score_NK)


@pytest.mark.parametrize("threads", [1, 3, 16])
def test_any_number_of_threads_finds_the_same(threads, blocks):
  rng = np.random.default_rng(6)
  sides = [exact_search.DistinctVectors(rng.normal(size=[n, 8])) for n in (23, 31)]
  expected = exact_search.mutual_top_k(*sides, 3)
  near = [exact_search.no_neighbors(n, 3) for n in (23, 31)]
  ((_, held_HD),) = sides[0].unit_blocks(23)
  with futures.ThreadPoolExecutor(threads) as pool:
    exact_search._Comparison(pool, threads, held_HD, 0, *near).run(sides[1])
  for found, other in zip(near, expected, strict=True):
    np.testing.assert_array_equal(found.index_NK, other.index_NK)
    np.testing.assert_allclose(found.score_NK, other.score_NK, rtol=0, atol=1e-6)


def test_searches_in_several_threads_leave_blas_as_it_was():
  def blas_threads():
    return [each["num_threads"] for each in threadpoolctl.threadpool_info()]

  before, side = blas_threads(), np.random.default_rng(7).normal(size=[300, 8])
  with futures.ThreadPoolExecutor(4) as pool:
    found = list(pool.map(lambda _: exact_search.mutual_neighbors(side, side)[0], range(8)))
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


def test_vectors_are_read_in_blocks(monkeypatch):
  monkeypatch.setattr(exact_search, "_BLOCK_ROWS", 8)
  monkeypatch.setattr(exact_search, "_HELD_ROWS", 16)
  source, target = Recorded(50, 6), Recorded(70, 6)
  found = exact_search.mutual_top_k(source, target, 2)
  assert (max(source.asked), max(target.asked)) == (16, 8)
  expected = exact_search.mutual_top_k(source[:], target[:], 2)
  for near, other in zip(found, expected, strict=True):
    np.testing.assert_array_equal(near.index_NK, other.index_NK)


def test_memory_does_not_grow_with_the_knowledge_base(monkeypatch):
  monkeypatch.setattr(exact_search, "_BLOCK_ROWS", 256)
  query = np.random.default_rng(0).normal(size=[50, 64])
  exact_search.nearest_in_blocks(query, [query], 3)  # allocates what is allocated once

  def peak(count):
    rng = np.random.default_rng(1)
    tracemalloc.start()
    exact_search.nearest_in_blocks(query, (rng.normal(size=[2000, 64]) for _ in range(count)), 3)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return most

  assert peak(9) < 1.5 * peak(2)


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


def test_broken_input_is_an_error(monkeypatch):
  monkeypatch.setattr(exact_search, "_BLOCK_ROWS", 2)
  good = np.eye(3)
  for value in (np.nan, np.inf, 1e300):
    bad = good.copy()
    bad[2, 0] = value
    for sides in ((good, bad), (bad, good)):
      with pytest.raises(ValueError, match="vector 2 contains"):
        exact_search.mutual_top_k(*sides, 1)
    with pytest.raises(ValueError, match="vector 5 contains"):
      exact_search.nearest_in_blocks(good, [good, bad])
    with pytest.raises(ValueError, match="vector 2 contains"):
      exact_search.unit_rows(bad)
  with pytest.raises(ValueError, match="one width"):
    exact_search.mutual_top_k(good, good[:, :2], 1)
  with pytest.raises(ValueError, match="one width"):
    exact_search.nearest_in_blocks(good, [good, good[:, :2]])
  with pytest.raises(ValueError, match="neighbors among 3 and 0"):
    exact_search.mutual_top_k(good, good[:0], 1)
  with pytest.raises(ValueError, match="knowledge base is empty"):
    exact_search.nearest_in_blocks(good, [good[:0]])
  for broken in (
    exact_search.mutual_top_k,
    lambda x, y, k: exact_search.nearest_in_blocks(x, [y], k),
  ):
    for k in (0, 2.5, None):
      with pytest.raises(ValueError, match=f"k is {k}; it must be an integer of 1 or more"):
        broken(good, good, k)
    with pytest.raises(ValueError, match=r"must be \[N, D\]"):
      broken(good[0], good, 1)


def test_faiss_finds_the_same():
  faiss = pytest.importorskip("faiss")
  rng = np.random.default_rng(2)
  source, target = (exact_search.unit_rows(rng.normal(size=[count, 32])) for count in (2500, 3100))
  forward, backward = exact_search.mutual_top_k(source, target, 4)
  for near, query, base in ((forward, source, target), (backward, target, source)):
    index = faiss.IndexFlatIP(32)
    index.add(base)
    score_NK, index_NK = index.search(query, 4)
    np.testing.assert_allclose(near.score_NK, score_NK, atol=1e-6)
    assert np.mean(near.index_NK == index_NK) > 0.999  # those that are equal up to rounding


def run_on_eight_devices(folder):
  """Asserts that the device engine agrees with a stable sort, for any device and block of a row."""
  import jax

  from vmsst.search import device_search

  assert jax.device_count() == 8
  assert device_search.engine() is exact_search.compare  # CPUs are not accelerators
  rng = np.random.default_rng(0)
  source = np.concatenate([signs(rng, 30, 16)] * 2)
  target = np.concatenate([source[:20], signs(rng, 60, 16), source[10:20]])
  device_search._SOURCES, device_search._TARGETS = 16, 24
  for k in (1, 5):  # a device has fewer than 5 rows of a block
    found = exact_search.mutual_top_k(source, target, k, engine=device_search.compare)
    assert_best(found[0], source @ target.T / 16, k)
    assert_best(found[1], target @ source.T / 16, k)
  blocks = np.split(target, [40])
  near = exact_search.nearest_in_blocks(source, blocks, 5, engine=device_search.compare)
  assert_best(near, source @ target.T / 16, 5)
  print("the same")


def test_devices_find_the_same_together(tmp_path):
  printed = eight_devices.run(__file__, tmp_path)
  assert printed.splitlines()[-1] == "the same"
