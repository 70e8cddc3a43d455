"""Mines translations from two texts with vectors, as pairs of lines."""

import dataclasses
import os
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from vmsst import errors
from vmsst.io import large_arrays, stored_settings, text_fields, text_files
from vmsst.jobs import atomic_files, engines, work_folders
from vmsst.search import exact_search, faiss_index, margins, sharded_search
from vmsst.search.embedded_text import EmbeddedText


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
  indexes: tuple[faiss_index.Index, faiss_index.Index] | None = None,
  compare: exact_search.Compare = exact_search.compare,
  engine: engines.Engine | None = None,
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
    indexes: Indexes of both texts' vectors, for an approximate search; None, or if both are exact:
      an exact search of the vectors, with the same result.
    compare: Compares vectors in an exact search, in any process:
      `vmsst.search.device_search.compare` uses what the machine has.
    engine: Where to search; None: in this process.

  Raises:
    InputError: the texts' vectors have different widths, a text has no sentence, the gold file is
      broken, or no gold pair was found.
    ValueError: k is below 1, or the margin or retrieval is unknown.
  """
  if threshold is not None:
    errors.check_number("threshold", threshold)
    errors.check(gold is None, "threshold", threshold, "None: gold pairs choose it")
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
  sides = _Sentences(source), _Sentences(target)
  gold_G2 = None
  if gold is not None:
    rows = [side.rows(lines, gold) for side, lines in zip(sides, _read_gold(gold), strict=True)]
    gold_G2 = np.unique(np.array(rows, np.int64).T, axis=0)
  work = work_folders.work_path(output)
  search = (
    sharded_search.compare(work, compare=compare, engine=engine or engines.Local())
    if indexes is None or all(index.exact for index in indexes)
    else faiss_index.compare(*indexes)
  )
  blocks = margins.margin_blocks(
    *(exact_search.DistinctVectors(side.text.vectors, side.compared_N) for side in sides),
    neighbors=neighbors,
    margin=margin,
    retrieval=retrieval,
    compare=search,
  )
  # Thresholds compare what is printed.
  candidates_of_blocks: Iterator[margins.Pairs] = (
    dataclasses.replace(pairs, score_P=exact_search.rounded(pairs.score_P)) for pairs in blocks
  )
  best = None
  if gold_G2 is not None:
    pairs = margins.joined(candidates_of_blocks)
    best = margins.best_f1(pairs, gold_G2) if len(pairs) else None
    if best is None or not best.f1:
      raise errors.InputError(
        f"none of the {len(gold_G2):,} pairs of {gold} is among the {len(pairs):,} found: give "
        "another gold file, or --threshold"
      )
    threshold, candidates_of_blocks = best.threshold, iter([pairs])
  candidates, kept = _write(
    output, candidates_of_blocks, -np.inf if threshold is None else threshold, *sides
  )
  work_folders.clear(work)
  source_count, target_count = (int(np.count_nonzero(side.compared_N)) for side in sides)
  return Mined(source_count, target_count, candidates, kept, best)


def check_texts(source: str, target: str, gold: str | None = None) -> None:
  """Raises InputError if a text has no sentence to mine, or lacks a line of known translations."""
  lines_of_sides = ([], []) if gold is None else _read_gold(gold)
  for path, lines in zip((source, target), lines_of_sides, strict=True):
    texts = text_fields.read_texts(path, text_fields.default_field(path))
    visible = (not text_fields.is_blank(text) for text in texts)
    # Without known translations, no line after the first sentence is read.
    _check_lines(path, bytearray(visible) if lines else [any(visible)], lines, gold)


def _check_lines(
  path: str, visible: Sequence[int] | np.ndarray, lines: Sequence[int], gold: str | None
) -> None:
  """Raises InputError unless a text has visible lines, among them some of a gold file."""
  if not any(visible):
    raise errors.InputError(f"{path} contains no sentence")
  for number, line in enumerate(lines, 1):
    if not 1 <= line <= len(visible):
      raise errors.InputError(
        f"{gold}:{number}: there is no line {line} in {path}: it has {len(visible):,} lines, "
        "counted from 1"
      )
    if not visible[line - 1]:
      raise errors.InputError(f"{gold}:{number}: line {line} of {path} is empty")


class _Sentences:
  """The sentences of a text to compare.

  Attributes:
    text: The text.
    first_N: Row of the first line that differs only in white space; -1 for blank lines.
    compared_N: Whether each line is compared.
  """

  def __init__(self, text: EmbeddedText):
    """Reads the text once, without keeping it in memory."""
    self.text = text
    key_N = large_arrays.full(len(text), 0, np.int64)
    visible_N = large_arrays.full(len(text), False, bool)
    for row, line in enumerate(text.texts()):
      key_N[row] = hash(" ".join(line.split()))
      visible_N[row] = not text_fields.is_blank(line)
    _check_lines(text.path, visible_N, [], None)
    self.first_N = exact_search.first_rows(key_N, visible_N)
    self.compared_N = large_arrays.full(len(text), False, bool)
    for rows in exact_search.blocks(len(text)):
      np.equal(self.first_N[rows], np.arange(rows.start, rows.stop), out=self.compared_N[rows])

  def rows(self, lines: Sequence[int], path: str) -> list[int]:
    """Returns the rows that represent some lines, which count from 1 and are from a gold file."""
    _check_lines(self.text.path, self.first_N >= 0, lines, path)
    return [int(self.first_N[line - 1]) for line in lines]


def _read_gold(path: str) -> tuple[list[int], list[int]]:
  """Returns the numbers of the source and target lines of known translations."""
  sources, targets = [], []
  for number, line in enumerate(text_files.read_lines(path), 1):
    fields = line.split("\t")
    if len(fields) != 2 or not all(x.isdecimal() and len(x) < 19 for x in fields):
      raise errors.InputError(
        f"{path}:{number}: {line!r} is not `source line TAB target line` with two line numbers"
      )
    sources.append(int(fields[0]))
    targets.append(int(fields[1]))
  if not sources:
    raise errors.InputError(f"{path} is empty: add line numbers of known translations")
  return sources, targets


def _write(
  output: str,
  blocks: Iterable[margins.Pairs],
  threshold: float,
  source: _Sentences,
  target: _Sentences,
) -> tuple[int, int]:
  """Writes pairs with a score of at least `threshold`; returns the number of all and of those."""
  count = kept = 0
  readers = source.text.reader(), target.text.reader()
  with atomic_files.atomic_text(output) as stream:
    for pairs in blocks:
      count += len(pairs)
      pairs = pairs.at_least(threshold)
      kept += len(pairs)
      rows = pairs.source_P.tolist(), pairs.target_P.tolist()
      for score, x, y in zip(pairs.score_P.tolist(), *rows, strict=True):
        fields = (text(row) for text, row in zip(readers, (x, y), strict=True))
        fields = (field.translate(text_fields.SEPARATORS) for field in fields)
        stream.write("\t".join((f"{score:.6f}", *fields)) + "\n")
  return count, kept
