import numpy as np

from vmsst.encoder import batching


def test_few_shapes_and_little_padding():
  rng = np.random.default_rng(0)
  ids = [[1] * int(n) for n in rng.integers(0, 65, size=1003)]
  shapes, rows, cells = set(), [], 0
  for index_B, tokens_RT in batching.padded_batches(ids, 32, 64):
    shapes.add(tokens_RT.shape)
    rows, cells = [*rows, *index_B], cells + tokens_RT.size
    for index, row_T in zip(index_B, tokens_RT, strict=False):
      assert row_T.sum() == len(ids[index])
    assert not tokens_RT[len(index_B) :].any()
  assert sorted(rows) == list(range(1003))
  assert len(shapes) <= 10
  assert cells < 1.35 * sum(len(x) for x in ids)
