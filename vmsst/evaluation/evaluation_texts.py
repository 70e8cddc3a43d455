"""Texts of evaluation sets, to exclude from training data."""

import itertools
import os
from collections.abc import Iterable, Iterator

from vmsst import errors
from vmsst.evaluation import suite
from vmsst.evaluation.benchmarks import questions
from vmsst.io import storage


def iter_texts(
  benchmarks: Iterable[suite.Benchmark], root: str | os.PathLike[str]
) -> Iterator[tuple[str, str]]:
  """Yields the benchmark's name and the text, for every text to exclude from training.

  Benchmarks without files are skipped; questions do not need their knowledge base. Training splits
  of benchmarks, as in SIB-200 and MLDoc, are not excluded. Documents are yielded sentence by
  sentence. Texts may repeat.

  Args:
    benchmarks: The benchmarks.
    root: Data folder, local or in an object store, with one folder per benchmark.

  Raises:
    InputError: files are broken, or there is no evaluation set.
  """
  root = storage.path(root)
  has_data = False
  for name, texts in _texts(benchmarks, root):
    for text in texts:
      has_data = True
      yield name, text
  if not has_data:
    raise errors.InputError(f"{root} has no evaluation set: give the data folder of `vmsst eval`")


def _texts(
  benchmarks: Iterable[suite.Benchmark], root: storage.Path
) -> Iterator[tuple[str, Iterable[str]]]:
  """Yields the name and the texts of each set that is present."""
  for benchmark in benchmarks:
    if suite.absence(benchmark, root) is None:
      tasks = benchmark.read(root)
      yield benchmark.name, itertools.chain.from_iterable(task.texts() for task in tasks)
    elif benchmark.name == questions.QUESTIONS.name:
      for questions_of_set in questions.question_sets(root):
        yield benchmark.name, questions_of_set.texts
