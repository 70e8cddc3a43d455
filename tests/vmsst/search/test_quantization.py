"""Bytes and bits of vectors, compared with loops and with FAISS."""

import numpy as np
import pytest

from vmsst.search import quantization

RNG = np.random.default_rng(0)
VECTORS = (RNG.normal(size=[40, 13]) * RNG.uniform(0.01, 9, 13) + RNG.normal(size=13)).astype("f4")


def test_bytes_are_the_nearest_of_256_levels():
  ranges_2D = quantization.ranges(VECTORS)
  levels_DL = np.array([np.linspace(low, high, 256) for low, high in ranges_2D.T.astype(float)])
  code_ND = quantization.to_bytes(VECTORS, ranges_2D)
  assert (code_ND.dtype, code_ND.min(), code_ND.max()) == (np.int8, -128, 127)
  for vector_D, code_D in zip(VECTORS, code_ND, strict=True):
    for value, code, level_L in zip(vector_D, code_D, levels_DL, strict=True):
      distance_L = np.abs(level_L - value)
      assert distance_L[int(code) + 128] <= distance_L.min() + 1e-6 * np.ptp(level_L)
  found_ND = quantization.from_bytes(code_ND, ranges_2D)
  assert found_ND.dtype == np.float32
  error_ND = np.abs(found_ND - VECTORS)
  assert (error_ND <= 0.501 * np.ptp(ranges_2D, axis=0) / 255).all()


def test_values_outside_the_ranges_are_cut_and_constants_are_kept():
  ranges_2D = np.array([[0, 5], [1, 5]], np.float32)
  code_ND = quantization.to_bytes(np.array([[9, 5], [-9, 5]]), ranges_2D)
  np.testing.assert_array_equal(quantization.from_bytes(code_ND, ranges_2D), [[1, 5], [0, 5]])


@pytest.mark.parametrize("width", [1, 8, 13])
def test_bits_are_signs(width):
  vectors_ND = VECTORS[:, :width]
  code_NC = quantization.to_bits(vectors_ND)
  assert (code_NC.dtype, code_NC.shape) == (np.uint8, (40, -(-width // 8)))
  np.testing.assert_array_equal(
    quantization.from_bits(code_NC, width),
    [[1 if x > 0 else -1 for x in row] for row in vectors_ND],
  )


def test_cosines_of_bits_are_hamming_distances():
  faiss = pytest.importorskip("faiss")
  vectors_ND = RNG.normal(size=[50, 16])
  code_NC = quantization.to_bits(vectors_ND)
  index = faiss.IndexBinaryFlat(16)
  index.add(code_NC)
  distance_NK, row_NK = index.search(code_NC[:5], 50)
  sign_ND = quantization.from_bits(code_NC, 16)
  cosine_NM = sign_ND[:5] @ sign_ND.T / 16
  for query in range(5):
    np.testing.assert_allclose(
      cosine_NM[query, row_NK[query]], 1 - 2 * distance_NK[query] / 16, atol=1e-6
    )


@pytest.mark.parametrize("precision", ["int8", "uint8", "binary", "ubinary"])
def test_quantize_agrees_with_sentence_transformers(precision):
  pytest.importorskip("sentence_transformers", reason="needs sentence-transformers")
  from sentence_transformers.util import quantization as theirs

  vectors_ND = RNG.normal(size=[200, 16]).astype(np.float32)
  expected_NC = theirs.quantize_embeddings(vectors_ND, precision)
  found_NC = quantization.quantize(vectors_ND, precision)
  assert found_NC.dtype == expected_NC.dtype
  if precision.endswith("binary"):
    np.testing.assert_array_equal(found_NC, expected_NC)
  else:  # It does not round but truncates.
    assert np.abs(found_NC.astype(int) - expected_NC.astype(int)).max() <= 1


def test_quantize_takes_ranges_of_other_vectors():
  ranges_2D = np.stack([np.full(13, -40), np.full(13, 40)]).astype(np.float32)
  int8_ND = quantization.quantize(VECTORS, "int8", ranges_2D)
  error_ND = quantization.from_bytes(int8_ND, ranges_2D) - VECTORS
  assert np.abs(error_ND).max() <= 40.01 / 255
  uint8_ND = quantization.quantize(VECTORS, "uint8", ranges_2D)
  np.testing.assert_array_equal(uint8_ND.astype(int), int8_ND.astype(int) + 128)
  assert quantization.quantize(VECTORS[:0], "int8").dtype == np.int8
  with pytest.raises(ValueError, match=r"ranges have the shape \(2, 5\), not \(2, 13\)"):
    quantization.quantize(VECTORS, "int8", ranges_2D[:, :5])
  with pytest.raises(ValueError, match="precision is 'int4'; choose 'float32', 'int8'"):
    quantization.quantize(VECTORS, "int4")
