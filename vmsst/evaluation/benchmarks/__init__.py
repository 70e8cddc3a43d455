"""Collects all benchmarks by name in `BENCHMARKS`."""

import itertools
import os
from collections.abc import Iterable, Iterator

from vmsst import errors, storage
from vmsst.evaluation import suite
from vmsst.evaluation.benchmarks import (
  agnosticism,
  bitext_mining,
  bitext_retrieval,
  documents,
  questions,
  sts,
)

ALL = "all"

_MODULES = (sts, bitext_retrieval, bitext_mining, questions, documents, agnosticism)
BENCHMARKS: dict[str, suite.Benchmark] = {
  benchmark.name: benchmark
  for module in _MODULES
  for benchmark in vars(module).values()
  if isinstance(benchmark, suite.Benchmark)
}


def get_benchmarks(names: Iterable[str]) -> list[suite.Benchmark]:
  """Returns the benchmarks with the given names, in the order of `BENCHMARKS`.

  Args:
    names: Benchmark names, or "all".

  Raises:
    InputError: If a name is unknown.
  """
  names = set(names)
  if unknown := sorted(names - {*BENCHMARKS, ALL}):
    raise errors.InputError(
      f"unknown benchmark {', '.join(unknown)}; choose from {', '.join(BENCHMARKS)}, or {ALL}"
    )
  return [benchmark for name, benchmark in BENCHMARKS.items() if {name, ALL} & names]


def held_out_texts(
  benchmarks: Iterable[suite.Benchmark], root: str | os.PathLike[str]
) -> Iterator[tuple[str, str]]:
  """Yields the texts to exclude from training data, each with its benchmark's name.

  Benchmarks whose files are missing are skipped. The benchmark `questions` consists of queries and
  a knowledge base; its queries are yielded even if the knowledge base is missing. The training
  splits of SIB-200, MLDoc and CLS are not yielded. Documents are yielded sentence by sentence. A
  text may be yielded several times.

  Args:
    benchmarks: The benchmarks.
    root: Data folder with one folder per benchmark, local or in an object store.

  Raises:
    InputError: If a file is malformed, or the data folder contains no evaluation data.
  """
  root = storage.path(root)
  has_data = False
  for benchmark in benchmarks:
    sets: Iterable[Iterable[str]] = ()
    if benchmark.files.absence(root) is None:
      sets = (task.held_out_texts() for task in benchmark.read(root))
    elif benchmark.name == questions.QUESTIONS.name:
      sets = (questions_of_set.texts for questions_of_set in questions.question_sets(root))
    for text in itertools.chain.from_iterable(sets):
      has_data = True
      yield benchmark.name, text
  if not has_data:
    raise errors.InputError(
      f"{root} contains no evaluation data; pass the data folder used with `vmsst eval`"
    )
