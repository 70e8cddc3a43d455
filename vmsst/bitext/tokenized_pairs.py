"""Token ids of bitext in memory: texts of unequal length, end to end."""

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from vmsst.languages import Language

if TYPE_CHECKING:
  from vmsst.text.vocabularies import Vocabulary

SIDES = {"inputs": "input_language", "targets": "target_language"}
"""The columns of the two texts of a pair, and those of their languages."""
TEACHER_SIDES = ("teacher_inputs", "teacher_targets")
"""The columns of a teacher's vectors of the two texts."""
_CHUNK = 8192


@dataclasses.dataclass(frozen=True)
class Ragged:
  """Texts of unequal length, end to end.

  Attributes:
    values: The int32 texts one after another.
    ends: The end of each text in `values`, int64 [N]; [N, K] if each row is K texts. A row of
      several texts becomes a matrix padded with 0; an empty text among them has no EOS token.
  """

  values: np.ndarray
  ends: np.ndarray

  def __len__(self) -> int:
    return len(self.ends)

  @classmethod
  def of(cls, rows: Sequence[Sequence[int]]) -> "Ragged":
    """Returns the ragged array of lists of numbers."""
    ends = np.cumsum(np.fromiter(map(len, rows), np.int64, len(rows)))
    total = int(ends[-1]) if len(rows) else 0
    return cls(np.fromiter(itertools.chain.from_iterable(rows), np.int32, total), ends)

  @classmethod
  def concatenate(cls, parts: Sequence["Ragged"]) -> "Ragged":
    """Returns the rows of all parts, in order."""
    offsets = np.cumsum([0, *(len(part.values) for part in parts)])
    return cls(
      np.concatenate([part.values for part in parts]),
      np.concatenate([part.ends + offset for part, offset in zip(parts, offsets, strict=False)]),
    )


Rows = Mapping[str, np.ndarray | Ragged]
"""Columns of equal length by name; the values of a dense column become tensors of its type."""


@dataclasses.dataclass
class PairCounts:
  """Numbers of pairs that were kept, and that were dropped for each reason."""

  kept: int = 0
  empty: int = 0
  too_long: int = 0

  def __str__(self) -> str:
    return (
      f"{self.kept} pairs kept, {self.empty} with an empty side and {self.too_long} with an "
      "over-long side dropped"
    )


def pair_rows(
  pairs: Iterable[Sequence[str]],
  source: Language,
  target: Language,
  vocabulary: "Vocabulary",
  max_length: int | None = None,
  *,
  negatives: int = 0,
  teacher: Callable[[np.ndarray, int], np.ndarray] | None = None,
) -> tuple[Rows, PairCounts]:
  """Returns the token ids, without EOS tokens, and the language ids of pairs of texts.

  Pairs with a side of no tokens, or of more than `max_length` tokens, are dropped and counted.

  Args:
    pairs: Source, target and hard negatives of each pair.
    source: Language of the sources.
    target: Language of all other texts.
    vocabulary: Tokenizes all texts.
    max_length: Maximum number of tokens of a side; None: no limit.
    negatives: Number of hard negatives of each pair; they become the column `negatives`.
    teacher: Returns the vectors of one side (0 or 1) of the pairs with given numbers, which ascend;
      those of the kept pairs become the columns TEACHER_SIDES.
  """
  counts = PairCounts()
  inputs, targets, wrong, numbers = [], [], [], []
  iterator = iter(pairs)
  start = 0
  while chunk := list(itertools.islice(iterator, _CHUNK)):
    kept = list(_fitting(chunk, source, target, vocabulary, max_length, counts))
    inputs.append(Ragged.of([ids for _, ids, _ in kept]))
    targets.append(Ragged.of([ids for _, _, ids in kept]))
    if negatives:
      texts = [text for place, _, _ in kept for text in chunk[place][2:]]
      wrong.append(Ragged.of(vocabulary.tokenize(texts, target)))
    numbers += [start + place for place, _, _ in kept]
    start += len(chunk)
  columns: dict[str, np.ndarray | Ragged] = {
    "inputs": Ragged.concatenate(inputs or [Ragged.of([])]),
    "targets": Ragged.concatenate(targets or [Ragged.of([])]),
    "input_language": np.full([counts.kept, 1], source.index, np.int32),
    "target_language": np.full([counts.kept, 1], target.index, np.int32),
  }
  if negatives:
    texts_of_all = Ragged.concatenate(wrong or [Ragged.of([])])
    ends = texts_of_all.ends.reshape(-1, negatives)
    columns["negatives"] = Ragged(texts_of_all.values, ends)
  if teacher:
    for side, name in enumerate(TEACHER_SIDES):
      columns[name] = teacher(np.array(numbers, np.int64), side)
  return columns, counts


def _fitting(
  pairs: Sequence[Sequence[str]],
  source: Language,
  target: Language,
  vocabulary: "Vocabulary",
  max_length: int | None,
  counts: PairCounts,
) -> Iterator[tuple[int, list[int], list[int]]]:
  """Yields the places and the tokens of the pairs that are kept."""
  all_inputs = vocabulary.tokenize([pair[0] for pair in pairs], source)
  all_targets = vocabulary.tokenize([pair[1] for pair in pairs], target)
  for place, (inputs, targets) in enumerate(zip(all_inputs, all_targets, strict=True)):
    if not inputs or not targets:
      counts.empty += 1
    elif max_length is not None and max(len(inputs), len(targets)) > max_length:
      counts.too_long += 1
    else:
      counts.kept += 1
      yield place, inputs, targets
