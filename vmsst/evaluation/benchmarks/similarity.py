"""Sets of sentence pairs with human similarity scores, their tasks, and correlations with them.

Correlations are scipy's; values are -1 to 1.
"""

import dataclasses
import functools
from collections.abc import Iterable, Sequence

import numpy as np

from vmsst import errors, storage
from vmsst.evaluation import suite
from vmsst.evaluation.benchmarks import files
from vmsst.io import text_files
from vmsst.search import exact_search

METRICS = ("pearson", "spearman")


@dataclasses.dataclass(frozen=True)
class ScoredPairs:
  """A set of sentence pairs.

  Attributes:
    name: Name of the set.
    path: File of the set.
    rows: Gold score, first and second sentence of each pair.
  """

  name: str
  path: storage.Path
  rows: Sequence[tuple[float, str, str]]

  def texts(self, side: int) -> list[str]:
    """Returns all first (1) or second (2) sentences."""
    return [str(row[side]) for row in self.rows]

  @property
  def gold_N(self) -> np.ndarray:
    """Gold scores, float64 [N]."""
    return np.array([row[0] for row in self.rows], np.float64)


def scored_table(path: storage.Path, name: str) -> ScoredPairs:
  """Reads a file of lines `score TAB first TAB second`."""
  rows = [
    (files.number(gold, path, line), first, second)
    for line, (gold, first, second) in enumerate(files.table(path, 3), 1)
  ]
  return _not_empty(ScoredPairs(name, path, rows))


def semeval(
  path: storage.Path,
  gold_path: storage.Path,
  name: str,
  *,
  unscored: bool = False,
  more_pairs: bool = False,
) -> ScoredPairs:
  """Reads the pairs of `STS.input.NAME.txt` and their scores in `STS.gs.NAME.txt`.

  Args:
    path: The pairs; fields after the second are notes.
    gold_path: The scores.
    name: Name of the set.
    unscored: Whether to skip pairs with an empty score line; else they are an error.
    more_pairs: Whether to skip pairs after the last score; else they are an error.

  Raises:
    InputError: a file is broken.
  """
  pairs = [line.split("\t") for line in text_files.read_lines(str(path))]
  scores = [line.strip() for line in text_files.read_lines(str(gold_path))]
  if len(pairs) != len(scores) and not (more_pairs and len(pairs) > len(scores)):
    raise errors.InputError(
      f"{path} has {len(pairs)} lines and {gold_path} has {len(scores)}, but each pair must have a "
      "score line: copy both again"
    )
  rows = []
  for line, (pair, score) in enumerate(zip(pairs, scores, strict=False), 1):
    if len(pair) < 2:
      raise errors.InputError(f"{path}:{line}: 1 field, not 2 sentences with a TAB between them")
    if score or not unscored:
      rows.append((files.number(score, gold_path, line), pair[0], pair[1]))
  return _not_empty(ScoredPairs(name, path, rows))


def gold_name(path: storage.Path) -> str:
  """Returns the name of the score file of `STS.input.NAME.txt`."""
  return files.plain_name(path).replace(".input.", ".gs.")


def by_name(sets: Iterable[ScoredPairs]) -> dict[str, ScoredPairs]:
  """Returns sets by name; raises InputError if two have the same name."""
  merged: dict[str, ScoredPairs] = {}
  for pairs in sets:
    other = merged.setdefault(pairs.name, pairs)
    if other is not pairs:
      raise errors.InputError(f"{other.path} and {pairs.path} are both {pairs.name}: remove one")
  return merged


def task(pairs: ScoredPairs, codes: Sequence[str]) -> suite.Task:
  """Returns the task of one set, whose result has `pearson` and `spearman`.

  Args:
    pairs: The set.
    codes: Languages of the first and the second sentences.
  """
  sides = tuple(suite.Side(code, pairs.texts(side)) for side, code in enumerate(codes, 1))
  return suite.Task(pairs.name, sides, functools.partial(_score, pairs, tuple(codes)))


def _score(
  pairs: ScoredPairs, codes: tuple[str, ...], first_ND: np.ndarray, second_ND: np.ndarray
) -> list[suite.Result]:
  return [correlations(pairs.name, codes, cosines(first_ND, second_ND), pairs.gold_N)]


def correlations(
  name: str, codes: tuple[str, ...], cosine_N: np.ndarray, gold_N: np.ndarray
) -> suite.Result:
  """Returns both correlations x 100.

  Cosines that agree in 6 decimals have the same rank: others differ by rounding errors.

  Raises:
    ValueError: all values of a list are equal; the message has the name of the set.
  """
  from scipy import stats  # Here: it takes a second.

  rounded_N = exact_search.rounded(cosine_N)
  for values_N in (rounded_N, gold_N):
    if (values_N == values_N[0]).all():
      raise ValueError(
        f"no correlations for {name}: all {len(values_N)} values are {values_N[0]}: no correlation "
        "is defined"
      )
  pearson = stats.pearsonr(cosine_N, gold_N).statistic
  spearman = stats.pearsonr(stats.rankdata(rounded_N), stats.rankdata(gold_N)).statistic
  metrics = {"pearson": 100 * float(pearson), "spearman": 100 * float(spearman)}
  return suite.Result(name, codes, metrics)


def _not_empty(pairs: ScoredPairs) -> ScoredPairs:
  if not pairs.rows:
    raise errors.InputError(f"{pairs.path}: no pair with a score")
  return pairs


def cosines(first_ND: np.ndarray, second_ND: np.ndarray) -> np.ndarray:
  """Returns the cosine of row i of one array with row i of the other, float64 [N]; 0 for zeros.

  Raises:
    ValueError: the shapes are not equal and [N, D], or a value is not finite.
  """
  first_ND, second_ND = np.asarray(first_ND), np.asarray(second_ND)
  if first_ND.ndim != 2 or first_ND.shape != second_ND.shape:
    raise ValueError(
      f"both arrays must have one shape [N, D], not {first_ND.shape} and {second_ND.shape}"
    )
  first_ND, second_ND = exact_search.unit_rows(first_ND), exact_search.unit_rows(second_ND)
  return np.einsum("nd,nd->n", first_ND, second_ND, dtype=np.float64)
