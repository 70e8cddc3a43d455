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
    with pytest.raises(errors.InputError, match="vector of 'b' contains a value that"):
      encoding.check_finite(vectors_ND, ["a", "b", "c"])
