"""Mines translations from two texts with vectors, as pairs of lines."""

import dataclasses
import hashlib
import itertools
import os
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from vmsst import errors
from vmsst.files import (
  atomic_files,
  external_sort,
  large_arrays,
  storage,
  stored_settings,
  text_fields,
  text_files,
  work_folders,
)
from vmsst.search import exact_search, indexed_search, margins, sharded_search
from vmsst.search.index_folder import StoredIndex
from vmsst.units import engines, local
from vmsst.vectors.embedded_text import EmbeddedText

_LINES = 1 << 16  # Read at once.


@dataclasses.dataclass(frozen=True)
class Mined:
  """Result of `mine`.

  Attributes:
    source: Number of distinct source sentences.
    target: Number of distinct target sentences.
    candidates: Number of pairs found.
    kept: Number of pairs written.
    best: The threshold from gold pairs and its F1; None without gold pairs.
  """

  source: int
  target: int
  candidates: int
  kept: int
  best: margins.F1 | None


def mine(
  source: EmbeddedText,
  target: EmbeddedText,
  output: str | os.PathLike[str],
  *,
  neighbors: int = 4,
  margin: margins.Margin = "ratio",
  retrieval: margins.Retrieval = "max",
  threshold: float | None = None,
  gold: str | None = None,
  min_cosine: float | None = None,
  keep_duplicates: bool = False,
  indexes: tuple[StoredIndex, StoredIndex] | None = None,
  compare: exact_search.Engine = exact_search.compare,
  engine: engines.Engine | None = None,
  progress: bool | None = None,
) -> Mined:
  """Writes pairs of lines that are likely translations: score TAB source TAB target.

  Pairs are sorted, best first. Blank lines are skipped. Among lines that differ only in white space
  the first represents all. TABs in a line become spaces.

  An exact search is in blocks, which are units of work with results in the work folder of `output`:
  an interrupted call resumes from there. A search in indexes is in this process and starts over.

  Args:
    source: One text.
    target: The other text.
    output: Output file, local or in an object store, written atomically.
    neighbors: As in `margins.margin_pairs`.
    margin: The same.
    retrieval: The same.
    threshold: Minimum score.
    gold: File of known translations, `source line TAB target line`, with lines counted from 1, to
      choose the threshold with the best F1. Excludes `threshold`.
    min_cosine: As in `margins.margin_pairs`.
    keep_duplicates: Compare all lines that are not blank.
    indexes: Indexes of both texts' vectors, for an approximate search; None, or if both are exact:
      an exact search of the vectors, with the same result.
    compare: Compares vectors in an exact search, in any process:
      `vmsst.search.device_search.anywhere` uses what the machine has.
    engine: Where to search; None: in this process.
    progress: Show a progress bar; None: on a terminal only.

  Raises:
    InputError: the texts' vectors have different widths, a text has no sentence, the gold file is
      broken, or no gold pair was found.
    ValueError: k is below 1, or the margin or retrieval is unknown.
  """
  if threshold is not None:
    errors.check_number("threshold", threshold)
  if threshold is not None and gold is not None:
    raise errors.InputError(
      f"a threshold of {threshold} and gold pairs {gold} are both given: drop one"
    )
  if source.vectors.shape[1] != target.vectors.shape[1]:
    raise errors.InputError(
      f"{source.folder} has vectors of width {source.vectors.shape[1]} and {target.folder} of "
      f"{target.vectors.shape[1]}: compute both with the same encoder"
    )
  made_by = [{"encoder": side.encoder} for side in (source, target) if side.encoder]
  if len(made_by) == 2 and (differences := stored_settings.differences(*made_by)):
    raise errors.InputError(
      f"{source.folder} and {target.folder} have vectors of different encoders: {differences}; "
      "compute both with the same encoder"
    )
  output = os.fspath(output)
  if not storage.is_url(output) and os.path.isdir(output):
    raise errors.InputError(f"{output} is a folder: give a file")
  sides = _Sentences(source, keep_duplicates), _Sentences(target, keep_duplicates)
  gold_G2 = None if gold is None else _read_gold(gold, *sides)
  work = work_folders.path_of(output)
  search = (
    sharded_search.engine(
      (sides[0].stored, sides[1].stored),
      work,
      compare=compare,
      units=engine or local.Local(),
      progress=progress,
    )
    if indexes is None or all(index.exact for index in indexes)
    else indexed_search.engine(
      *zip(indexes, (side.row_S for side in sides), strict=True), progress=progress
    )
  )
  blocks = margins.margin_blocks(
    *(side.vectors for side in sides),
    neighbors=neighbors,
    margin=margin,
    retrieval=retrieval,
    min_cosine=min_cosine,
    engine=search,
  )
  # Thresholds compare what is printed.
  found: Iterator[margins.Pairs] = (
    dataclasses.replace(pairs, score_P=exact_search.rounded(pairs.score_P)) for pairs in blocks
  )
  best = None
  if gold_G2 is not None:
    pairs = margins.joined(found)
    best = margins.best_f1(pairs, gold_G2) if len(pairs) else None
    if best is None or not best.f1:
      raise errors.InputError(
        f"none of the {len(gold_G2):,} pairs of {gold} is among the {len(pairs):,} found: give "
        "another gold file, or --threshold"
      )
    threshold, found = best.threshold, iter([pairs])
  candidates, kept = _write(output, found, -np.inf if threshold is None else threshold, *sides)
  work_folders.clear(work)
  return Mined(len(sides[0].row_S), len(sides[1].row_S), candidates, kept, best)


def check_sentences(path: str) -> None:
  """Raises InputError if a text has no sentence to mine."""
  if all(map(text_fields.is_blank, text_files.read_lines(path))):
    raise errors.InputError(f"{path} contains no sentence")


class _Sentences:
  """The sentences of a text to compare.

  Attributes:
    text: The text.
    lines: Number of its lines.
    row_S: Row of each sentence in the text, ascending.
    stored: Their rows in the stored vectors.
    vectors: Their vectors.
  """

  def __init__(self, text: EmbeddedText, keep_duplicates: bool):
    """Reads the text once, without keeping it in memory."""
    self.text, self._keep_duplicates = text, keep_duplicates
    self.lines = 0
    with external_sort.Records(3) as records, external_sort.Records(1) as rows:
      for key_B2 in _keys(text):
        row_B = np.flatnonzero(key_B2.any(axis=1))
        row_B1 = (self.lines + row_B).astype(np.uint64)[:, None]
        self.lines += len(key_B2)
        if keep_duplicates:
          rows.add(row_B1)
        else:
          records.add(np.concatenate([key_B2[row_B], row_B1], axis=1))
      for row_B in _first_rows(records.sorted()):
        rows.add(row_B[:, None])
      self.row_S = large_arrays.concatenated((x[:, 0] for x in rows.sorted()), np.int64)
    if not len(self.row_S):
      raise errors.InputError(f"{text.path} contains no sentence")
    self.stored = sharded_search.Side(text.vectors, self.row_S)
    self.vectors = exact_search.SelectedRows(text.vectors, self.row_S)

  def places(self, rows: Sequence[int]) -> dict[int, int]:
    """Returns the numbers of some rows' sentences, without those of blank lines."""
    wanted = dict.fromkeys(rows)
    key_of = {row: key for row, key in enumerate(self._row_keys()) if row in wanted and key}
    if self._keep_duplicates:
      first = {row: row for row in key_of}
    else:
      keys = set(key_of.values())
      first_of: dict[tuple[int, int], int] = {}
      for row, key in enumerate(self._row_keys()):
        if key in keys:
          first_of.setdefault(key, row)
      first = {row: first_of[key] for row, key in key_of.items()}
    return {row: int(np.searchsorted(self.row_S, each)) for row, each in first.items()}

  def _row_keys(self) -> Iterator[tuple[int, int] | None]:
    for key_B2 in _keys(self.text):
      for high, low in key_B2.tolist():
        yield (high, low) if high or low else None


def _keys(text: EmbeddedText) -> Iterator[np.ndarray]:
  """Yields keys of lines, uint64 [B, 2]: equal if they differ only in white space, else 0."""
  lines = text_files.read_lines(text.path, text.digest)
  while block := list(itertools.islice(lines, _LINES)):
    keys = b"".join(map(_key, block))
    yield np.frombuffer(keys, ">u8").reshape(-1, 2).astype(np.uint64)


def _key(line: str) -> bytes:
  """Returns a key that lines share if they differ only in white space; zeros for blank lines."""
  if text_fields.is_blank(line):
    return bytes(16)
  return hashlib.blake2b(" ".join(line.split()).encode(), digest_size=16).digest()


def _first_rows(blocks: Iterable[np.ndarray]) -> Iterator[np.ndarray]:
  """Yields the row of the first of the records with the same key, which are sorted."""
  before_12 = np.zeros((1, 2), np.uint64)
  for record_B3 in blocks:
    key_B2 = record_B3[:, :2]
    same_B = (key_B2 == np.concatenate([before_12, key_B2[:-1]])).all(axis=1)
    yield record_B3[~same_B, 2]
    before_12 = key_B2[-1:]


def _read_gold(path: str, source: _Sentences, target: _Sentences) -> np.ndarray:
  """Returns the known translations as numbers of their sentences, int64 [G, 2], without repeats."""
  gold = []
  for number, line in enumerate(text_files.read_lines(path), 1):
    fields = line.split("\t")
    if len(fields) != 2 or not all(field.isdecimal() for field in fields):
      raise errors.InputError(
        f"{path}:{number}: {line!r} is not `source line TAB target line` with two line numbers"
      )
    gold.append([int(field) for field in fields])
  if not gold:
    raise errors.InputError(f"{path} is empty: add line numbers of known translations")
  columns = [
    _places(side, lines, path)
    for side, lines in zip((source, target), zip(*gold, strict=True), strict=True)
  ]
  return np.unique(np.array(columns, np.int64).T, axis=0)


def _places(side: _Sentences, lines: Sequence[int], path: str) -> list[int]:
  """Returns the numbers of the sentences of lines, which count from 1."""
  place_of = side.places([line - 1 for line in lines])
  for number, line in enumerate(lines, 1):
    if not 1 <= line <= side.lines:
      raise errors.InputError(
        f"{path}:{number}: there is no line {line} in {side.text.path}: it has {side.lines:,} "
        "lines, counted from 1"
      )
    if line - 1 not in place_of:
      raise errors.InputError(f"{path}:{number}: line {line} of {side.text.path} is empty")
  return [place_of[line - 1] for line in lines]


def _write(
  output: str,
  blocks: Iterable[margins.Pairs],
  threshold: float,
  source: _Sentences,
  target: _Sentences,
) -> tuple[int, int]:
  """Writes pairs with a score of at least `threshold`; returns the number of all and of those."""
  found = kept = 0
  readers = source.text.reader(), target.text.reader()
  with atomic_files.atomic_text(output) as stream:
    for pairs in blocks:
      found += len(pairs)
      pairs = pairs.at_least(threshold)
      kept += len(pairs)
      rows = source.row_S[pairs.source_P].tolist(), target.row_S[pairs.target_P].tolist()
      for score, x, y in zip(pairs.score_P.tolist(), *rows, strict=True):
        fields = (text(row).replace("\t", " ") for text, row in zip(readers, (x, y), strict=True))
        stream.write("\t".join((f"{score:.6f}", *fields)) + "\n")
  return found, kept
