import jax.numpy as jnp
import naive_search
import numpy as np
import pytest
import tiny_encoders

import vmsst
from vmsst.encoder import compatibility
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
  with pytest.raises(ValueError, match="3 sources, 2 targets; pass equally many"):
    encoder.score_pairs(SENTENCES[:3], iter(SENTENCES[:2]))


def test_margins_are_those_of_a_loop(encoder, expected):
  order = [3, 1, 0, 4, 2]
  naive = naive_search.Naive(expected[:5], expected[order], 2, "distance")
  found = encoder.margin_scores(
    SENTENCES[:5], [SENTENCES[j] for j in order], neighbors=2, margin="distance"
  )
  np.testing.assert_allclose(found, [naive.score(i, i) for i in range(5)], atol=5e-6)


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


RNG = np.random.default_rng(0)
VECTORS = (RNG.normal(size=[40, 13]) * RNG.uniform(0.01, 9, 13) + RNG.normal(size=13)).astype("f4")


def test_bytes_are_the_nearest_of_256_levels():
  low_D, high_D = VECTORS.min(axis=0), VECTORS.max(axis=0)
  levels_DL = np.linspace(low_D.astype(float), high_D, 256).T
  code_ND = compatibility.quantize(VECTORS, "int8")
  assert (code_ND.dtype, code_ND.min(), code_ND.max()) == (np.int8, -128, 127)
  for vector_D, code_D in zip(VECTORS, code_ND, strict=True):
    for value, code, level_L in zip(vector_D, code_D, levels_DL, strict=True):
      distance_L = np.abs(level_L - value)
      assert distance_L[int(code) + 128] <= distance_L.min() + 1e-6 * np.ptp(level_L)


@pytest.mark.parametrize("precision", ["int8", "uint8", "binary", "ubinary"])
def test_quantize_agrees_with_sentence_transformers(precision):
  pytest.importorskip("sentence_transformers", reason="needs sentence-transformers")
  from sentence_transformers.util import quantization as theirs

  vectors_ND = RNG.normal(size=[200, 16]).astype(np.float32)
  vectors_ND[0, :5] = 0
  expected_NC = theirs.quantize_embeddings(vectors_ND, precision)
  found_NC = compatibility.quantize(vectors_ND, precision)
  assert found_NC.dtype == expected_NC.dtype
  if precision.endswith("binary"):
    np.testing.assert_array_equal(found_NC, expected_NC)
  else:  # It does not round but truncates.
    assert np.abs(found_NC.astype(int) - expected_NC.astype(int)).max() <= 1


def test_quantize_takes_ranges_of_other_vectors():
  ranges_2D = np.array([[0, 5], [255, 5]], np.float32)
  given_ND = np.array([[999, 5], [-9, 5], [3.4, 5]])
  found_ND = compatibility.quantize(given_ND, "uint8", ranges_2D)
  assert (found_ND.dtype, found_ND.tolist()) == (np.uint8, [[255, 0], [0, 0], [3, 0]])
  found_ND = compatibility.quantize(given_ND, "int8", ranges_2D)
  assert (found_ND.dtype, found_ND.tolist()) == (np.int8, [[127, -128], [-128, -128], [-125, -128]])
  assert compatibility.quantize(VECTORS[:0], "int8").dtype == np.int8
  with pytest.raises(ValueError, match="int8 requires the range of each dimension"):
    compatibility.quantize(VECTORS[:1], "int8")
  with pytest.raises(ValueError, match=r"ranges have the shape \(2, 2\), not \(2, 13\)"):
    compatibility.quantize(VECTORS, "int8", ranges_2D)
  with pytest.raises(ValueError, match="precision is 'int4'; known: float32, int8"):
    compatibility.quantize(VECTORS, "int4")
