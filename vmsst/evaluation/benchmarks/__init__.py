"""All benchmarks, by name in `BENCHMARKS`."""

from collections.abc import Iterable

from vmsst import errors
from vmsst.evaluation import suite
from vmsst.evaluation.benchmarks import (
  agnosticism,
  bitext_mining,
  documents,
  paracrawl,
  parallel,
  questions,
  sts,
  tatoeba,
)

ALL = "all"

_MODULES = (sts, tatoeba, bitext_mining, questions, parallel, paracrawl, documents, agnosticism)
BENCHMARKS: dict[str, suite.Benchmark] = {
  each.name: each
  for module in _MODULES
  for each in vars(module).values()
  if isinstance(each, suite.Benchmark)
}


def get_benchmarks(
  names: Iterable[str], *, mkqa_questions: questions.MkqaQuestions = "answered"
) -> list[suite.Benchmark]:
  """Returns the benchmarks of these names, in the order of `BENCHMARKS`.

  Args:
    names: Names of benchmarks; "all" selects all.
    mkqa_questions: Which of MKQA's questions count in `questions`: "answered" or "all"; those
      without an answer are wrong.

  Raises:
    InputError: a name is unknown.
  """
  wanted = set(names)
  if unknown := sorted(wanted - {*BENCHMARKS, ALL}):
    raise errors.InputError(
      f"unknown benchmark {', '.join(unknown)}; choose from {', '.join(BENCHMARKS)}, or {ALL}"
    )
  known = BENCHMARKS | {questions.QUESTIONS.name: questions.benchmark(mkqa_questions)}
  return [benchmark for name, benchmark in known.items() if name in wanted or ALL in wanted]
