import jax.numpy as jnp
import naive_search
import numpy as np
import pytest
import tiny_encoders

import vmsst
from vmsst.networks import sentence_encoder

NETWORK = sentence_encoder.SentenceEncoder(tiny_encoders.t5_config(), latent_dim=6)
SENTENCES = ["b", "a rather longer sentence than the first", "", "été", "z" * 100, "b"]


@pytest.fixture(scope="module")
def encoder():
  params = tiny_encoders.random_params(NETWORK)
  return vmsst.Encoder(NETWORK, params, tiny_encoders.BYTES, max_length=20)


@pytest.fixture(scope="module")
def expected(encoder):
  return encoder.encode(SENTENCES)


def cosines(one_ND, other_MD):
  return [[float(x @ y / np.linalg.norm(x) / np.linalg.norm(y)) for y in other_MD] for x in one_ND]


def test_similarity_and_pairs_are_cosines(encoder, expected):
  np.testing.assert_allclose(
    encoder.similarity(SENTENCES[:3], iter(SENTENCES[3:])),
    cosines(expected[:3], expected[3:]),
    atol=2e-6,
  )
  both = encoder.similarity(jnp.asarray(expected))
  np.testing.assert_allclose(both, cosines(expected, expected), atol=2e-6)
  pairs = encoder.score_pairs(SENTENCES[:3], expected[3:])
  np.testing.assert_allclose(pairs, np.diag(cosines(expected[:3], expected[3:])), atol=2e-6)
  with pytest.raises(ValueError, match="3 sources and 2 targets are not pairs"):
    encoder.score_pairs(SENTENCES[:3], iter(SENTENCES[:2]))


def test_margins_are_those_of_a_loop(encoder, expected):
  order = [3, 1, 0, 4, 2]
  naive = naive_search.Naive(expected[:5], expected[order], 2, "distance")
  found = encoder.margin_scores(
    SENTENCES[:5], [SENTENCES[j] for j in order], neighbors=2, margin="distance"
  )
  np.testing.assert_allclose(found, [naive.score(i, i) for i in range(5)], atol=5e-6)


@pytest.mark.parametrize("method", ["similarity", "score_pairs", "margin_scores"])
def test_scores_are_those_of_whole_vectors_and_one_text_is_a_side(encoder, method):
  expected = getattr(encoder, method)(SENTENCES[:1], SENTENCES[1:2])
  found = getattr(encoder, method)(SENTENCES[0], SENTENCES[1], precision="binary")
  np.testing.assert_array_equal(found, expected)


def test_one_vector_and_truncated_vectors_are_compared(encoder, expected):
  cosine_NN = cosines(expected, expected)
  for one in (expected[0], [expected[0]], jnp.asarray(expected[0])):
    found_1N = encoder.similarity(one, expected)
    np.testing.assert_allclose(found_1N, cosine_NN[:1], atol=2e-6)
  np.testing.assert_allclose(encoder.score_pairs(expected[0], expected[1]), [cosine_NN[0][1]], 1e-5)
  short_ND = expected[:, :3]
  np.testing.assert_allclose(encoder.similarity(list(short_ND)), cosines(short_ND, short_ND), 1e-5)
  with pytest.raises(ValueError, match="mismatch"):
    encoder.similarity(expected, short_ND)
  halves_ND = jnp.ones((2, 6), jnp.bfloat16)
  np.testing.assert_allclose(encoder.similarity(halves_ND), np.ones((2, 2)), atol=1e-6)
