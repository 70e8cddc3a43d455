"""Vectors of bitexts, for distillation into a student."""

import os
from typing import Any

from vmsst.data import readers
from vmsst.encoder import encoding
from vmsst.io import array_files

# Texts whose vectors are in memory at once; even, so that windows contain whole pairs.
_WINDOW = 1 << 14


def write_vectors(
  encoder: Any, bitext: readers.BitextFile, path: str | os.PathLike[str], *, batch_size: int = 128
) -> dict[str, int]:
  """Writes the vectors of both sides of a bitext as .npy, float32 [lines, 2, dimension].

  Args:
    encoder: An encoder, as from `vmsst.load`.
    bitext: The bitext.
    path: The file to write.
    batch_size: Sentences per batch.

  Returns:
    The numbers of lines and dimensions.

  Raises:
    InputError: the bitext cannot be read, or a vector is not finite.
  """
  lines = sum(1 for _ in readers.read_pairs(bitext))
  codes = [readers.language_code(side) for side in (bitext.source, bitext.target)]
  embed = encoding.embedder(encoder, batch_size=batch_size, on_cut=None)
  windows = encoding.encode_windows(
    lambda texts: embed(texts, language=codes * (len(texts) // 2)),
    (side for pair in readers.read_pairs(bitext) for side in pair),
    _WINDOW,
    total=2 * lines,
    title=str(bitext),
  )
  array_files.write(path, (lines, 2, encoder.dimension), windows)
  return {"lines": lines, "dimension": encoder.dimension}
