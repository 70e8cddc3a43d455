import fake_encoders
import numpy as np

from vmsst.evaluation import embedder


def lengths(text):
  return [len(text), text.count("e")]


def test_texts_are_embedded_in_windows_with_the_same_vectors(monkeypatch):
  texts = [f"text {i}" for i in range(7)]
  expected = embedder.Embedder(fake_encoders.FakeEncoder(lengths))(embedder.TextSet("en", texts))
  monkeypatch.setattr(embedder, "WINDOW", 3)
  encoder = fake_encoders.FakeEncoder(lengths)
  vectors = embedder.Embedder(encoder)
  np.testing.assert_array_equal(vectors(embedder.TextSet("en", texts)), expected)
  assert encoder.sizes == [3, 3, 1]
  assert vectors.width == 2


def test_text_sets_of_queries_use_the_method_for_queries():
  encoder = fake_encoders.FakeEncoder(lengths)
  encoder.encode_query = lambda texts: -encoder.encode(texts)
  queries = embedder.TextSet("en", ["a", "bee"], "encode_query")
  np.testing.assert_array_equal(embedder.Embedder(encoder)(queries), [[-1, 0], [-3, -2]])


def test_the_vector_of_a_split_text_is_the_mean_of_its_pieces(monkeypatch):
  monkeypatch.setattr(embedder, "BLOCK", 2)
  encoder = fake_encoders.FakeEncoder(lengths)
  texts = ["One Three", "Zero", "", "Ten Eleven Six"]
  text_set = embedder.TextSet("en", texts, split=lambda text: text.split(" "))
  vectors_ND = embedder.Embedder(encoder)(text_set)
  expected = [[(3 + 5) / 2, 1.5], [4, 1], [0, 0], [(3 + 6 + 3) / 3, 1]]
  np.testing.assert_allclose(vectors_ND, expected, rtol=1e-6)
  assert encoder.calls == [["One", "Three", "Zero"], ["", "Ten", "Eleven", "Six"]]


def test_equal_texts_of_a_benchmark_share_vectors():
  encoder = fake_encoders.FakeEncoder(lengths)
  vectors = embedder.Embedder(encoder)
  for texts in ("aba", "cb"):
    vectors.share([embedder.TextSet("en", list(texts))], lambda line: None)
  assert encoder.calls == [["a", "b"], ["c", "b"]]
  np.testing.assert_array_equal(vectors(embedder.TextSet("en", "cc")), 2 * [lengths("c")])
  assert len(encoder.calls) == 2
  # Texts of an earlier benchmark and texts in another language are embedded again.
  vectors(embedder.TextSet("en", ["a"]))
  vectors(embedder.TextSet("de", ["b"]))
  assert encoder.calls[2:] == [["a"], ["b"]]
