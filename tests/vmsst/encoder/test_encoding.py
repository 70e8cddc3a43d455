import copy

import fake_encoders
import numpy as np
import pytest

from vmsst import errors
from vmsst.encoder import encoding


def test_a_given_prompt_replaces_those_of_queries_and_documents():
  encoder = fake_encoders.FakeEncoder(lambda text: np.full(3, len(text)))
  encoder.encode_query = lambda texts: -encoder.encode(texts)
  for prompt, sign in ((None, -1), ("query: ", 1), ("", 1)):
    encoder.prompt = prompt
    found = encoding.encode(encoder, ["a", "bc"], method="encode_query")
    np.testing.assert_array_equal(found, sign * encoder.encode(["a", "bc"]))


def test_vectors_that_are_not_finite_name_their_text():
  for value in (np.nan, np.inf, 3e38):
    vectors_ND = np.array([[1, 1], [1, value], [2, 2]], np.float32)
    with pytest.raises(errors.InputError, match="vector for 'b' contains a value that"):
      encoding.check_finite(vectors_ND, ["a", "b", "c"])


def test_encoders_get_what_they_know():
  class Knowing:
    def encode(self, sentences, *, language=None, batch_size=1, progress=None):
      self.got = language, batch_size, progress
      return [[1.0, 2.0]] * len(sentences)

  encoder = Knowing()
  found = encoding.encode(encoder, ("a", "b"), language="de", batch_size=7, progress=False)
  assert (found.tolist(), found.dtype) == ([[1, 2], [1, 2]], np.float32)
  assert encoder.got == ("de", 7, False)
  encoder.encode = lambda sentences: np.zeros([3, 2])
  with pytest.raises(ValueError, match=r"returned an array of shape \(3, 2\) for 2 texts"):
    encoding.encode(encoder, ["a", "b"])


def test_a_process_loads_an_encoder_once_and_keeps_one_and_notices_another():
  loaded = []

  def load(digest):
    loaded.append(digest)
    encoder = fake_encoders.FakeEncoder(lambda text: [1.0])
    encoder.digest = digest
    return "name", encoder

  def source(digest, found):
    """Returns a source as another process gets it."""
    _, encoder = load(digest)
    return copy.copy(encoding.EncoderSource(encoder, "name", lambda: load(found)))

  first, second, changed = (
    source(digest, found) for digest, found in (("a", "a"), ("b", "b"), ("before", "after"))
  )
  loaded.clear()
  assert first.open() is first.open()
  assert second.open().digest == "b"
  assert first.open().digest == "a"
  assert loaded == ["a", "b", "a"]
  with pytest.raises(errors.InputError, match="name has changed"):
    changed.open()


def test_an_encoder_in_memory_is_for_this_process_and_this_time():
  encoder = fake_encoders.FakeEncoder(lambda text: [1.0])
  encoder.digest = "a"
  source = encoding.EncoderSource(encoder, "name")
  assert source.identity == {"name": "name", "digest": "a"}
  assert source.open() is encoder
  source = copy.copy(source)  # as another process gets it
  with pytest.raises(errors.InputError, match="name cannot be loaded in other processes"):
    source.open()


def test_every_line_of_a_bitext_has_the_vectors_that_the_encoder_returns(tmp_path, monkeypatch):
  monkeypatch.setattr(encoding, "_WINDOW", 4)
  encoder = fake_encoders.FakeEncoder(fake_encoders.random_vector)
  encoder.dimension = 6
  pairs = [("eins", "one"), ("", "nothing"), ("zwei und drei", "two and three")]
  options = {"count": 3, "languages": ("de", "en"), "title": "x"}
  facts = encoding.write_pair_vectors(encoder, iter(pairs), tmp_path / "x.npy", **options)
  assert facts == {"lines": 3, "dimension": 6}
  expected_N2D = [[fake_encoders.random_vector(text) for text in pair] for pair in pairs]
  np.testing.assert_array_equal(np.load(tmp_path / "x.npy"), np.float32(expected_N2D))
