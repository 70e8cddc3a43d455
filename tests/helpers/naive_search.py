"""Neighbors and mined pairs by plain loops and sorts; folders of computed vectors."""

import line_files
import numpy as np

from vmsst.io import array_files
from vmsst.jobs import job
from vmsst.search import exact_search, vector_store

MARGINS = {
  "ratio": lambda cosine, mean: cosine / mean if mean > 0 else 0.0,
  "distance": lambda cosine, mean: cosine - mean,
  "absolute": lambda cosine, mean: cosine,
}


class Naive:
  """Computes scores by plain loops in float64; row numbers break ties."""

  def __init__(self, source, target, k, margin="ratio"):
    unit = [[np.array(x, float) / np.linalg.norm(x) for x in side] for side in (source, target)]
    self.cosine = np.array([[x @ y for y in unit[1]] for x in unit[0]])
    near_x = [sorted(range(len(x)), key=lambda j, x=x: (-x[j], j))[:k] for x in self.cosine]
    near_y = [sorted(range(len(y)), key=lambda i, y=y: (-y[i], i))[:k] for y in self.cosine.T]
    self.mean_x = [np.mean([self.cosine[i, j] for j in near]) for i, near in enumerate(near_x)]
    self.mean_y = [np.mean([self.cosine[i, j] for i in near]) for j, near in enumerate(near_y)]
    self.near_x, self.near_y, self.margin = near_x, near_y, MARGINS[margin]

  def score(self, i, j):
    return self.margin(self.cosine[i, j], (self.mean_x[i] + self.mean_y[j]) / 2)

  def pairs(self, retrieval="max"):
    forward = [
      (i, max(near, key=lambda j, i=i: self.score(i, j))) for i, near in enumerate(self.near_x)
    ]
    backward = [
      (max(near, key=lambda i, j=j: self.score(i, j)), j) for j, near in enumerate(self.near_y)
    ]
    if retrieval == "max":
      kept = []
      both = set(forward) | set(backward)
      for i, j in sorted(both, key=lambda pair: (-self.score(*pair), pair)):
        if all(i != x and j != y for x, y in kept):
          kept.append((i, j))
      return kept
    both = [pair for pair in forward if pair in backward]
    kept = {"forward": forward, "backward": backward, "intersection": both}[retrieval]
    return sorted(kept, key=lambda pair: (-self.score(*pair), pair))


def signs(rng, count, width=4):
  """Returns rows of +-1: cosines are exact with few values, so that there are many ties."""
  return rng.choice([-1.0, 1.0], [count, width])


def assert_best(near, score_NM, k):
  """Asserts that neighbors are the first k columns of a stable sort of each row."""
  order_NK = np.argsort(-score_NM, axis=1, kind="stable")[:, :k]
  np.testing.assert_array_equal(near.index_NK, order_NK)
  np.testing.assert_allclose(
    near.score_NK, np.take_along_axis(score_NM, order_NK, axis=1), rtol=0, atol=1e-6
  )
  assert (near.index_NK.dtype, near.score_NK.dtype) == (np.int64, np.float32)


def check_searches(search, n, m, k, width):
  """Asserts that searches of all rows and of some find what a stable sort of all scores finds."""
  rng = np.random.default_rng(n)
  source, target = signs(rng, n, width), signs(rng, m, width)
  score = source @ target.T / width
  forward, backward = exact_search.mutual_top_k(3 * source, target, k, search=search)
  assert_best(forward, score, k)
  assert_best(backward, score.T, k)
  assert_best(exact_search.top_k(source.tolist(), target, k, search=search), score, k)
  assert_best(exact_search.top_k(source[0], target, k, search=search), score[:1], k)
  row_N, row_M = np.flatnonzero(np.arange(n) % 3 != 1), np.flatnonzero(np.arange(m) % 2 == 0)
  sides = exact_search.Selection(source, row_N), exact_search.Selection(target, row_M)
  forward, backward = exact_search.mutual_top_k(*sides, k, search=search)
  assert_best(forward, score[row_N][:, row_M], k)
  assert_best(backward, score[row_N][:, row_M].T, k)


def write_vectors(folder, vectors_ND, *, dtype="float32", inputs=None, shard_rows=1 << 14):
  """Writes vectors to a new folder as `vmsst embed` does, and opens it."""
  count, width = vectors_ND.shape
  with job.Job(folder, inputs=inputs or {}) as work:
    for number, rows in enumerate(exact_search.blocks(count, shard_rows)):
      with work.part(vector_store.shard_name(number)) as (path, facts):
        shard_ND = vectors_ND[rows]
        array_files.write(path, shard_ND.shape, [shard_ND], dtype)
        facts["rows"] = len(shard_ND)
    work.finish(dimension=width, dtype=dtype)
  return vector_store.open_vectors(folder)


LETTERS = ["a" * (i * 7 % 4) + "b" * (i * 5 % 3) + "!" * (i % 2) for i in range(31)]
LETTER_QUERIES = ["ab", "", "aaab", "b", "ab", "aa!", "bbb", "abab", "a"]


def letters_vector(text):
  """Returns vectors with few directions, so that there are ties."""
  return [text.count("a"), text.count("b"), 1]


def write_letters(folder, lines):
  """Writes lines and their vectors in several shards, and opens them."""
  folder.mkdir(exist_ok=True)
  path = line_files.write_lines(folder / "base.txt", lines)
  vectors_ND = np.array([letters_vector(line) for line in lines])
  write_vectors(folder / "base", vectors_ND, shard_rows=10)
  return vector_store.open_text(str(path), folder / "base")
