"""Mines translations from two texts with vectors, as pairs of lines."""

import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np

from vmsst import errors
from vmsst.io import array_files, manifest, text_files
from vmsst.search import exact_search, margins
from vmsst.search.embedded_text import EmbeddedText


@dataclasses.dataclass(frozen=True)
class Mined:
  """Result of `mine`.

  Attributes:
    pairs: Rows of the lines of each pair, best first, with scores as they are printed.
    source: Number of distinct source sentences.
    target: Number of distinct target sentences.
    candidates: Number of pairs before the threshold.
    best: The threshold from gold pairs and its F1; None without gold pairs.
  """

  pairs: margins.Pairs
  source: int
  target: int
  candidates: int
  best: margins.F1 | None


def mine(
  source: EmbeddedText,
  target: EmbeddedText,
  *,
  neighbors: int = 4,
  margin: margins.Margin = "ratio",
  retrieval: margins.Retrieval = "max",
  threshold: float | None = None,
  gold: str | None = None,
  search: exact_search.Search = exact_search.search,
) -> Mined:
  """Returns pairs of lines that are likely translations.

  Blank lines are skipped. Among lines that differ only in white space the first represents all.

  Args:
    source: One text.
    target: The other text.
    neighbors: As in `margins.margin_pairs`.
    margin: The same.
    retrieval: The same.
    threshold: Minimum score.
    gold: File of known translations, `source line TAB target line`, with lines counted from 1, to
      choose the threshold with the best F1. Excludes `threshold`.
    search: Finds neighbors, such as `vmsst.search.device_search.search` or, approximately,
      `vmsst.search.faiss_index.index_search` indexes of both texts' vectors.

  Raises:
    InputError: the texts' vectors have different widths or encoders, a text has no sentence, the
      gold file is broken, or no gold pair was found.
    ValueError: k is below 1, or the margin or retrieval is unknown.
  """
  if threshold is not None:
    errors.check_number("threshold", threshold)
    errors.check(gold is None, "threshold", threshold, "None: gold pairs choose it")
  settings = [
    {"width": side.vectors.shape[1], "encoder": side.encoder} for side in (source, target)
  ]
  if not all(side.encoder for side in (source, target)):
    settings = [{"width": side["width"]} for side in settings]
  if differences := manifest.differences(*settings):
    raise errors.InputError(
      f"the vectors of {source.folder} and {target.folder} differ: {differences}; compute both "
      "with the same encoder"
    )
  sides = _Sentences(source), _Sentences(target)
  gold_G2 = None
  if gold is not None:
    rows = [side.rows(lines, gold) for side, lines in zip(sides, read_gold(gold), strict=True)]
    gold_G2 = np.unique(np.array(rows, np.int64).T, axis=0)
  pairs = margins.margin_pairs(
    *(exact_search.Selection(side.text.vectors, side.row_M) for side in sides),
    neighbors=neighbors,
    margin=margin,
    retrieval=retrieval,
    search=search,
  )
  for block in exact_search.blocks(len(pairs)):  # Row numbers become those of lines.
    pairs.source_P[block] = sides[0].row_M[pairs.source_P[block]]
    pairs.target_P[block] = sides[1].row_M[pairs.target_P[block]]
    # Thresholds compare what is printed.
    pairs.score_P[block] = exact_search.round_scores(pairs.score_P[block])
  best = None
  if gold_G2 is not None:
    best = margins.best_f1(pairs, gold_G2) if len(pairs) else None
    if best is None or not best.f1:
      raise errors.InputError(
        f"none of the {len(gold_G2):,} pairs of {gold} is among the {len(pairs):,} found: give "
        "another gold file, or --threshold"
      )
    threshold = best.threshold
  kept = pairs if threshold is None else pairs.at_least(threshold)
  return Mined(kept, len(sides[0].row_M), len(sides[1].row_M), len(pairs), best)


def lines(pairs: margins.Pairs, source: EmbeddedText, target: EmbeddedText) -> Iterator[str]:
  """Yields a line per pair: score TAB source TAB target. TABs in a text become spaces."""
  readers = source.reader(), target.reader()
  for block in exact_search.blocks(len(pairs)):
    columns = (x[block].tolist() for x in (pairs.score_P, pairs.source_P, pairs.target_P))
    for score, *rows in zip(*columns, strict=True):
      fields = (text(row) for text, row in zip(readers, rows, strict=True))
      fields = (field.translate(text_files.SEPARATORS) for field in fields)
      yield "\t".join((f"{score:.6f}", *fields))


def read_gold(path: str) -> tuple[list[int], list[int]]:
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
  return sources, targets


class _Sentences:
  """The distinct sentences of a text.

  Attributes:
    text: The text.
    first_N: Row of the first line that differs only in white space; -1 for blank lines.
    row_M: The rows of the sentences: of lines that are the first.
  """

  def __init__(self, text: EmbeddedText):
    """Reads the text once, without keeping it in memory."""
    self.text = text
    key_N = array_files.full(len(text), 0, np.int64)
    visible_N = array_files.full(len(text), False, bool)
    for row, line in enumerate(text.texts()):
      key_N[row] = hash(" ".join(line.split()))
      visible_N[row] = not text_files.is_blank(line)
    if not visible_N.any():
      raise errors.InputError(f"{text.path} contains no sentence")
    self.first_N = _first_rows(key_N, visible_N)
    self.row_M = array_files.concatenate(
      (
        rows.start + np.flatnonzero(self.first_N[rows] == np.arange(rows.start, rows.stop))
        for rows in exact_search.blocks(len(text))
      ),
      np.int64,
    )

  def rows(self, lines: Sequence[int], gold: str) -> list[int]:
    """Returns the rows that represent some lines, which count from 1 and are from a gold file."""
    for number, line in enumerate(lines, 1):
      if not 1 <= line <= len(self.first_N) or self.first_N[line - 1] < 0:
        raise errors.InputError(
          f"{gold}:{number}: there is no sentence in line {line} of {self.text.path}, which has "
          f"{len(self.first_N):,} lines, counted from 1"
        )
    return [int(self.first_N[line - 1]) for line in lines]


def _first_rows(key_N: np.ndarray, wanted_N: np.ndarray) -> np.ndarray:
  """Returns for each wanted row the first one with the same key, int64 [N], in bounded memory.

  Rows that are not wanted get -1.
  """
  first_N = array_files.full(len(key_N), -1, np.int64)
  with array_files.Records(2) as records:
    for block in exact_search.blocks(len(key_N)):
      row_B = np.arange(block.start, block.stop, dtype=np.uint64)
      record_B2 = np.stack([key_N[block].view(np.uint64), row_B], axis=1)
      records.add(record_B2[wanted_N[block]])
    before_12 = np.empty((0, 2), np.uint64)  # The key of the record before, and its first row.
    for record_B2 in records.sorted():
      record_C2 = np.concatenate([before_12, record_B2])
      key_C, row_C = record_C2[:, 0], record_C2[:, 1].astype(np.int64)
      first_C = row_C[np.searchsorted(key_C, key_C)]
      first_N[row_C] = first_C
      before_12 = np.array([[key_C[-1], first_C[-1]]], np.uint64)
  return first_N
