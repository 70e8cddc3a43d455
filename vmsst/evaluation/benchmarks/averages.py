"""Means over results, marked if sets are missing."""

import statistics
from collections.abc import Collection, Iterable, Mapping, Sequence

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
  value_of = {result.name: result.metrics[metric] for result in results if metric in result.metrics}
  found: suite.Numbers = {}
  for name, group in groups.items():
    values = [value_of[each] for each in group if each in value_of]
    found |= mean(name, values, complete=len(values) == len(group))
  return found


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
  found: suite.Numbers = {}
  for is_seen, own in ({} if seen is None else split_by_seen(results, seen)).items():
    values = (result.metrics[metric] for result in own)
    found |= mean(f"{name} {'seen' if is_seen else 'unseen'}", values, complete=complete)
  return found


def mean_and_by_seen(
  name: str, results: Sequence[suite.Result], metric: str, seen: suite.Seen, *, complete: bool
) -> suite.Numbers:
  """Returns the mean of a metric over results, and what `by_seen` returns."""
  found = mean(name, (result.metrics[metric] for result in results), complete=complete)
  return found | by_seen(name, results, metric, seen, complete=complete)
