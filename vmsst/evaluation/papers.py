"""Published numbers from the five papers, for comparison with evaluation results.

The numbers are in papers.json:

* `papers`: paper titles by short key.
* `tables`: the columns of each table, as [benchmark, name] or [benchmark, name, of] (see `Number`),
  and the rows by system. If a table contradicts itself, a `note` explains how.
* `main`: averages to show in a report's overview.
* `remarks`: conditions under which benchmark results are comparable with the papers.

These numbers are omitted:

* The results for STS and BUCC in the soft contrastive paper. The paper uses the MTEB tasks named
  STS and BUCC, which differ from this library's benchmarks with these names.
* The per-language results in Table 6 of the VMSST paper. The labels contradict the values, because
  Arabic and Spanish appear to be swapped.
* Table 8 of the VMSST paper. The table averages over seen and unseen languages without naming the
  languages.
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
    benchmark: Name of the benchmark in this library.
    name: Name of an average in the benchmark's summary, or metric name for a single result.
    of: Identifies a single result by its language codes, or None for an average. "de-en" means both
      directions, "de->en" means from German to English, and "de->*" means from German to all other
      languages. If the benchmark has several domains or texts, the name of the domain or text comes
      first, as in "books en->de".
    value: The published value; accuracies are percentages.
    note: Remark on the table; empty if there is none.
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
    """Paper and table, as a citation."""
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
  """Returns the published numbers for an average in a benchmark's summary."""
  return _index().get((benchmark, name, None), [])


def for_result(benchmark: str, name: str, codes: Sequence[str], metric: str) -> list[Number]:
  """Returns the published numbers for one metric of a single result.

  Codes from different standards, such as "de" and "deu", match if they mean the same language. The
  language pair "de-en" matches "en-de".

  Args:
    benchmark: Name of the benchmark.
    name: Name of the result.
    codes: Language codes of the result.
    metric: Name of the metric.
  """
  if name.startswith("track4b."):  # The papers' es-en numbers are for track 4a.
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
  """Returns the domain and the languages; the language order matters only for "->"."""
  domain, _, codes = of.rpartition(" ")
  if "->" in codes:
    return domain, tuple(map(_language, codes.split("->")))
  return domain, frozenset(map(_language, codes.split("-")))


def _language(code: str) -> str:
  """Returns the name of the language, or the code itself if the code is a label such as "pl_1"."""
  try:
    return languages.language(code).name
  except errors.InputError:
    return code


SCORE = "Score"
SCORE_COMPONENTS: dict[str, list[tuple[str, str]]] = {
  "English STS": [("sts", "pearson")],
  "XL STS": [("xlsts", "pearson")],
  "Tatoeba": [("tatoeba", "average")],
  "BUCC": [("bucc", "cosine_f1"), ("bucc", "margin_f1")],
  "NQ": [("questions", "nq")],
  "MKQA": [("questions", "mkqa")],
}
"""Components of the VMSST paper's Score. Each is the mean of averages, as (benchmark, name)."""


def overall_score(results: Mapping[str, Any]) -> results_files.Numbers:
  """Returns the Score of the VMSST paper (section 6.2) and its components by name.

  The Score is the mean of English STS and cross-lingual STS (Pearson's r), Tatoeba (accuracy), BUCC
  (mean of F1 by cosine and by margin), NQ and MKQA (accuracy).

  Args:
    results: Results of an encoder, as `suite.evaluate` returns them.

  Returns:
    The Score and its components, or {} if a component is missing or incomplete.
  """
  summaries = {name: scored["summary"] for name, scored in results["benchmarks"].items()}
  components: results_files.Numbers = {}
  for name, keys in SCORE_COMPONENTS.items():
    if any(key not in summaries.get(benchmark, {}) for benchmark, key in keys):
      return {}
    components[name] = statistics.fmean(summaries[benchmark][key] for benchmark, key in keys)
  return {SCORE: statistics.fmean(components.values()), **components}
