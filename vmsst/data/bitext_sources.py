"""Sources of bitext files and of pairs in memory."""

import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
from absl import logging

from vmsst import errors
from vmsst.data import features, readers, sources, teacher_vectors, vocabularies, word_splitting
from vmsst.languages import Language


def open_files(
  name: str,
  splits: Mapping[str, Sequence[readers.BitextFile]],
  vocabulary: vocabularies.Vocabulary,
  max_length: int | None,
  negatives: int,
  teacher: str | None,
  memory_limit: int,
) -> sources.TextSource:
  """Returns the source of the files of a language pair, in memory or streamed.

  Args:
    name: Name of the task, for messages.
    splits: For each split, its files.
    vocabulary: Will tokenize the texts.
    max_length: Pairs with a side of more tokens will be dropped; None: no limit.
    negatives: Number of hard negatives of each pair.
    teacher: Folder of a teacher's vectors of the files, or None.
    memory_limit: Files with more bytes of text than this are streamed.
  """
  if not all(_fits(bitexts, memory_limit, teacher) for bitexts in splits.values()):
    return sources.StreamSource(splits, negatives=negatives, teacher=teacher)
  return sources.MemorySource(
    {
      split: functools.partial(
        _read_files,
        f"{name} {split}",
        bitexts,
        vocabulary,
        max_length,
        negatives=negatives,
        teacher=teacher,
      )
      for split, bitexts in splits.items()
    }
  )


def _fits(bitexts: Sequence[readers.BitextFile], memory_limit: int, teacher: str | None) -> bool:
  """Returns whether to keep files in memory; always for formats that cannot be streamed."""
  streamable = all(bitext.format in ("moses", "tsv") for bitext in bitexts)
  text_bytes = sum(bitext.text_bytes for bitext in bitexts)
  vector_bytes = 0
  if teacher:
    vector_bytes = sum(teacher_vectors.open_vectors(teacher, bitext).nbytes for bitext in bitexts)
  return not streamable or (
    text_bytes <= memory_limit and vector_bytes <= sources.VECTOR_BYTES * memory_limit
  )


def _read_files(
  name: str,
  bitexts: Sequence[readers.BitextFile],
  vocabulary: vocabularies.Vocabulary,
  max_length: int | None,
  *,
  negatives: int,
  teacher: str | None,
) -> sources.Columns:
  def rows() -> Iterator[tuple[str, ...]]:
    for bitext in bitexts:
      count = 0
      for row in readers.read_rows(bitext, negatives):
        count += 1
        yield row
      if teacher:
        teacher_vectors.check_count(teacher, bitext, count)

  pair = bitexts[0].source, bitexts[0].target
  columns, numbers_N = pair_columns(name, rows(), pair, vocabulary, max_length)
  if not teacher:
    return columns
  vectors = [teacher_vectors.open_vectors(teacher, bitext) for bitext in bitexts]
  sides = enumerate(features.TEACHER_SIDES)
  return columns | {x: teacher_vectors.take(vectors, numbers_N, side) for side, x in sides}


def pair_columns(
  name: str,
  rows: Iterable[Sequence[str]],
  pair: tuple[Language, Language],
  vocabulary: vocabularies.Vocabulary,
  max_length: int | None,
) -> tuple[dict[str, np.ndarray], np.ndarray]:
  """Returns the columns of the rows that have both texts, split into words, and their numbers.

  Args:
    name: Of the task and split, for messages.
    rows: Source, target and hard negatives of each pair.
    pair: The languages of sources and of all other texts.
    vocabulary: Will tokenize the texts.
    max_length: Rows with a side of more tokens will be dropped.

  Raises:
    InputError: no row will be kept.
  """
  kept, numbers, count = [], [], 0
  for count, row in enumerate(rows, 1):
    if row[0].strip() and row[1].strip():
      kept.append(row)
      numbers.append(count - 1)
  logging.info("%s: %d pairs, and %d with an empty side", name, len(kept), count - len(kept))
  if not any(_fits_length(row, pair, vocabulary, max_length) for row in kept):
    raise errors.InputError(
      f"{name}: no pair is left: of {count} pairs, {count - len(kept)} have an empty side, and "
      f"{len(kept)} an over-long one; check the files and max_length ({max_length})"
    )
  texts = [list(column) for column in zip(*kept, strict=True)]
  if getattr(vocabulary, "pretokenize", False):
    source, target = pair
    texts = [
      word_splitting.split_words(column, target if number else source)
      for number, column in enumerate(texts)
    ]
  text_KN = np.array([[text.encode() for text in column] for column in texts], object)
  columns = {"inputs": text_KN[0], "targets": text_KN[1]}
  if len(texts) > 2:
    columns["negatives"] = text_KN[2:].T
  for side, language in zip(features.SIDES.values(), pair, strict=True):
    columns[side] = np.full([len(kept), 1], language.index, np.int32)
  return columns, np.array(numbers, np.int64)


def _fits_length(
  row: Sequence[str],
  pair: tuple[Language, Language],
  vocabulary: vocabularies.Vocabulary,
  max_length: int | None,
) -> bool:
  """Returns whether both sides of a pair have tokens, and at most `max_length`."""
  sides = [
    vocabulary.tokenize([text], language)[0] for text, language in zip(row, pair, strict=False)
  ]
  return all(0 < len(ids) <= (max_length or len(ids)) for ids in sides)
