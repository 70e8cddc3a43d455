"""Mines hard negatives: plausible but wrong translations.

Hard negatives of a pair are the targets in the same file, by an already trained encoder, that are
nearest to its source without translating it (Guo et al., 2018; mUSE, Yang et al., 2019). Mine again
with the new model for harder ones.
"""

import gzip
import os
import unicodedata
from collections.abc import Mapping, Sequence

import numpy as np

from vmsst import errors
from vmsst.data import derived_files, readers
from vmsst.data.readers import BitextFile
from vmsst.encoder import encoding, loading
from vmsst.encoder.encoder import Encoder
from vmsst.io import large_arrays, text_fields
from vmsst.search import device_search, exact_search

# Texts whose vectors are in memory at once.
_WINDOW = 1 << 14


def mine_files(
  run: str,
  patterns: str | Sequence[str],
  folder: str,
  *,
  count: int = 3,
  languages: tuple[str, str] | None = None,
  batch_size: int = 128,
  refresh: bool = False,
) -> dict[str, Mapping[str, int]]:
  """Writes each new bitext as TSV with hard negatives of every pair.

  The files (`<folder>/<name of the bitext's folder>/x.deu-eng.tsv.gz`) contain all lines of the
  bitexts, in order: source, target, then hard negatives, nearest first (see `hard_negatives`); if
  there are too few, columns are empty. Train on these files as on any bitext.

  Args:
    run: Path of an encoder, as in `vmsst.load`.
    patterns: Bitext files or shell patterns, as in training.
    folder: Output folder.
    count: Hard negatives per pair.
    languages: Codes of both sides, if file names do not contain them.
    batch_size: Sentences per batch.
    refresh: Mine all files again, as with a better encoder; else finished files are skipped.

  Returns:
    For each file, new or existing, `pairs` and `negatives` (without empty columns).

  Raises:
    InputError: a checkpoint or file is missing or broken, or the folder has other settings.
  """
  if count < 1:
    raise errors.InputError(f"count is {count}; give at least 1")
  bitexts = readers.find_bitext(patterns, languages)
  name, encoder = loading.open_encoder(run)

  def make(bitext: BitextFile, path: str) -> Mapping[str, int]:
    pairs = list(readers.read_pairs(bitext))
    found_NK = hard_negatives(
      encoder,
      pairs,
      count,
      languages=(readers.language_code(bitext.source), readers.language_code(bitext.target)),
      batch_size=batch_size,
      title=str(bitext),
    )
    with open(path, "wb") as raw, gzip.GzipFile("", "wb", fileobj=raw, mtime=0) as stream:
      for pair, found_K in zip(pairs, found_NK, strict=True):
        columns = [text.translate(text_fields.SEPARATORS) for text in (*pair, *found_K)]
        line = "\t".join(columns + [""] * (2 + count - len(columns)))
        stream.write(f"{line}\n".encode())
    return {"pairs": len(pairs), "negatives": sum(map(len, found_NK))}

  return derived_files.make_files(
    bitexts,
    folder,
    settings={"encoder": encoding.identity(encoder, name), "count": count},
    relative_path=_relative_path,
    make=make,
    refresh=refresh,
  )


def hard_negatives(
  encoder: Encoder,
  pairs: Sequence[tuple[str, str]],
  count: int,
  *,
  languages: tuple[str, str],
  batch_size: int = 128,
  title: str = "",
) -> list[list[str]]:
  """Returns, for each pair, the targets of other pairs nearest to its source, nearest first.

  No target of a source is its hard negative, in whatever pair they meet. Texts that differ only in
  case, width or spaces are one text, represented by the first. Pairs with a blank side have no
  hard negatives.

  Vectors are stored on disk and compared block by block; the texts are in memory.

  Args:
    encoder: The encoder.
    pairs: All pairs to search.
    count: Hard negatives per pair; fewer if there are not enough.
    languages: Codes of sources and targets.
    batch_size: Sentences per batch.
    title: Title of the progress bars.
  """
  whole = [number for number, pair in enumerate(pairs) if not any(map(text_fields.is_blank, pair))]
  sources = _Texts([pairs[number][0] for number in whole])
  targets = _Texts([pairs[number][1] for number in whole])
  translations: list[set[int]] = [set() for _ in sources.first]
  for source, target in zip(sources.of, targets.of, strict=True):
    translations[source].add(target)
  sides = []
  for texts, code in zip((sources, targets), languages, strict=True):
    windows = encoding.encode_windows(
      encoding.embedder(encoder, language=code, batch_size=batch_size, on_cut=None),
      texts.first,
      _WINDOW,
      total=len(texts.first),
      title=title,
    )
    flat = large_arrays.concatenated(map(np.ravel, windows), np.float32)
    sides.append(flat.reshape(len(texts.first), encoder.dimension))
  index_NK = nearest_negatives(sides[0], sides[1], translations, count)
  negatives: list[list[str]] = [[] for _ in pairs]
  for number, source in zip(whole, sources.of, strict=True):
    negatives[number] = [targets.first[index] for index in index_NK[source] if index >= 0]
  return negatives


def nearest_negatives(
  source_ND: np.ndarray,
  target_MD: np.ndarray,
  translations: Sequence[set[int]],
  count: int,
) -> np.ndarray:
  """Returns the rows of the targets nearest to each source by cosine, int64 [N, K].

  Translations are excluded. Nearest first, among equal ones the lower row; -1 if none is left.

  Args:
    source_ND: Vectors of the sources; may be memory-mapped.
    target_MD: Vectors of the targets; may be memory-mapped.
    translations: For each source, the rows of targets that translate it.
    count: K.

  Raises:
    ValueError: widths differ, or a value is not finite.
  """
  index_NK = np.full((len(source_ND), count), -1, np.int64)
  if not len(source_ND):
    return index_NK
  # A source with t translations has its negatives among the count + t nearest. Sources with few
  # and with many are searched separately: in a search, all have one number of neighbors.
  size_N = np.array([1 << (len(known) - 1).bit_length() if known else 0 for known in translations])
  for size in np.unique(size_N).tolist():
    row_S = np.flatnonzero(size_N == size)
    source = exact_search.Selection(source_ND, row_S)
    near = exact_search.top_k(source, target_MD, count + size, search=device_search.search)
    for row, near_K in zip(row_S.tolist(), near.index_NK.tolist(), strict=True):
      rivals = [index for index in near_K if index not in translations[row]]
      index_NK[row, : len(rivals[:count])] = rivals[:count]
  return index_NK


class _Texts:
  """Distinct texts among many.

  Attributes:
    first: The first text of each group that is equal after normalization.
    of: For each text, the index of its group in `first`.
  """

  def __init__(self, texts: Sequence[str]):
    places: dict[str, int] = {}
    # Without differences in case, width and spaces.
    folded = (" ".join(unicodedata.normalize("NFKC", text).casefold().split()) for text in texts)
    self.of = [places.setdefault(text, len(places)) for text in folded]
    self.first: list[str] = []
    for text, number in zip(texts, self.of, strict=True):
      if number == len(self.first):
        self.first.append(text)


def _relative_path(bitext: BitextFile) -> str:
  """Returns the output path: the bitext's name, with languages added if it lacks them."""
  stem = os.path.basename(bitext.paths[0]).removesuffix(".gz")
  if bitext.format != "tfrecord":  # whose ending has the number of the file
    stem = os.path.splitext(stem)[0]
  try:
    named = readers.languages_in_name(f"{stem}.tsv") == (bitext.source, bitext.target)
  except errors.InputError:
    named = False
  if not named:
    codes = f"{readers.language_code(bitext.source)}-{readers.language_code(bitext.target)}"
    stem = f"{stem.replace('.', '_').replace('-', '_')}.{codes}"
  return derived_files.relative_path(bitext, f"{stem}.tsv.gz")
