import numpy as np
import pytest

from vmsst.search import quantization

RNG = np.random.default_rng(0)
VECTORS = (RNG.normal(size=[40, 13]) * RNG.uniform(0.01, 9, 13) + RNG.normal(size=13)).astype("f4")


def test_bytes_are_the_nearest_of_256_levels():
  low_D, high_D = VECTORS.min(axis=0), VECTORS.max(axis=0)
  levels_DL = np.linspace(low_D.astype(float), high_D, 256).T
  code_ND = quantization.quantize(VECTORS, "int8")
  assert (code_ND.dtype, code_ND.min(), code_ND.max()) == (np.int8, -128, 127)
  for vector_D, code_D in zip(VECTORS, code_ND, strict=True):
    for value, code, level_L in zip(vector_D, code_D, levels_DL, strict=True):
      distance_L = np.abs(level_L - value)
      assert distance_L[int(code) + 128] <= distance_L.min() + 1e-6 * np.ptp(level_L)


@pytest.mark.parametrize("width", [1, 8, 13])
def test_bits_are_signs(width):
  code_NC = quantization.quantize(VECTORS[:, :width], "ubinary")
  assert (code_NC.dtype, code_NC.shape) == (np.uint8, (40, -(-width // 8)))
  bits = [f"{''.join(str(int(x > 0)) for x in row):0<16}" for row in VECTORS[:, :width]]
  for code_C, row in zip(code_NC, bits, strict=True):
    assert code_C.tolist() == [int(row[8 * i : 8 * i + 8], 2) for i in range(len(code_C))]


@pytest.mark.parametrize("precision", ["int8", "uint8", "binary", "ubinary"])
def test_quantize_agrees_with_sentence_transformers(precision):
  pytest.importorskip("sentence_transformers", reason="needs sentence-transformers")
  from sentence_transformers.util import quantization as theirs

  vectors_ND = RNG.normal(size=[200, 16]).astype(np.float32)
  vectors_ND[0, :5] = 0
  expected_NC = theirs.quantize_embeddings(vectors_ND, precision)
  found_NC = quantization.quantize(vectors_ND, precision)
  assert found_NC.dtype == expected_NC.dtype
  if precision.endswith("binary"):
    np.testing.assert_array_equal(found_NC, expected_NC)
  else:  # It does not round but truncates.
    assert np.abs(found_NC.astype(int) - expected_NC.astype(int)).max() <= 1


def test_quantize_takes_ranges_of_other_vectors():
  ranges_2D = np.array([[0, 5], [255, 5]], np.float32)
  given_ND = np.array([[999, 5], [-9, 5], [3.4, 5]])
  found_ND = quantization.quantize(given_ND, "uint8", ranges_2D)
  assert (found_ND.dtype, found_ND.tolist()) == (np.uint8, [[255, 0], [0, 0], [3, 0]])
  found_ND = quantization.quantize(given_ND, "int8", ranges_2D)
  assert (found_ND.dtype, found_ND.tolist()) == (np.int8, [[127, -128], [-128, -128], [-125, -128]])
  assert quantization.quantize(VECTORS[:0], "int8").dtype == np.int8
  with pytest.raises(ValueError, match="int8 need the ranges of many vectors"):
    quantization.quantize(VECTORS[:1], "int8")
  with pytest.raises(ValueError, match=r"ranges have the shape \(2, 2\), not \(2, 13\)"):
    quantization.quantize(VECTORS, "int8", ranges_2D)
  with pytest.raises(ValueError, match="precision is 'int4'; known: float32, int8"):
    quantization.quantize(VECTORS, "int4")
