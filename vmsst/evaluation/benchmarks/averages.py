"""Means over results, marked if sets are missing, and the names of missing sets."""

import statistics
from collections.abc import Iterable, Sequence

from vmsst import languages
from vmsst.evaluation import suite

INCOMPLETE = " (incomplete)"


def mean(name: str, values: Iterable[float], *, complete: bool) -> suite.Numbers:
  """Returns the mean of numbers under a name that is marked if some are missing; {} if all are."""
  values = list(values)
  if not values:
    return {}
  return {name if complete else name + INCOMPLETE: statistics.fmean(values)}


def metric_mean(
  name: str, results: Sequence[suite.Result], metric: str, *, complete: bool
) -> suite.Numbers:
  """Returns the mean of a metric over results."""
  return mean(name, (result.metrics[metric] for result in results), complete=complete)


def split_by_seen(
  results: Sequence[suite.Result], seen: suite.SeenTest
) -> dict[bool, list[suite.Result]]:
  """Returns the results whose languages were all seen in training (True), and the others."""
  found: dict[bool, list[suite.Result]] = {True: [], False: []}
  for result in results:
    found[seen(result.languages)].append(result)
  return found


def by_seen(
  name: str, results: Sequence[suite.Result], metric: str, seen: suite.Seen, *, complete: bool
) -> suite.Numbers:
  """Returns means over results whose languages were all seen in training, and over the others."""
  if seen is None:
    return {}
  found = split_by_seen(results, seen)
  return metric_mean(f"{name} seen", found[True], metric, complete=complete) | metric_mean(
    f"{name} unseen", found[False], metric, complete=complete
  )


def mean_and_by_seen(
  name: str, results: Sequence[suite.Result], metric: str, seen: suite.Seen, *, complete: bool
) -> suite.Numbers:
  """Returns what `metric_mean` and `by_seen` return."""
  return metric_mean(name, results, metric, complete=complete) | by_seen(
    name, results, metric, seen, complete=complete
  )


def missing_names(names: Iterable[str], results: Iterable[suite.Result]) -> list[str]:
  """Returns the names that no result has."""
  present = {result.name for result in results}
  return [name for name in names if name not in present]


def missing_languages(codes: Iterable[str], results: Iterable[suite.Result]) -> list[str]:
  """Returns the codes of languages that no result has, in any standard."""
  present = {languages.language(code) for result in results for code in result.languages}
  return [code for code in codes if languages.language(code) not in present]
