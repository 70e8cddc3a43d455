"""Mines hard negatives: plausible but wrong translations.

Hard negatives of a pair are the targets in the same file, by an already trained encoder, that are
nearest to its source without translating it (Guo et al., 2018; mUSE, Yang et al., 2019). Mine again
with the new model for harder ones.
"""

import functools
import gzip
import os
import unicodedata
from collections.abc import Sequence

import numpy as np

from vmsst import errors
from vmsst.data import readers
from vmsst.data.readers import BitextFile
from vmsst.encoder import encoding
from vmsst.encoder.encoder import Encoder
from vmsst.io import array_files, text_files
from vmsst.search import device_search, exact_search

# Texts whose vectors are in memory at once.
_WINDOW = 1 << 14


def write_negatives(
  encoder: Encoder,
  bitext: BitextFile,
  path: str | os.PathLike[str],
  *,
  count: int = 3,
  batch_size: int = 128,
) -> dict[str, int]:
  """Writes a bitext as gzipped TSV with hard negatives of every pair, to train on as on any bitext.

  The lines are those of the bitext, in order: source, target, then hard negatives, nearest first
  (see `hard_negatives`); if there are too few, columns are empty.

  Args:
    encoder: The encoder.
    bitext: The bitext.
    path: The file to write.
    count: Hard negatives per pair.
    batch_size: Sentences per batch.

  Returns:
    The numbers of `pairs` and `negatives` (without empty columns).
  """
  pairs = list(readers.read_pairs(bitext))
  negatives_NK = hard_negatives(
    encoder,
    pairs,
    count,
    languages=(readers.language_code(bitext.source), readers.language_code(bitext.target)),
    batch_size=batch_size,
    title=str(bitext),
  )
  with open(path, "wb") as raw, gzip.GzipFile("", "wb", fileobj=raw, mtime=0) as stream:
    for pair, negatives in zip(pairs, negatives_NK, strict=True):
      columns = [text.translate(text_files.SEPARATORS) for text in (*pair, *negatives)]
      line = "\t".join(columns + [""] * (2 + count - len(columns)))
      stream.write(f"{line}\n".encode())
  return {"pairs": len(pairs), "negatives": sum(map(len, negatives_NK))}


def file_name(bitext: BitextFile) -> str:
  """Returns the path of a bitext with hard negatives in an output folder.

  It contains the name of the bitext's folder, so that files of several folders do not collide, and
  the languages, if the name of the bitext lacks them.
  """
  folder, name = os.path.split(bitext.paths[0])
  stem = name.removesuffix(".gz")
  if bitext.format != "tfrecord":  # whose ending has the number of the file
    stem = os.path.splitext(stem)[0]
  try:
    named = readers.languages_in_name(f"{stem}.tsv") == (bitext.source, bitext.target)
  except errors.InputError:
    named = False
  if not named:
    codes = f"{readers.language_code(bitext.source)}-{readers.language_code(bitext.target)}"
    stem = f"{stem.replace('.', '_').replace('-', '_')}.{codes}"
  return os.path.join(os.path.basename(folder), f"{stem}.tsv.gz")


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
  whole = [number for number, pair in enumerate(pairs) if not any(map(text_files.is_blank, pair))]
  sources, source_places = _distinct([pairs[number][0] for number in whole])
  targets, target_places = _distinct([pairs[number][1] for number in whole])
  translations: list[set[int]] = [set() for _ in sources]
  for source, target in zip(source_places, target_places, strict=True):
    translations[source].add(target)
  sides = []
  for texts, code in zip((sources, targets), languages, strict=True):
    windows = encoding.encode_windows(
      functools.partial(
        encoding.encode, encoder, language=code, batch_size=batch_size, on_cut=None
      ),
      texts,
      _WINDOW,
      total=len(texts),
      title=title,
    )
    flat = array_files.concatenate(map(np.ravel, windows), np.float32)
    sides.append(flat.reshape(len(texts), encoder.dimension))
  index_NK = nearest_negatives(sides[0], sides[1], translations, count)
  negatives: list[list[str]] = [[] for _ in pairs]
  for number, source in zip(whole, source_places, strict=True):
    negatives[number] = [targets[index] for index in index_NK[source] if index >= 0]
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


def _distinct(texts: Sequence[str]) -> tuple[list[str], list[int]]:
  """Returns the first of all texts that are equal after normalization, and each text's place."""
  first: dict[str, str] = {}
  # Without differences in case, width and spaces.
  keys = [" ".join(unicodedata.normalize("NFKC", text).casefold().split()) for text in texts]
  for key, text in zip(keys, texts, strict=True):
    first.setdefault(key, text)
  places = {key: place for place, key in enumerate(first)}
  return list(first.values()), [places[key] for key in keys]
