"""Vectors with one byte or one bit per dimension.

They are those of sentence-transformers, except that bytes are rounded instead of truncated.
"""

from typing import Literal, get_args

import numpy as np
from jaxtyping import Float

from vmsst import errors

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
    ranges_2D: The lowest and the highest value of each dimension, for int8 and uint8, which become
      those of values outside; None: those of the vectors, of which one is not enough. Vectors that
      are compared must have the same.

  Raises:
    ValueError: the precision is unknown, a single vector has no ranges, or the ranges have another
      shape.
  """
  vectors_ND = np.asarray(vectors_ND)
  errors.check_choice("precision", precision, get_args(Precision))
  if precision == "float32":
    return vectors_ND.astype(np.float32, copy=False)
  if precision in ("binary", "ubinary"):
    level_NX = np.packbits(vectors_ND > 0, axis=1)
  elif ranges_2D is None and not len(vectors_ND):
    return vectors_ND.astype(precision)
  else:
    if ranges_2D is None and len(vectors_ND) == 1:
      raise ValueError(
        f"the levels of {precision} need the ranges of many vectors; quantize them together, or "
        "give ranges_2D"
      )
    ends = [vectors_ND.min(axis=0), vectors_ND.max(axis=0)] if ranges_2D is None else ranges_2D
    end_2D = np.asarray(ends, np.float32)
    if end_2D.shape != (2, vectors_ND.shape[1]):
      raise ValueError(f"ranges have the shape {end_2D.shape}, not (2, {vectors_ND.shape[1]})")
    width_D = end_2D[1] - end_2D[0]
    step_D = np.where(width_D > 0, width_D / _LEVELS, np.float32(1))
    level_NX = np.clip(np.rint((vectors_ND - end_2D[0]) / step_D), 0, _LEVELS)
  if precision in ("ubinary", "uint8"):
    return level_NX.astype(np.uint8)
  return (level_NX.astype(np.int16) - 128).astype(np.int8)
