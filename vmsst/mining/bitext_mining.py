"""Mines translations from two texts with vectors, as pairs of lines."""

import dataclasses
import hashlib
import os
import pathlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from vmsst import errors
from vmsst.files import atomic_files, stored_settings, text_files
from vmsst.search import exact_search, margins, resumable_search
from vmsst.vectors.embedded_text import EmbeddedText

# Rows read at once when only some are selected.
_SPAN = 1 << 13
_SCORES = 6  # Decimal places.


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
  engine: exact_search.Engine = exact_search.compare,
  progress: bool | None = None,
) -> Mined:
  """Writes pairs of lines that are likely translations: score TAB source TAB target.

  Pairs are sorted, best first. Empty lines are skipped. Among lines that differ only in white space
  the first represents all. TABs in a line become spaces.

  Every five minutes, the neighbors found so far are saved in `output`.search.npz: an interrupted
  call resumes from there.

  Args:
    source: One text.
    target: The other text.
    output: Output file, written atomically.
    neighbors: As in `margins.margin_pairs`.
    margin: The same.
    retrieval: The same.
    threshold: Minimum score.
    gold: File of known translations, `source line TAB target line`, with lines counted from 1, to
      choose the threshold with the best F1. Excludes `threshold`.
    min_cosine: As in `margins.margin_pairs`.
    keep_duplicates: Compare all lines that are not empty.
    engine: Compares vectors; `vmsst.search.device_search.engine` returns one for this machine.
    progress: Show a progress bar; None: on a terminal only.

  Raises:
    InputError: the texts' vectors have different widths, a text has no sentence, the gold file is
      broken, or no gold pair was found.
    ValueError: k is below 1, or the margin or retrieval is unknown.
  """
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
  output = pathlib.Path(output)
  output.parent.mkdir(parents=True, exist_ok=True)
  if output.is_dir():
    raise errors.InputError(f"{output} is a folder: give a file")
  sides = _Sentences(source, keep_duplicates), _Sentences(target, keep_duplicates)
  gold_G2 = None if gold is None else _read_gold(gold, *sides)
  state = output.with_name(output.name + ".search.npz")
  found = margins.margin_pairs(
    *sides,
    neighbors=neighbors,
    margin=margin,
    retrieval=retrieval,
    min_cosine=min_cosine,
    engine=resumable_search.resumable(
      engine,
      state,
      {"neighbors": neighbors, "sides": [side.identity() for side in sides]},
      progress=progress,
    ),
  )
  kept, best = found, None
  if gold_G2 is not None:
    best = margins.best_f1(found, gold_G2) if len(found) else None
    if best is None or not best.f1:
      raise errors.InputError(
        f"none of the {len(gold_G2):,} pairs of {gold} is among the {len(found):,} found: give "
        "another gold file, or --threshold"
      )
    threshold = best.threshold
  if threshold is not None:
    kept = found.at_least(threshold)
  _write(output, kept, *sides)
  state.unlink(missing_ok=True)
  return Mined(len(sides[0].row_S), len(sides[1].row_S), len(found), len(kept), best)


def check_sentences(path: str) -> None:
  """Raises InputError if a text has no sentence to mine."""
  if not any(map(_key, text_files.read_lines(path))):
    raise errors.InputError(f"{path} contains no sentence")


class _Sentences:
  """The sentences of a text to compare: `exact_search.Rows` of their vectors.

  Attributes:
    text: The text.
    row_S: Row of each sentence in the text, ascending.
    place_N: Number of each line's sentence; -1 for empty lines.
    shape: S and D.
  """

  def __init__(self, text: EmbeddedText, keep_duplicates: bool):
    """Reads the text once, without keeping it in memory."""
    self.text = text
    key_N = np.fromiter(map(_key, text_files.read_lines(text.path)), np.int64)
    row_S = np.flatnonzero(key_N)
    place_S = np.arange(len(row_S))
    if not keep_duplicates:
      first_F, place_S = exact_search.by_first_occurrence(key_N[row_S])
      row_S = row_S[first_F]
    if not len(row_S):
      raise errors.InputError(f"{text.path} contains no sentence")
    self.row_S = row_S
    self.place_N = np.full(len(key_N), -1)
    self.place_N[key_N != 0] = place_S
    self.shape: tuple[int, int] = (len(row_S), text.vectors.shape[1])

  def __getitem__(self, rows: slice, /) -> np.ndarray:
    row_B = self.row_S[rows]
    if not len(row_B):
      return self.text.vectors[0:0]
    first, end = int(row_B[0]), int(row_B[-1]) + 1
    if end - first == len(row_B):
      return self.text.vectors[first:end]
    parts = []
    for start in range(first, end, _SPAN):
      row_P = row_B[np.searchsorted(row_B, start) : np.searchsorted(row_B, start + _SPAN)]
      if len(row_P):
        parts.append(self.text.vectors[start : start + _SPAN][row_P - start])
    return np.concatenate(parts)

  def identity(self) -> dict[str, Any]:
    """Returns what identifies the vectors, for JSON."""
    return {
      "folder": str(self.text.folder.resolve()),
      "changed": (self.text.folder / "vectors.json").stat().st_mtime_ns,
      "sentences": hashlib.blake2b(self.row_S.tobytes(), digest_size=16).hexdigest(),
    }


def _key(line: str) -> int:
  """Returns a key that lines share if they differ only in white space; 0 for empty lines."""
  words = " ".join(line.split())
  return hash(words) | 1 if words else 0


def _read_gold(path: str, source: _Sentences, target: _Sentences) -> np.ndarray:
  """Returns the known translations as numbers of their sentences, int64 [G, 2], without repeats."""
  gold = []
  for number, line in enumerate(text_files.read_lines(path), 1):
    fields = line.split("\t")
    if len(fields) != 2 or not all(field.isdecimal() for field in fields):
      raise errors.InputError(
        f"{path}:{number}: {line!r} is not `source line TAB target line` with two line numbers"
      )
    gold.append(
      [
        _place(side, int(x), f"{path}:{number}")
        for side, x in zip((source, target), fields, strict=True)
      ]
    )
  if not gold:
    raise errors.InputError(f"{path} is empty: add line numbers of known translations")
  return np.unique(np.array(gold, np.int64), axis=0)


def _place(side: _Sentences, line: int, where: str) -> int:
  if not 1 <= line <= len(side.place_N):
    raise errors.InputError(
      f"{where}: there is no line {line} in {side.text.path}: it has {len(side.place_N):,} lines, "
      "counted from 1"
    )
  place = int(side.place_N[line - 1])
  if place < 0:
    raise errors.InputError(f"{where}: line {line} of {side.text.path} is empty")
  return place


def _write(
  output: pathlib.Path, pairs: margins.Pairs, source: _Sentences, target: _Sentences
) -> None:
  with atomic_files.atomic_text(output) as stream:
    stream.writelines(_output_lines(pairs, source, target))


def _output_lines(pairs: margins.Pairs, source: _Sentences, target: _Sentences) -> Iterator[str]:
  rows = source.row_S[pairs.source_P].tolist(), target.row_S[pairs.target_P].tolist()
  texts = [side.text.lines(each) for side, each in zip((source, target), rows, strict=True)]
  for score, x, y in zip(pairs.score_P.tolist(), *rows, strict=True):
    fields = (texts[0][x], texts[1][y])
    yield (
      "\t".join((f"{score:.{_SCORES}f}", *(field.replace("\t", " ") for field in fields))) + "\n"
    )
