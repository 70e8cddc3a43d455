"""Calls any encoder: one of this library, or any other object with `encode(texts)`."""

import inspect
from collections.abc import Sequence
from typing import Any

import numpy as np

from vmsst import errors


def encode(encoder: Any, texts: Sequence[str], **options: Any) -> np.ndarray:
  """An encoder's vectors of texts, float32 [N, D].

  Args:
    encoder: Has `encode(texts)`.
    texts: N of them.
    **options: Such as `language`, `batch_size`, `progress`: `encode` gets those that it knows.

  Raises:
    ValueError: the encoder gives an array of another shape.
  """
  known = inspect.signature(encoder.encode).parameters
  given = {name: value for name, value in options.items() if name in known}
  vectors_ND = np.asarray(encoder.encode(list(texts), **given), np.float32)
  if vectors_ND.ndim != 2 or len(vectors_ND) != len(texts):
    raise ValueError(f"encode gave an array {vectors_ND.shape} for {len(texts)} texts")
  return vectors_ND


def require_option(encoder: Any, name: str) -> None:
  """Raises InputError where an encoder's `encode` does not know an option."""
  if name not in inspect.signature(encoder.encode).parameters:
    raise errors.InputError(f"{type(encoder).__name__} knows no {name}: leave it out")
