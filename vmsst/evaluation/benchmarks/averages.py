"""Means over results, marked if sets are missing, the groups of EMS, and the Score of VMSST."""

import statistics
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from vmsst.evaluation import suite

INCOMPLETE = " (incomplete)"


def mean(name: str, values: Iterable[float], *, complete: bool) -> suite.Numbers:
  """Returns the mean of numbers under a name that is marked if some are missing; {} if all are."""
  values = list(values)
  if not values:
    return {}
  return {name if complete else name + INCOMPLETE: statistics.fmean(values)}


def of_groups(
  results: Iterable[suite.Result], metric: str, groups: Mapping[str, Collection[str]]
) -> suite.Numbers:
  """Returns the mean of a metric over each group of results, given by their names."""
  value_by_name = {
    result.name: result.metrics[metric] for result in results if metric in result.metrics
  }
  means: suite.Numbers = {}
  for name, group in groups.items():
    values = [value_by_name[key] for key in group if key in value_by_name]
    means |= mean(name, values, complete=len(values) == len(group))
  return means


def by_seen(
  name: str, results: Sequence[suite.Result], metric: str, seen: suite.Seen, *, complete: bool
) -> suite.Numbers:
  """Returns means over results whose languages were all seen in training, and over the others."""
  means: suite.Numbers = {}
  if seen is not None:
    for part, wanted in (("seen", True), ("unseen", False)):
      values = [x.metrics[metric] for x in results if seen(x.languages) == wanted]
      means |= mean(f"{name} {part}", values, complete=complete)
  return means


def of_metrics(
  *metrics: str,
) -> Callable[[Sequence[suite.Result], suite.Seen, bool], suite.Numbers]:
  """Returns a benchmark's `averages`: the mean of each metric over all results, and `by_seen`."""

  def summarize(results: Sequence[suite.Result], seen: suite.Seen, complete: bool) -> suite.Numbers:
    means: suite.Numbers = {}
    for metric in metrics:
      means |= mean(metric, (x.metrics[metric] for x in results), complete=complete)
      means |= by_seen(metric, results, metric, seen, complete=complete)
    return means

  return summarize


def _codes(text: str) -> tuple[str, ...]:
  return tuple(text.split())


_SEEN = _codes(
  "afr ara ben bul cat ces cmn dan deu ell epo est eus fin fra glg heb hin hrv hun hye ind ita jav "
  "jpn kat kaz kor kur lit lvs mal mar max mkd mon nld nob pes pol por ron rus slk slv spa sqi srp "
  "swe swh tam tel tgl tha tur ukr urd vie"
)
_FEW = _codes("afr hin hye jav kat kaz kur mar mon nob swh tam tel tgl urd")


def _without(codes: tuple[str, ...]) -> tuple[str, ...]:
  return tuple(code for code in _SEEN if code not in codes)


TATOEBA: dict[str, tuple[str, ...]] = {
  "EMS seen (58)": _SEEN,
  "mUSE (15)": _codes("ara cmn deu fra ita jpn kor nld pol por rus spa tha tur"),
  "XTREME (38)": _without(
    _codes("cat ces dan epo glg hrv hye kur lit lvs mkd mon nob pol ron slk slv sqi srp swe ukr")
  ),
  "SBERT (48)": _without(_codes("afr ben epo eus jav kaz kur mal max swh tam tel tgl")),
  "<LASER (43)": _without(_codes("cat epo glg hye jav kaz kor mal mar mon pes spa tam tgl ukr")),
  ">300k (42)": _without((*_FEW, "pes")),
  "<300k (11)": _codes("afr hin hye kat kaz kur mar swh tam tel tgl"),
  ">300k (43)": _without(_FEW),
  "<300k (15)": _FEW,
}
"""Codes of Tatoeba's files, by name of the group."""

FLORES: dict[str, tuple[str, ...]] = {
  "mUSE (182)": _codes("ar de es fr it ja ko nl pl pt ru th tr zh"),
  "<300k (240)": _codes("af gu hi hy jv ka kk mr my nb sw ta te tl ur yo"),
}
"""Codes of languages by name of the group; all ordered pairs among them count."""


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


def overall_score(results: Mapping[str, Any]) -> suite.Numbers:
  """Returns the Score of section 6.2 of the VMSST paper for what `suite.evaluate` returns.

  It is the mean of English STS and cross-lingual STS (Pearson's r), Tatoeba (accuracy), BUCC (mean
  of F1 by cosine and by margin), NQ and MKQA (accuracy). Returns these parts too, by name; {} if
  one is missing or lacks sets.
  """
  summaries = {name: scored["summary"] for name, scored in results["benchmarks"].items()}
  parts: suite.Numbers = {}
  for name, keys in SCORE_PARTS.items():
    if any(key not in summaries.get(benchmark, {}) for benchmark, key in keys):
      return {}
    parts[name] = statistics.fmean(summaries[benchmark][key] for benchmark, key in keys)
  return {SCORE: statistics.fmean(parts.values()), **parts}
