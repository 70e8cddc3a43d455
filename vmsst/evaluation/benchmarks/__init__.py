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
  stsb,
  tatoeba,
  topics,
  xlsts,
)

ALL = "all"

BENCHMARKS: dict[str, suite.Benchmark] = {
  each.name: each
  for each in (
    sts.BENCHMARK,
    xlsts.BENCHMARK,
    stsb.BENCHMARK,
    tatoeba.BENCHMARK,
    bitext_mining.BUCC,
    bitext_mining.BUCC_TEST,
    bitext_mining.MINING,
    questions.QUESTIONS,
    questions.MKQA_SMALL,
    parallel.FLORES,
    parallel.FLORES_DEV,
    parallel.NTREX,
    paracrawl.BENCHMARK,
    documents.MLDOC,
    documents.CLS,
    documents.AMAZON,
    topics.SIB200,
    topics.NUSAX,
    agnosticism.BENCHMARK,
    agnosticism.FLORES,
    agnosticism.WMT2012,
    agnosticism.TRANSLATIONS,
  )
}


def get_benchmarks(names: Iterable[str]) -> list[suite.Benchmark]:
  """Returns the benchmarks of these names, in the order of `BENCHMARKS`; "all" selects all.

  Raises:
    InputError: a name is unknown.
  """
  wanted = set(names)
  if unknown := sorted(wanted - {*BENCHMARKS, ALL}):
    raise errors.InputError(
      f"unknown benchmark {', '.join(unknown)}; choose from {', '.join(BENCHMARKS)}, or {ALL}"
    )
  return [each for name, each in BENCHMARKS.items() if name in wanted or ALL in wanted]
