"""Calls any encoder: an `Encoder`, or any other object with a method `encode(texts)`.

An `EncoderSource` identifies an encoder and opens it in any process.
"""

import inspect
import itertools
import logging
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from vmsst import errors
from vmsst.io import array_files, input_files, progress_bar

# Texts per window of sentence pairs. The number is even, so that no window splits a pair.
_WINDOW = 1 << 14


def encode(
  encoder: Any, texts: Sequence[str], *, method: str = "encode", **options: Any
) -> np.ndarray:
  """Computes vectors for texts, float32 [N, D].

  Args:
    encoder: An object with `encode(texts)`.
    texts: N texts.
    method: Method to call: "encode", "encode_query" or "encode_document". If the encoder lacks the
      method, "encode" is called.
    **options: Options for `encode`, such as `language`, `batch_size` and `progress` (default:
      False). Options that `encode` does not support are dropped.

  Raises:
    ValueError: If the encoder does not return one vector for each text.
  """
  parameters = inspect.signature(encoder.encode).parameters
  options.setdefault("progress", False)
  supported = {name: value for name, value in options.items() if name in parameters}
  # A prompt set by `with_prompt` also applies to queries and documents.
  if getattr(encoder, "prompt", None) is not None:
    method = "encode"
  compute = getattr(encoder, method, encoder.encode)
  vectors_ND = np.asarray(compute(list(texts), **supported), np.float32)
  if vectors_ND.ndim != 2 or len(vectors_ND) != len(texts):
    raise ValueError(f"encode returned an array of shape {vectors_ND.shape} for {len(texts)} texts")
  return vectors_ND


def identity(encoder: Any, name: str) -> dict[str, str]:
  """Returns an encoder's identity as a JSON object: `name`, and `digest` and `prompt` if set.

  The identity is saved with results, so that a later run can tell whether the same encoder
  computed them; see `vmsst.io.manifest`.

  Args:
    encoder: An object with `encode(texts)`. If the object has the attribute `digest`, as `Encoder`
      does, the digest identifies the encoder. Otherwise, `name` identifies the encoder.
    name: Name or path to show in messages.
  """
  fields = {key: getattr(encoder, key, None) for key in ("digest", "prompt")}
  return {"name": name} | {key: value for key, value in fields.items() if isinstance(value, str)}


def encode_windows(
  embed: Callable[[list[str]], np.ndarray],
  texts: Iterable[str],
  size: int,
  *,
  total: int,
  title: str | None = None,
) -> Iterator[np.ndarray]:
  """Yields vectors for texts, one window at a time, so that few vectors are in memory at once.

  Args:
    embed: Function that maps the texts in a window to vectors, such as a `functools.partial` of
      `encode`.
    texts: The texts. They are read one window at a time.
    size: Texts per window.
    total: Total number of texts, for the progress bar.
    title: Title of the progress bar.
  """
  count = 0
  with progress_bar.Bar(total=total, unit=" sentences", desc=title, outer=True) as bar:
    for window in windows(texts, size):
      yield embed(window)
      count += len(window)
      bar.update(max(0, count - bar.n))


def windows(texts: Iterable[str], size: int) -> Iterator[list[str]]:
  """Yields the texts in lists of `size`; the last list may be shorter."""
  iterator = iter(texts)
  while window := list(itertools.islice(iterator, size)):
    yield window


def write_pair_vectors(
  encoder: Any,
  pairs: Iterable[tuple[str, str]],
  path: str | os.PathLike[str],
  *,
  count: int,
  languages: Sequence[str],
  title: str,
  batch_size: int = 128,
) -> dict[str, int]:
  """Writes sentence-pair vectors for distillation to a .npy file, float32 [N, 2, dimension].

  Args:
    encoder: An encoder, as from `vmsst.load`.
    pairs: The sentence pairs.
    path: The file to write.
    count: Number of pairs.
    languages: Language codes of the sources and the targets.
    title: Title of the progress bar.
    batch_size: Sentences per batch.

  Returns:
    A dictionary: "lines" is the number of pairs, and "dimension" is the width of the vectors.

  Raises:
    InputError: If a pair cannot be read, or if a vector is not finite.
  """
  windows = encode_windows(
    lambda texts: encode(
      encoder, texts, language=[*languages] * (len(texts) // 2), batch_size=batch_size, on_cut=None
    ),
    itertools.chain.from_iterable(pairs),
    _WINDOW,
    total=2 * count,
    title=title,
  )
  array_files.write(path, (count, 2, encoder.dimension), windows)
  return {"lines": count, "dimension": encoder.dimension}


_log = logging.getLogger(__name__)


def log_cut(count: int, total: int, max_length: int) -> None:
  """Logs a warning that `count` of `total` texts were cut to `max_length` tokens."""
  _log.warning(
    "%s of %s texts exceed the encoder's maximum of %s tokens and were cut",
    *(f"{number:,}" for number in (count, total, max_length)),
  )


def log_all_cut(counts: Sequence[Sequence[int]], total: int) -> None:
  """Logs one warning for several calls to `encode` if any of these calls cut texts.

  Args:
    counts: The arguments of each call of `on_cut`: the number of truncated texts, the number of
      all texts, and the maximum number of tokens.
    total: Number of texts in all calls.
  """
  if counts:
    log_cut(sum(count[0] for count in counts), total, counts[0][2])


class EncoderSource:
  """Opens an encoder in any process.

  If a process does not have the encoder yet, the process loads the encoder, and keeps it in memory
  until a different encoder is loaded.

  Attributes:
    identity: See the function `identity`.
    load: Function that loads the encoder in a different process, and returns the encoder's name and
      the encoder. `load` is None if only this process can use the encoder.
    options: Options for each call to `encode`.
  """

  def __init__(
    self, encoder: Any, name: str, load: Callable[[], tuple[str, Any]] | None = None, **options: Any
  ):
    """Initializes the source.

    Args:
      encoder: An object with `encode(texts)`.
      name: Name or path of the encoder.
      load: Picklable function that loads the encoder in a different process, and returns the
        encoder's name and the encoder, as `loading.open_encoder` does.
      **options: Options for each call to `encode`, such as `batch_size`. Options that change
        vectors by more than rounding error are not allowed.
    """
    self.identity = identity(encoder, name)
    self._encoder, self.load, self.options = encoder, load, options

  def __getstate__(self) -> dict[str, Any]:
    return {**vars(self), "_encoder": None}

  def open(self) -> Any:
    """Returns the encoder; loads it first if necessary.

    Raises:
      InputError: If this process cannot load the encoder, or if its content has changed since
        this source was created.
    """
    if self._encoder is not None:
      return self._encoder
    name = self.identity["name"]
    with _lock:
      if _loaded.get("identity") != self.identity:
        _loaded.clear()  # frees memory for the next encoder
        if self.load is None:
          raise errors.InputError(f"{name} cannot be loaded in other processes; use one process")
        _, encoder = self.load()
        if identity(encoder, name) != self.identity:
          raise errors.InputError(f"{name} has changed since the job started; start over")
        _loaded.update(identity=self.identity, encoder=encoder)
      return _loaded["encoder"]

  def encode(self, texts: Any, **options: Any) -> tuple[np.ndarray, list[tuple[int, int, int]]]:
    """Returns the vectors from `encode`, and the arguments of each call to `on_cut`."""
    cut: list[tuple[int, int, int]] = []
    options = {**self.options, **options, "on_cut": lambda *counts: cut.append(counts)}
    vectors_ND = encode(self.open(), texts, **options)
    return vectors_ND, cut


_lock = threading.Lock()
_loaded: dict[str, Any] = {}  # the most recently loaded encoder and its identity


def check_finite(vectors_ND: np.ndarray, texts: Sequence[str]) -> None:
  """Raises InputError if a vector or its norm is not finite in float32."""
  # If no value exceeds this limit, the norm is finite in float32.
  limit = np.finfo(np.float32).max / max(1, vectors_ND.shape[1]) ** 0.5
  finite_N = (np.abs(vectors_ND) <= limit).all(axis=1)
  if not finite_N.all():
    text = input_files.shown(texts[int(np.argmin(finite_N))])
    raise errors.InputError(
      f"the encoder's vector for {text} contains a value that is not finite or is too large; if "
      "training has diverged, use an earlier checkpoint"
    )
