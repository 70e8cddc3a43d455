"""Numbers published in the five papers, as far as evaluations here measure them too.

papers.json stores them. `papers` has the titles by a short key. `tables` has, for each table,
its columns, [benchmark, name] or [benchmark, name, of] as in `Number`, and its rows by system;
`note` documents tables that contradict themselves.
`main` has the averages to show first, `remarks` when a benchmark or one of its options is
comparable with the papers. Tables of the soft contrastive paper on STS and BUCC are omitted,
because they measure MTEB's collections, not the benchmarks of that name here; and the single
languages of the VMSST paper's Table 6, because their labels contradict the values (Arabic and
Spanish appear swapped).

Averages over seen and unseen languages depend on which languages were seen, so that the VMSST
paper's Table 8, which does not name its languages, is omitted.
"""

import dataclasses
import functools
import json
import pathlib
import statistics
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

from vmsst import errors, languages
from vmsst.evaluation import results_files


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
  """

  paper: str
  table: str
  system: str
  benchmark: str
  name: str
  of: str | None
  value: float
  note: str

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
    Number(
      paper, table, system, benchmark, name, of[0] if of else None, value, record.get("note", "")
    )
    for record in content()["tables"]
    for paper, table in [(record["paper"], record["table"])]
    for system, values in record["rows"].items()
    for (benchmark, name, *of), value in zip(record["columns"], values, strict=True)
    if value is not None
  )


def for_average(benchmark: str, name: str) -> list[Number]:
  """Returns the published numbers of an average, given its name in the benchmark's summary."""
  return _index().get((benchmark, name, None), [])


def for_result(benchmark: str, name: str, codes: Sequence[str], metric: str) -> list[Number]:
  """Returns the published numbers of one metric of a result, given its name and languages.

  Languages match across code standards, and "de-en" matches "en-de".
  """
  if name.startswith("track4b."):  # Of xlsts; the papers have 4a, of the same languages.
    return []
  domain = name.rpartition(" ")[0]
  joined = ("->" if "->" in name else "-").join(codes)
  return _index().get((benchmark, metric, _key(f"{domain} {joined}")), [])


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


SCORE = "Score"
SCORE_PARTS: dict[str, list[tuple[str, str]]] = {
  "English STS": [("sts", "pearson")],
  "XL STS": [("xlsts", "pearson")],
  "Tatoeba": [("tatoeba", "average")],
  "BUCC": [("bucc", "cosine_f1"), ("bucc", "margin_f1")],
  "NQ": [("questions", "nq")],
  "MKQA": [("questions", "mkqa")],
}
"""The six parts of section 6.2: each is the mean of these averages, by benchmark and name."""


def overall_score(results: Mapping[str, Any]) -> results_files.Numbers:
  """Returns the Score of section 6.2 of the VMSST paper for what `suite.evaluate` returns.

  It is the mean of English STS and cross-lingual STS (Pearson's r), Tatoeba (accuracy), BUCC (mean
  of F1 by cosine and by margin), NQ and MKQA (accuracy). Returns these parts too, by name; {} if
  one is missing or lacks sets.
  """
  summaries = {name: scored["summary"] for name, scored in results["benchmarks"].items()}
  parts: results_files.Numbers = {}
  for name, keys in SCORE_PARTS.items():
    if any(key not in summaries.get(benchmark, {}) for benchmark, key in keys):
      return {}
    parts[name] = statistics.fmean(summaries[benchmark][key] for benchmark, key in keys)
  return {SCORE: statistics.fmean(parts.values()), **parts}
