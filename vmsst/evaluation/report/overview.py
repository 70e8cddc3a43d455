"""The overview of a report: each benchmark's main averages next to the published ones."""

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

from vmsst.evaluation.report import published, summaries
from vmsst.evaluation.report.tables import Cell, Label, Table

_LOWER_IS_BETTER = "error"


@dataclasses.dataclass(frozen=True)
class Measurement:
  """An average of a benchmark that is published too.

  Attributes:
    benchmark: Name of the benchmark.
    title: Its title.
    key: Name of the average.
    own: Average of each encoder; without a value if it was not measured.
    numbers: The published averages, at least one.
  """

  benchmark: str
  title: str
  key: str
  own: list[Cell]
  numbers: list[published.Published]

  @property
  def lower_is_better(self) -> bool:
    """Whether the average is an error rate."""
    return self.numbers[0].metric == _LOWER_IS_BETTER

  @property
  def best(self) -> published.Published:
    """The best published average; the first one among equals."""
    return (min if self.lower_is_better else max)(self.numbers, key=lambda each: each.value)


def measurements(evaluated: Mapping[str, Mapping[str, Any]]) -> list[Measurement]:
  """Returns the averages to compare first: one for each benchmark of published.json.

  A benchmark here may have several of those, such as NQ and MKQA, or none. Of an evaluation with
  several metrics or parts, the first published one counts.

  Args:
    evaluated: What `suite.evaluate` returns, by encoder.
  """
  measured: dict[str, Measurement] = {}
  for name in dict.fromkeys(name for each in evaluated.values() for name in each["benchmarks"]):
    found = [each["benchmarks"].get(name) for each in evaluated.values()]
    present = [each for each in found if each is not None]
    for key in summaries.keys(present):
      for number in (numbers := published.for_average(name, key))[:1]:
        own = [_cell(each, key) for each in found]
        measurement = Measurement(name, present[0]["title"], key, own, numbers)
        measured.setdefault(number.benchmark, measurement)
  return list(measured.values())


def table(measured: Iterable[Measurement], encoders: Iterable[str]) -> Table:
  """Returns the averages of each encoder and the best published one, a row per average."""
  rows, cells = [], []
  for each in measured:
    better = ", lower is better" if each.lower_is_better else ""
    rows.append(Label(each.title, each.key + better))
    best = each.best
    cells.append([*each.own, Cell(best.value, note=f"{best.system} ({best.source})")])
  columns = [*map(Label, encoders), Label("Best published", published=True)]
  return Table("Main averages", "Benchmark", columns, rows, cells)


def _cell(found: Mapping[str, Any] | None, key: str) -> Cell:
  value = None if found is None else summaries.value(found, key)
  if found is None or value is None:
    return Cell(None)
  return Cell(value, incomplete=summaries.incomplete(found, key))
