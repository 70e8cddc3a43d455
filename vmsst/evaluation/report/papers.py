"""Numbers published in the five papers, as far as evaluations here measure them too.

papers.json stores them. `papers` has the titles by a short key. `tables` has, for each table,
its columns, [benchmark, name] or [benchmark, name, of] as in `Number`, and its rows by system;
`note` documents tables that contradict themselves, `ablations` marks those of a model's variants.
`main` has the averages to show first, `remarks` when a benchmark or one of its options is
comparable with the papers. Tables of the soft contrastive paper on STS and BUCC are omitted,
because they measure MTEB's collections, not the benchmarks of that name here; and the single
languages of the VMSST paper's Table 6, because their labels contradict the values (Arabic and
Spanish appear swapped).

Averages over seen and unseen languages depend on which languages were seen. So that only models
differ, averages of published systems are computed here over the languages of each evaluation
(`seen_and_unseen`). The VMSST paper's Table 8 is omitted: it does not name its languages.
"""

import dataclasses
import functools
import json
import pathlib
import statistics
from collections.abc import Collection, Hashable, Mapping, Sequence
from typing import Any

from vmsst import errors, languages
from vmsst.evaluation import results_files, suite
from vmsst.evaluation.benchmarks import averages, tatoeba


@dataclasses.dataclass(frozen=True)
class Number:
  """A published number.

  Attributes:
    paper: Short key of the paper.
    table: Number of the table in the paper.
    system: Name of the encoder.
    benchmark: Name of the benchmark here.
    name: Name of the average in the benchmark's summary, or of the metric of a single result.
    of: Language codes of a single result, joined by "-" (either direction or the mean of both) or
      "->" (from the first, or trained on it, to the second; "*" is the mean over all others), after
      the domain or text and a space if there are several; None for an average.
    value: As published, shares times 100.
    note: Remark on the table; "" if there is none.
    ablation: Whether the table is about variants of the paper's model.
  """

  paper: str
  table: str
  system: str
  benchmark: str
  name: str
  of: str | None
  value: float
  note: str
  ablation: bool

  @property
  def source(self) -> str:
    """Paper and table, for people."""
    return f"{self.paper}, Table {self.table}"


@functools.cache
def content() -> dict[str, Any]:
  """Returns the content of papers.json."""
  path = pathlib.Path(__file__).with_name("papers.json")
  record: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
  return record


@functools.cache
def load() -> tuple[Number, ...]:
  """Returns all published numbers, in file order."""
  return tuple(
    Number(*source, system, benchmark, name, of[0] if of else None, value, *remarks)
    for table in content()["tables"]
    for source in [(table["paper"], table["table"])]
    for remarks in [(table.get("note", ""), table.get("ablations", False))]
    for system, values in table["rows"].items()
    for (benchmark, name, *of), value in zip(table["columns"], values, strict=True)
    if value is not None
  )


def for_average(benchmark: str, name: str, papers: Collection[str] = ()) -> list[Number]:
  """Returns the published numbers of an average, given its name in the benchmark's summary.

  Without those of ablations, except of these papers.
  """
  return _find((benchmark, name, None), papers)


def for_result(
  benchmark: str, name: str, codes: Sequence[str], metric: str, papers: Collection[str] = ()
) -> list[Number]:
  """Returns the published numbers of one metric of a result, given its name and languages.

  Languages match across code standards, and "de-en" matches "en-de". Without ablations, except of
  these papers.
  """
  if name.startswith("track4b."):  # Of xlsts; the papers have 4a, of the same languages.
    return []
  domain = name.rpartition(" ")[0]
  joined = ("->" if "->" in name else "-").join(codes)
  return _find((benchmark, metric, _key(f"{domain} {joined}")), papers)


def _find(key: tuple[str, str, Hashable], papers: Collection[str]) -> list[Number]:
  return [x for x in _index().get(key, []) if not x.ablation or x.paper in papers]


@functools.cache
def _index() -> dict[tuple[str, str, Hashable], list[Number]]:
  index: dict[tuple[str, str, Hashable], list[Number]] = {}
  for number in load():
    of = None if number.of is None else _key(number.of)
    index.setdefault((number.benchmark, number.name, of), []).append(number)
  return index


def _key(of: str) -> Hashable:
  """Returns the domain and the languages, in order if there is an arrow."""
  domain, _, codes = of.rpartition(" ")
  if "->" in codes:
    return domain, tuple(map(_language, codes.split("->")))
  return domain, frozenset(map(_language, codes.split("-")))


def _language(code: str) -> str:
  """Returns the language's name, or the code itself if it is a version of a text such as "pl_1"."""
  try:
    return languages.language(code).name
  except errors.InputError:
    return code


def seen_and_unseen(evaluated: Mapping[str, results_files.Results]) -> dict[str, list[Number]]:
  """Returns published averages over the seen and unseen languages of Tatoeba, by average.

  Systems without a published number for each of the languages are left out. Names of systems say
  whose languages they are: those of the first encoder with the same ones.

  Args:
    evaluated: Results by encoder.

  Raises:
    InputError: a language is unknown.
  """
  numbers: dict[str, list[Number]] = {}
  done = set()
  name = tatoeba.BENCHMARK.name
  for encoder, results in evaluated.items():
    if name not in results["benchmarks"] or results["seen"] is None:
      continue
    scored = results["benchmarks"][name]
    seen = suite.seen_test(map(languages.language, results["seen"]))
    split = averages.split_by_seen(tatoeba.without_english(suite.collect_results(scored)), seen)
    for part, results_of_part in (("seen", split[True]), ("unseen", split[False])):
      codes = frozenset(x.name for x in results_of_part)
      average = next((x for x in scored["summary"] if x.startswith(f"average {part}")), "")
      if not average or (average, codes) in done:
        continue
      done.add((average, codes))
      by_system: dict[tuple[str, str], dict[str, Number]] = {}
      for code in codes:
        for number in for_result(name, code, (code, "eng"), "average"):
          by_system.setdefault((number.paper, number.system), {}).setdefault(code, number)
      for (paper, system), by_code in by_system.items():
        if len(by_code) == len(codes):
          tables = ", ".join(dict.fromkeys(number.table for number in by_code.values()))
          title = f"{system} on the {part} languages of {encoder}"
          value = statistics.fmean(number.value for number in by_code.values())
          mean = Number(paper, tables, title, name, average, None, value, "", False)
          numbers.setdefault(average, []).append(mean)
  return numbers
