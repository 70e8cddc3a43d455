"""Calls any encoder: one of this library, or another object with `encode(texts)`."""

import functools
import inspect
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from vmsst.io import progress_bar


def prepare(encoder: Any, texts: Sequence[str], language: str | Sequence[str] | None) -> Any:
  """Returns texts as `encode` takes them, tokenized already if the encoder supports it.

  Args:
    encoder: An object with `encode(texts)`.
    texts: The texts.
    language: Code of their language, or a code for each.
  """
  if hasattr(encoder, "prepare"):
    return encoder.prepare(texts, language=language)
  return texts


def encode(
  encoder: Any, texts: Sequence[str] | Any, *, method: str = "encode", **options: Any
) -> np.ndarray:
  """Returns an encoder's vectors of texts, float32 [N, D].

  Args:
    encoder: An object with `encode(texts)`.
    texts: N texts, or what `prepare` has returned for them.
    method: "encode", or "encode_query" or "encode_document" if the encoder has it.
    **options: Such as `language`, `batch_size`, `progress`; those that `encode` does not support
      are dropped.

  Raises:
    ValueError: the encoder returns an array of another shape.
  """
  known = inspect.signature(encoder.encode).parameters
  given = {name: value for name, value in options.items() if name in known}
  compute = getattr(encoder, method, encoder.encode)
  vectors_ND = np.asarray(
    compute(list(texts) if isinstance(texts, Sequence) else texts, **given), np.float32
  )
  if vectors_ND.ndim != 2 or len(vectors_ND) != len(texts):
    raise ValueError(f"encode returned an array {vectors_ND.shape} for {len(texts)} texts")
  return vectors_ND


def identity(encoder: Any, name: str) -> dict[str, str]:
  """Returns what identifies an encoder, for JSON: its `name` and, if it has one, its `digest`.

  Stored results with other digests are of another encoder; see `files.stored_settings`.

  Args:
    encoder: An object with `encode(texts)`; the encoders of this library have a `digest` of their
      content. Others are identified by name.
    name: Name or path for people.
  """
  digest = getattr(encoder, "digest", None)
  return {"name": name} | ({"digest": digest} if digest else {})


def max_length(encoder: Any) -> int | None:
  """Returns at how many tokens an encoder cuts texts; None if it has no limit, or it is unknown.

  Encoders of this library have the attribute `max_length`, those of sentence-transformers
  `max_seq_length`.
  """
  for name in ("max_length", "max_seq_length"):
    if isinstance(limit := getattr(encoder, name, None), int):
      return limit
  return None


def embedder(encoder: Any, *, batch_size: int = 128, **options: Any) -> Callable[..., np.ndarray]:
  """Returns `encode` of an encoder without a progress bar; callers may add more options.

  Args:
    encoder: An object with `encode(texts)`.
    batch_size: Texts per batch.
    **options: Further options of `encode`.
  """
  return functools.partial(encode, encoder, batch_size=batch_size, progress=False, **options)


def encode_windows(
  embed: Callable[[list[str]], np.ndarray],
  texts: Iterable[str],
  size: int,
  *,
  total: int,
  unit: str,
  title: str | None = None,
  progress: bool | None = None,
) -> Iterator[np.ndarray]:
  """Yields the vectors of texts, window by window, so that few are in memory at once.

  Args:
    embed: Maps the texts of a window to vectors, such as an `embedder`.
    texts: The texts; read as they are embedded.
    size: Texts per window.
    total: Number of all texts, for the progress bar.
    unit: Name of a text in the progress bar, such as " lines".
    title: Title of the progress bar.
    progress: Show a progress bar; None: on a terminal only.
  """
  disable = None if progress is None else not progress
  with progress_bar.Bar(total=total, unit=unit, desc=title, disable=disable) as bar:
    for window in windows(texts, size):
      yield embed(window)
      bar.update(len(window))


def windows(texts: Iterable[str], size: int) -> Iterator[list[str]]:
  """Yields the texts in lists of `size`; the last may be shorter."""
  iterator = iter(texts)
  while window := list(itertools.islice(iterator, size)):
    yield window
