"""Opens and calls whatever gives sentence vectors: a run of this library, or another one's."""

import inspect
import os
import pathlib
from collections.abc import Sequence
from typing import Any

import numpy as np

import vmsst
from vmsst import errors

_SENTENCE_TRANSFORMERS_FILE = "modules.json"


def open_encoder(path: str, dtype: str | None = None) -> tuple[str, Any]:
  """An encoder, and a name that no other one has: the absolute path of its parameters.

  Args:
    path: What `vmsst.load` opens, or a folder that sentence-transformers has saved, which is opened
      by that package. No code in it is run.
    dtype: What our encoders compute in; see `vmsst.load`.

  Returns:
    The name, and what has `encode(texts)`.

  Raises:
    InputError: there is no encoder, or the package that opens it is not installed.
  """
  folder = pathlib.Path(path).expanduser()
  if "://" in path or not (folder / _SENTENCE_TRANSFORMERS_FILE).is_file():
    encoder = vmsst.load(path, dtype=dtype)
    return os.fspath(encoder.path) + (f" ({dtype})" if dtype else ""), encoder
  if dtype is not None:
    raise errors.InputError(f"{folder} is opened by sentence-transformers, which gets no dtype")
  try:
    import sentence_transformers
  except ImportError:
    raise errors.InputError(
      f"{folder} was saved by sentence-transformers: install it (pip install 'vmsst[torch]')"
    ) from None
  try:
    theirs = sentence_transformers.SentenceTransformer(str(folder), local_files_only=True)
  except (OSError, ValueError, KeyError) as error:
    raise errors.InputError(f"{folder}: sentence-transformers cannot open it: {error}") from error
  return str(folder.resolve()), theirs


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
