"""Vectors of both sides of bitexts, for distillation into a student."""

from collections.abc import Sequence

from vmsst.data import derived_files, readers, teacher_vectors
from vmsst.data.readers import BitextFile
from vmsst.encoder import encoding, loading
from vmsst.io import npy_files

# Texts whose vectors are in memory at once; even, so that windows contain whole pairs.
_WINDOW = 1 << 14


def embed_files(
  run: str,
  patterns: str | Sequence[str],
  folder: str,
  *,
  languages: tuple[str, str] | None = None,
  batch_size: int = 128,
  refresh: bool = False,
) -> dict[str, derived_files.Counts]:
  """Writes the vectors of every bitext that has none in the folder yet.

  Args:
    run: Path of an encoder, as in `vmsst.load`.
    patterns: Bitext files or shell patterns, as in training.
    folder: Output folder, local or in an object store; pass it to `bitext.files` as `teacher`.
    languages: Codes of both sides, if file names do not contain them.
    batch_size: Sentences per batch.
    refresh: Recompute all files, as after a change of the encoder or the bitexts.

  Returns:
    For each file, new or existing, `lines` and `dimension`.

  Raises:
    InputError: a checkpoint or file is missing or broken, or the folder has vectors by another
      encoder.
  """
  bitexts = readers.find_bitext(patterns, languages)
  name, encoder = loading.open_encoder(run)

  def make(bitext: BitextFile, path: str) -> derived_files.Counts:
    lines = sum(1 for _ in readers.read_pairs(bitext))
    codes = [readers.language_code(bitext.source), readers.language_code(bitext.target)]
    embed = encoding.embedder(encoder, batch_size=batch_size, on_cut=None)
    windows = encoding.encode_windows(
      lambda texts: embed(texts, language=codes * (len(texts) // 2)),
      (side for pair in readers.read_pairs(bitext) for side in pair),
      _WINDOW,
      total=2 * lines,
      title=str(bitext),
    )
    npy_files.write(path, (lines, 2, encoder.dimension), windows)
    return {"lines": lines, "dimension": encoder.dimension}

  return derived_files.make_files(
    bitexts,
    folder,
    settings={"encoder": encoding.identity(encoder, name)},
    relative_path=teacher_vectors.relative_path,
    make=make,
    refresh=refresh,
  )
