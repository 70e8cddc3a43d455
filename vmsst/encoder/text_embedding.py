"""Computes the vectors of texts in memory by units of work, which any process can do."""

import dataclasses
import functools
import os
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from vmsst import errors
from vmsst.encoder import batching, encoder_sources, encoding
from vmsst.io import atomic_files, input_files, npy_files, progress_bar
from vmsst.units import base, engines

WINDOW = 1 << 14
"""Texts of a unit."""
_FORMAT = 1
"""Version of the files; increase it if the same texts get other vectors."""


class NotFiniteError(errors.InputError):
  """An encoder's vectors contain a value that is not finite or too large.

  Attributes:
    every: Whether this holds for the vectors of all texts.
  """

  def __init__(self, text: str, every: bool):
    super().__init__(
      f"the encoder's vector of {input_files.shown(text)} contains a value that is not finite or "
      "is too large"
    )
    self.text, self.every = text, every

  def __reduce__(self) -> Any:
    return type(self), (self.text, self.every)


@dataclasses.dataclass(frozen=True)
class EmbedTexts(base.StagedUnit):
  """Writes the vectors of texts, float32 [N, D].

  Attributes:
    encoder: The encoder.
    texts: The texts.
    languages: Code of each text's language.
    path: Output file; "": the vectors are not written.
  """

  encoder: encoder_sources.EncoderSource
  texts: tuple[str, ...]
  languages: tuple[str, ...]
  path: str = ""

  @functools.cached_property
  def key(self) -> str:
    """Hash of everything that the output depends on."""
    return base.digest("texts", _FORMAT, self.encoder.identity, self.texts, self.languages)

  def __str__(self) -> str:
    return f"{len(self.texts):,} texts"

  def read(self) -> Any:
    """Returns the texts, tokenized if the encoder supports it."""
    return encoding.prepare(self.encoder.open(), list(self.texts), list(self.languages))

  def compute(self, prepared: Any) -> tuple[np.ndarray, list[tuple[int, int, int]]]:
    """Returns the vectors, and how many texts were cut."""
    cut: list[tuple[int, int, int]] = []
    with np.errstate(over="ignore"):  # Values too large for float32 become infinite.
      vectors_ND = encoding.encode(
        self.encoder.open(),
        prepared,
        language=list(self.languages),
        progress=False,
        on_cut=lambda *counts: cut.append(counts),
      )
    check_finite(vectors_ND, self.texts)
    return vectors_ND, cut

  def write(self, computed: Any) -> dict[str, Any]:
    """Writes the file; returns how many texts were cut."""
    vectors_ND, cut = computed
    with atomic_files.atomic_file(self.path) as stream:
      np.save(stream, vectors_ND)
    return {"cut": cut}


def embed(
  encoder: encoder_sources.EncoderSource,
  texts: Sequence[str],
  languages: Sequence[str],
  folder: str | os.PathLike[str],
  engine: engines.Engine,
  *,
  keep: bool = False,
) -> np.ndarray:
  """Returns the vectors of texts, float32 [N, D]; the same for every engine.

  Args:
    encoder: The encoder.
    texts: N texts.
    languages: Code of each text's language.
    folder: Folder for the vectors that other processes compute, which they must see too. Finished
      ones are kept in it; rerun to resume. Unused if the engine has no other processes, unless
      vectors are kept.
    engine: Where to compute.
    keep: Keep the vectors in the folder, from which later calls with the same texts read them.

  Raises:
    NotFiniteError: a value is not finite, or too large for a norm in float32.
    InputError: a unit failed.
    ValueError: the encoder returns arrays of another shape.
  """
  units = [
    EmbedTexts(
      encoder, tuple(texts[start : start + WINDOW]), tuple(languages[start : start + WINDOW])
    )
    for start in range(0, max(1, len(texts)), WINDOW)
  ]
  if engine.in_process and not keep:
    computed = list(_computed(units))
    vectors, cuts = [x for x, _ in computed], [cut for _, cut in computed]
  else:
    units = [dataclasses.replace(x, path=os.path.join(folder, f"{x.key}.npy")) for x in units]
    known = keep and all(base.result(unit, verify=True) is not None for unit in units)
    # The first call has warned of cut texts.
    cuts = [] if known else [made["cut"] for made in engines.run("embed", units, engine)]
    vectors = [npy_files.read_array(unit.path) for unit in units]
  batching.log_all_cut([count for cut in cuts for count in cut], len(texts))
  return vectors[0] if len(vectors) == 1 else np.concatenate(vectors)


def check_finite(vectors_ND: np.ndarray, texts: Sequence[str]) -> None:
  """Raises NotFiniteError if a vector or its norm is not finite in float32."""
  # Up to here the norm is finite in float32.
  most = np.finfo(np.float32).max / max(1, vectors_ND.shape[1]) ** 0.5
  finite_N = (np.abs(vectors_ND) <= most).all(axis=1)
  if not finite_N.all():
    raise NotFiniteError(texts[int(np.argmin(finite_N))], not finite_N.any())


def _computed(units: Sequence[EmbedTexts]) -> Iterator[tuple[np.ndarray, list[Any]]]:
  """Yields what units compute in this process, which is not written; shows a progress bar."""
  total = sum(len(unit.texts) for unit in units)
  with progress_bar.Bar(total=total, unit=" texts", desc="embed", disable=None) as bar:
    for unit in units:
      yield unit.compute(unit.read())
      bar.update(len(unit.texts))
