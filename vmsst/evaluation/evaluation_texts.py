"""Texts of evaluation sets, to exclude from training data."""

import functools
import itertools
import os
from collections.abc import Callable, Iterable, Iterator

from vmsst import errors
from vmsst.evaluation import suite
from vmsst.evaluation.benchmarks import files, questions
from vmsst.files import storage

TICO19 = "tico19"
_TICO19_SOURCE = "TICO-19 is on https://tico-19.github.io"
_TICO19_SIDES = ("sourceString", "targetString")


def iter_texts(
  benchmarks: Iterable[suite.Benchmark], root: str | os.PathLike[str]
) -> Iterator[tuple[str, str]]:
  """Yields the benchmark's name and the text, for every text to exclude from training.

  Benchmarks without files are skipped; questions do not need their knowledge base. Training splits
  of benchmarks, as in SIB-200 and MLDoc, are not excluded. Documents are yielded sentence by
  sentence. TICO-19, which no benchmark here reads, is included as `tico19`. Texts may repeat.

  Args:
    benchmarks: The benchmarks.
    root: Data folder, local or in an object store, with one folder per benchmark.

  Raises:
    InputError: files are broken, or there is no evaluation set.
  """
  root = storage.path(root)
  found = False
  for name, read in _readers(benchmarks, root):
    for text in read(root):
      found = True
      yield name, text
  if not found:
    raise errors.InputError(f"{root} has no evaluation set: give the data folder of `vmsst eval`")


def _readers(
  benchmarks: Iterable[suite.Benchmark], root: storage.Path
) -> Iterator[tuple[str, Callable[[storage.Path], Iterator[str]]]]:
  """Yields the name of each set that is present and a function that reads its texts."""
  for benchmark in benchmarks:
    if suite.absence(benchmark, root) is None:
      yield benchmark.name, functools.partial(_held_out, benchmark)
    elif benchmark.name == questions.QUESTIONS.name:
      yield benchmark.name, _questions
  if (root / TICO19).is_dir():
    yield TICO19, _tico19


def _held_out(benchmark: suite.Benchmark, root: storage.Path) -> Iterator[str]:
  return itertools.chain.from_iterable(task.texts() for task in benchmark.read(root))


def _questions(root: storage.Path) -> Iterator[str]:
  return itertools.chain.from_iterable(own.texts for own in questions.question_sets(root))


def _tico19(root: storage.Path) -> Iterator[str]:
  """Yields the texts of published tables, or of tables with one column per language."""
  for path in files.files_in(root / TICO19, "**/*.tsv", source=_TICO19_SOURCE):
    rows = files.table(path)
    header = next(rows, [])
    sides = [i for i, name in enumerate(header) if name in _TICO19_SIDES]
    if not sides:
      sides = [i for i, code in enumerate(header) if files.known_code(code, path)]
    for row in rows:
      yield from (row[side] for side in sides if row[side])
