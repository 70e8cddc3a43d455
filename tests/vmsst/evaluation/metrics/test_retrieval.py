import numpy as np
import pytest

from vmsst.evaluation.metrics import retrieval
from vmsst.search import exact_search


def test_accuracy_of_a_matrix_checked_by_hand():
  # Cosines of sources (rows) and targets (columns); * is the best of a row, + the best of a column:
  #   0.8    1.0*+  0.6
  #   0.6    0.0    0.8*
  #   1.0*+  0.8    0.96+
  source = np.array([[0.0, 2.0], [1.0, 0.0], [0.6, 0.8]])
  target = np.array([[6.0, 8.0], [0.0, 1.0], [8.0, 6.0]])
  near = exact_search.mutual_top_k(source, target, 1)
  assert [x.index_NK[:, 0].tolist() for x in near] == [[1, 2, 0], [2, 0, 2]]
  accuracy = retrieval.translation_accuracy(source, target)
  assert accuracy == pytest.approx({"forward": 0, "backward": 1 / 3, "average": 1 / 6})
  aligned = retrieval.translation_accuracy(source, target[[1, 2, 0]])
  assert aligned == pytest.approx({"forward": 1, "backward": 2 / 3, "average": 5 / 6})


def test_of_equal_sentences_the_first_counts():
  vectors = np.eye(3)[[0, 1, 1, 2]]
  accuracy = retrieval.translation_accuracy(vectors, vectors)
  assert accuracy == {"forward": 0.75, "backward": 0.75, "average": 0.75}
  assert retrieval.translation_accuracy(np.ones([4, 2]), np.ones([4, 2]))["average"] == 0.25


def test_broken_vectors_and_wrong_shapes_are_an_error():
  good = np.eye(3)
  bad = good.copy()
  bad[1, 1] = np.nan
  with pytest.raises(ValueError, match="vector 1 contains a value that is not finite"):
    retrieval.translation_accuracy(good, bad)
  with pytest.raises(ValueError, match="one shape"):
    retrieval.translation_accuracy(good, good[:2])
  with pytest.raises(ValueError, match="one shape"):
    retrieval.translation_accuracy(good[:0], good[:0])


def test_recall_looks_at_the_k_nearest_and_no_further():
  index = np.array([[3, 1, 0], [0, 2, 1], [2, 0, 1], [1, 3, 2]])
  near = exact_search.Neighbors(index, np.zeros(index.shape, np.float32))
  gold = [1, 0, 1, 0]  # second, first, third, not at all
  assert [retrieval.recall(near, gold, k) for k in (1, 2, 3, 9)] == [0.25, 0.5, 0.75, 0.75]
  with pytest.raises(ValueError, match="R@0 is undefined"):
    retrieval.recall(near, gold, 0)
  with pytest.raises(ValueError, match="for 4 queries"):
    retrieval.recall(near, gold[:2], 1)
