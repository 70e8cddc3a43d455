"""Vectors with one byte or one bit per dimension, and the vectors that these stand for.

Both are those of sentence-transformers, except that bytes are rounded instead of truncated.
"""

from typing import Literal, get_args

import numpy as np
from jaxtyping import Float, Int8, UInt8

Precision = Literal["float32", "int8", "uint8", "binary", "ubinary"]
_LEVELS = 255


def quantize(
  vectors_ND: Float[np.ndarray, "N D"],
  precision: Precision,
  ranges_2D: Float[np.ndarray, "2 D"] | None = None,
) -> np.ndarray:
  """Returns vectors in less space, as `quantize_embeddings` of sentence-transformers does.

  Args:
    vectors_ND: Vectors [N, D].
    precision: "float32"; "int8" or "uint8", a byte per dimension, for 256 levels between the lowest
      and the highest value of the dimension; "binary" or "ubinary", 8 signs in each int8 or uint8,
      positive ones being 1.
    ranges_2D: The lowest and the highest value of each dimension, for int8 and uint8; None: those
      of the vectors. Vectors that are compared must have the same.

  Raises:
    ValueError: the precision is unknown, or the ranges have another shape.
  """
  vectors_ND = np.asarray(vectors_ND)
  if precision not in get_args(Precision):
    known = ", ".join(map(repr, get_args(Precision)))
    raise ValueError(f"precision is {precision!r}; choose {known}")
  if precision == "float32":
    return vectors_ND.astype(np.float32, copy=False)
  if precision in ("binary", "ubinary"):
    bits_NC = to_bits(vectors_ND)
    return bits_NC if precision == "ubinary" else (bits_NC.astype(np.int16) - 128).astype(np.int8)
  if ranges_2D is None and not len(vectors_ND):
    return vectors_ND.astype(precision)
  ranges_2D = ranges(vectors_ND) if ranges_2D is None else np.asarray(ranges_2D)
  if ranges_2D.shape != (2, vectors_ND.shape[1]):
    raise ValueError(f"ranges have the shape {ranges_2D.shape}, not (2, {vectors_ND.shape[1]})")
  bytes_ND = to_bytes(vectors_ND, ranges_2D)
  return bytes_ND if precision == "int8" else (bytes_ND.astype(np.int16) + 128).astype(np.uint8)


def ranges(vectors_ND: Float[np.ndarray, "N D"]) -> Float[np.ndarray, "2 D"]:
  """Returns the lowest and the highest value of each dimension, which `to_bytes` needs."""
  return np.stack([vectors_ND.min(axis=0), vectors_ND.max(axis=0)]).astype(np.float32)


def to_bytes(
  vectors_ND: Float[np.ndarray, "N D"], ranges_2D: Float[np.ndarray, "2 D"]
) -> Int8[np.ndarray, "N D"]:
  """Returns the nearest of 256 equal steps from the lowest to the highest value of a dimension.

  Args:
    vectors_ND: The vectors; values outside the ranges become their ends.
    ranges_2D: See `ranges`.
  """
  level_ND = np.rint((vectors_ND - ranges_2D[0]) / _step(ranges_2D))
  return (np.clip(level_ND, 0, _LEVELS) - 128).astype(np.int8)


def from_bytes(
  code_ND: Int8[np.ndarray, "N D"], ranges_2D: Float[np.ndarray, "2 D"]
) -> Float[np.ndarray, "N D"]:
  """Returns the float32 values of `to_bytes`."""
  return (code_ND.astype(np.float32) + 128) * _step(ranges_2D) + ranges_2D[0]


def to_bits(vectors_ND: Float[np.ndarray, "N D"]) -> UInt8[np.ndarray, "N C"]:
  """Returns a bit for each value, which is 1 if the value is positive; 8 of them in a byte."""
  return np.packbits(np.asarray(vectors_ND) > 0, axis=1)


def from_bits(code_NC: UInt8[np.ndarray, "N C"], dimension: int) -> Float[np.ndarray, "N D"]:
  """Returns 1 and -1, as float32, for the bits of `to_bits`."""
  bit_ND = np.unpackbits(code_NC, axis=1, count=dimension)
  return 2 * bit_ND.astype(np.float32) - 1


def _step(ranges_2D: np.ndarray) -> np.ndarray:
  width_D = ranges_2D[1] - ranges_2D[0]
  return np.where(width_D > 0, width_D / _LEVELS, np.float32(1)).astype(np.float32)
