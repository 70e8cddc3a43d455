import numpy as np
import pytest

from vmsst.mining import span_search
from vmsst.search import exact_search
from vmsst.vectors import vector_store


def stored(folder, vectors_ND, shard_rows):
  writer = vector_store.Writer(folder, vectors_ND.shape[1], shard_rows=shard_rows)
  writer.append(vectors_ND)
  writer.finish()
  return vector_store.open_vectors(folder)


@pytest.mark.parametrize(
  "blank", [[], [0, 1, 2, 13, 14, 59], range(10, 30), [*range(10), *range(50, 60)], range(1, 60)]
)
@pytest.mark.parametrize("width", [3, 300])
def test_spans_find_what_a_search_in_one_piece_finds(tmp_path, monkeypatch, width, blank):
  rng = np.random.default_rng(0)
  vectors_ND = rng.normal(size=(60, width)).astype(np.float32)[rng.integers(0, 25, 60)]
  query_ND = rng.normal(size=(9, width))
  query_ND[5] = query_ND[2]
  vectors = stored(tmp_path, vectors_ND, 10)
  row_S = np.delete(np.arange(60), blank)
  expected = exact_search.nearest_in_blocks(query_ND, [vectors_ND[row_S]], 7)
  for least, spans in ((10, 6), (11, 3), (60, 1)):
    monkeypatch.setattr(span_search, "_SPAN_ROWS", least)
    search = span_search.SpanSearch(vectors, np.array(blank, np.int64), exact_search.compare)
    found = search.nearest(query_ND, 7)
    assert len(search.spans) == spans
    np.testing.assert_array_equal(found.index_NK, row_S[expected.index_NK])
    np.testing.assert_allclose(found.score_NK, expected.score_NK, rtol=0, atol=1e-6)
    # Identical vectors are equally near, also in different spans.
    for index_K, score_K in zip(found.index_NK, found.score_NK, strict=True):
      same_KK = (vectors_ND[index_K, None] == vectors_ND[index_K]).all(axis=2)
      np.testing.assert_array_equal(same_KK, score_K[:, None] == score_K)


def test_spans_depend_on_the_number_of_rows(tmp_path, monkeypatch):
  monkeypatch.setattr(span_search, "_SPAN_ROWS", 4)
  monkeypatch.setattr(span_search, "_MOST_SPANS", 3)
  counts = {3: [3], 4: [4], 9: [4, 4, 1], 12: [4, 4, 4], 13: [6, 6, 1], 60: [20, 20, 20]}
  for count, expected in counts.items():
    vectors = stored(tmp_path / str(count), np.ones((count, 1)), 2)
    rows = vectors.shard_rows
    assert [sum(rows[span.start : span.stop]) for span in span_search.spans(vectors)] == expected
